"""SlicePolicy objects as the API server holds them.

Reading one never fails, whatever is stored: a policy that makes no sense has a complaint instead of rules. A policy
that did not change is not read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuslice.kube.resources import Metadata, Resource
from gpuslice.policies import schema
from gpuslice.policies.parsing import PolicyError, parse_policy

if TYPE_CHECKING:
    from gpuslice.model.policies import Rule

SLICE_POLICIES: Final = Resource(schema.GROUP, schema.VERSION, "slicepolicies")


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    """One of status.conditions, written whole: a message may be empty but never absent."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class Status(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class StoredPolicy(msgspec.Struct, frozen=True):
    """The object, its spec not decoded yet."""

    metadata: Metadata
    spec: msgspec.Raw = msgspec.Raw(b"null")
    status: Status = Status()


@dataclass(frozen=True, slots=True, eq=False)
class ParsedPolicy:
    """What one generation of one object says."""

    uid: str
    generation: int
    rules: tuple[Rule, ...] = ()
    #: Why it has no rules; empty if it has.
    complaint: str = ""


def parse(stored: StoredPolicy, known: ParsedPolicy | None = None) -> ParsedPolicy:
    """The rules of the policy, or why it has none. `known` is returned if it is of this object and generation."""
    metadata = stored.metadata
    if known is not None and (known.uid, known.generation) == (metadata.uid, metadata.generation):
        return known
    try:
        rules, complaint = parse_policy(_document(stored)), ""
    except PolicyError as error:
        rules, complaint = (), str(error)
    except Exception as error:  # noqa: BLE001 - a user can store it, so it must not end the process
        rules, complaint = (), f"SlicePolicy {metadata.name}: it cannot be read ({type(error).__name__}: {error})"
    return ParsedPolicy(metadata.uid, metadata.generation, rules, complaint)


def _document(stored: StoredPolicy) -> dict[str, Any]:
    return {
        "apiVersion": schema.API_VERSION,
        "kind": schema.KIND,
        "metadata": {"name": stored.metadata.name},
        "spec": msgspec.json.decode(stored.spec),
    }
