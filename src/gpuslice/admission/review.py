"""AdmissionReview bytes in, AdmissionReview bytes out (admission.k8s.io/v1)."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuslice.admission.deciding import decide
from gpuslice.admission.decisions import Decision, Denial, Outcome
from gpuslice.admission.subjects import Subject, User
from gpuslice.model.errors import GpusliceError
from gpuslice.model.pods import Pod

if TYPE_CHECKING:
    from gpuslice.admission.backends.dra import Template
    from gpuslice.admission.context import Context

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

#: The API server cuts warnings off at 256 characters when they are many; a message is for people, too.
_LONGEST_WARNING: Final = 256
_LONGEST_MESSAGE: Final = 2048
_MOST_WARNINGS: Final = 16


class ReviewError(GpusliceError):
    """Raised when the bytes are no review that can be answered: there is no uid to answer to. An edge says HTTP 400."""


class _GroupVersionKind(msgspec.Struct, frozen=True, gc=False):
    group: str = ""
    kind: str = ""


class _Request(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    uid: str
    kind: _GroupVersionKind
    operation: str = "CREATE"
    sub_resource: str = ""
    namespace: str = ""
    dry_run: bool | None = None
    user_info: User | None = None
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    api_version: str
    kind: str
    request: _Request


_decode_review: Final = msgspec.json.Decoder(_Review).decode
_decode_pod: Final = msgspec.json.Decoder(Pod).decode
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """An answered review, and what is to be done beside answering."""

    body: bytes
    decision: Decision
    namespace: str
    #: To be created before the answer is given. None on a dry run: it must leave nothing behind.
    templates: tuple[Template, ...] = ()


def review(body: bytes, context: Context) -> bytes:
    """The answer to a review. See `examine` for what else must be done."""
    return examine(body, context).body


def examine(body: bytes, context: Context) -> Reviewed:
    """Answers a review. Raises ReviewError if there is nothing to answer, and nothing else."""
    request = _read(body)
    decision = _decide(request, context)
    templates = () if request.dry_run else decision.templates
    return Reviewed(
        body=_answer(request.uid, decision), decision=decision, namespace=request.namespace, templates=templates
    )


def _read(body: bytes) -> _Request:
    try:
        found = _decode_review(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReviewError(f"the body is not an {KIND} of {API_VERSION}: {_one_line(error)}") from None
    if found.api_version != API_VERSION or found.kind != KIND:
        raise ReviewError(
            f"the body is a {found.kind[:64]!r} of {found.api_version[:64]!r}, not an {KIND} of {API_VERSION}; "
            "set admissionReviewVersions to v1"
        )
    if not found.request.uid:
        raise ReviewError("request.uid is empty, so there is nothing to answer to")
    return found.request


def _decide(request: _Request, context: Context) -> Decision:
    if request.kind.kind != "Pod" or request.kind.group or request.sub_resource:
        return Decision(outcome=Outcome.UNTOUCHED, reason="it is not a pod")
    if request.operation != "CREATE":
        return Decision(outcome=Outcome.UNTOUCHED, reason="only new pods are rewritten")
    try:
        return decide_document(request.object, request.namespace, context, request.user_info)[0]
    except ValueError as error:
        return Decision(outcome=Outcome.DENIED, denial=Denial(message=str(error), malformed=True))


def read_pod(document: bytes | msgspec.Raw) -> Pod:
    """A pod, or a pod template, in JSON. ValueError says that it is neither."""
    try:
        return _decode_pod(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"this is not a pod: {_one_line(error)}") from None


def decide_document(
    document: bytes | msgspec.Raw, namespace: str, context: Context, user: User | None = None
) -> tuple[Decision, Subject]:
    """Decides about a pod, or a pod template, in JSON, and says whom the policies were asked about.

    Raises ValueError if it is neither.
    """
    pod = read_pod(document)
    subject = Subject(
        namespace=namespace,
        namespace_labels=context.namespace_labels(namespace),
        pod_labels=pod.labels,
        service_account=pod.service_account,
        user=user or User(),
        document=document,
    )
    return decide(pod, subject, context), subject


def _answer(uid: str, decision: Decision) -> bytes:
    response: dict[str, Any] = {"uid": uid, "allowed": decision.denial is None}
    if decision.denial is not None:
        malformed = decision.denial.malformed
        response["status"] = {
            "status": "Failure",
            "message": f"gpuslice: {_shorten(decision.denial.message, _LONGEST_MESSAGE)}",
            "reason": "Invalid" if malformed else "Forbidden",
            "code": 422 if malformed else 403,
        }
    if decision.operations:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(_encode(decision.operations)).decode()
    if decision.warnings:
        shown = decision.warnings[:_MOST_WARNINGS]
        response["warnings"] = [_shorten(f"gpuslice: {warning}", _LONGEST_WARNING) for warning in shown]
    if decision.readings:
        response["auditAnnotations"] = {
            "outcome": str(decision.outcome),
            "dialect": decision.dialects,
            "policy": decision.rule.label,
        }
    return _encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def _shorten(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _one_line(error: Exception) -> str:
    return _shorten(" ".join(str(error).replace("`", "'").split()), _LONGEST_WARNING)
