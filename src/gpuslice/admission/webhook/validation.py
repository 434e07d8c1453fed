"""The reviews that change nothing: they refuse what cannot be taken as it is.

That is malformed GPU requests, policies that make no sense, and reviews that are too large to be read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuslice.admission.review import API_VERSION, KIND, examine, read_request
from gpuslice.model.policies import WhenUnreviewed
from gpuslice.policies.parsing import PolicyError, parse_policy
from gpuslice.policies.schema import GROUP
from gpuslice.policies.schema import KIND as POLICY_KIND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.admission.context import Context
    from gpuslice.model.policies import Rule

_LONGEST_MESSAGE: Final = 2048

#: Below the 256 characters at which the API server cuts warnings off.
_UNHELD: Final = (
    "spec.whenUnreviewed: Admit limits no hostile tenant: a pod whose review takes too long passes as it is; "
    "leave it out"
)

#: Near the beginning of a review. The order of fields is that of the API server's own types.
_UID: Final = re.compile(rb'"request":\s*\{\s*"uid":\s*"([0-9A-Za-z-]{1,64})"')

_encode: Final = msgspec.json.Encoder().encode


class Verdict(msgspec.Struct, frozen=True):
    """An answer, and whether it lets the object pass."""

    body: bytes
    uid: str
    message: str = ""

    @property
    def allowed(self) -> bool:
        return not self.message


def allow(uid: str, warnings: Sequence[str] = ()) -> Verdict:
    shown = {"warnings": [f"gpuslice: {warning}" for warning in warnings]} if warnings else {}
    return Verdict(_review({"uid": uid, "allowed": True, **shown}), uid)


def deny(uid: str, message: str, code: int, reason: str) -> Verdict:
    """`reason` as Kubernetes names them: Invalid, Forbidden, ServiceUnavailable."""
    text = message if len(message) <= _LONGEST_MESSAGE else f"{message[: _LONGEST_MESSAGE - 3]}..."
    status = {"status": "Failure", "message": f"gpuslice: {text}", "reason": reason, "code": code}
    return Verdict(_review({"uid": uid, "allowed": False, "status": status}), uid, text)


def deny_unread(beginning: bytes, message: str, code: int, reason: str) -> Verdict | None:
    """Denies a review of which no more than the beginning is known; None if that is not how a review begins.

    Any other answer would be a failure of the webhook, and a pod that is large enough would pass by itself.
    """
    found = _UID.search(beginning) if API_VERSION.encode() in beginning else None
    return None if found is None else deny(found[1].decode(), message, code, reason)


def validate_pod(body: bytes, context: Context) -> Verdict:
    """Denies a pod whose GPU request has no meaning, and lets all else pass: what is allowed is not decided here.

    This is what a configuration can let fail closed, because it can only ever stop pods that could not run anyway.
    """
    reviewed = examine(body, context)
    denial = reviewed.decision.denial
    if denial is not None and denial.malformed:
        return Verdict(reviewed.body, reviewed.uid, denial.message)
    return allow(reviewed.uid)


def validate_policy(body: bytes) -> Verdict:
    """Denies a SlicePolicy that cannot be what its author meant, with the field and the reason."""
    request = read_request(body)
    if (request.kind.group, request.kind.kind) != (GROUP, POLICY_KIND) or request.sub_resource:
        return allow(request.uid)
    if request.operation not in ("CREATE", "UPDATE"):
        return allow(request.uid)
    try:
        document = msgspec.json.decode(request.object)
        rules = parse_policy(document if isinstance(document, dict) else {})
    except PolicyError as error:
        return deny(request.uid, str(error), 422, "Invalid")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return deny(request.uid, f"this is not a {POLICY_KIND}: {error}", 422, "Invalid")
    return allow(request.uid, [_UNHELD] if any(map(_is_unheld, rules)) else ())


def _is_unheld(rule: Rule) -> bool:
    """Whether the rule limits pods that then pass by themselves when no webhook answers in time."""
    return rule.limits and rule.when_unreviewed is WhenUnreviewed.ADMIT and not rule.warn_only


def _review(response: dict[str, Any]) -> bytes:
    return _encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})
