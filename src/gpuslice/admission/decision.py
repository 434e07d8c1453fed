"""What admission decided about a pod, with everything that led to it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuslice.model.policies import NO_RULE, Rule

if TYPE_CHECKING:
    from gpuslice.admission.claims.claim_templates import Template
    from gpuslice.admission.granting import Grant
    from gpuslice.admission.patching import Operation
    from gpuslice.dialects.recognizing import Reading
    from gpuslice.policies.rule_set import Verdict


class Outcome(StrEnum):
    """How it ended; also a label of metrics."""

    UNTOUCHED = "untouched"
    REWRITTEN = "rewritten"
    DENIED = "denied"
    WARNED = "warned"  # a warn-only rule: the pod passes, and a warning says what would have happened


class Denial(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Why a pod may not run. `malformed` tells a request without meaning from one that is not allowed."""

    message: str
    malformed: bool


class Decision(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One pod's way through admission."""

    outcome: Outcome
    #: Why nothing was to be done, where nothing was.
    reason: str = ""
    readings: tuple[Reading, ...] = ()
    rule: Rule = NO_RULE
    #: Rules whose expressions had no answer.
    failures: tuple[Verdict, ...] = ()
    grants: tuple[Grant, ...] = ()
    operations: tuple[Operation, ...] = ()
    #: Claim templates that the controller will make in the pod's namespace.
    templates: tuple[Template, ...] = ()
    warnings: tuple[str, ...] = ()
    denial: Denial | None = None

    @property
    def dialects(self) -> str:
        """`castslice`, or `hami, vcuda`; empty if none is spoken."""
        if len(self.readings) == 1:
            return self.readings[0].dialect
        return ", ".join(sorted({reading.dialect for reading in self.readings}))

    @property
    def backends(self) -> str:
        return ", ".join(sorted({given.backend for given in self.grants}))


class Answer(NamedTuple):
    """A decision, and the response to the API server."""

    #: Without the operations: they are in the response, and answers are kept.
    decision: Decision
    #: The response but for its uid, as JSON.
    response: bytes


#: Why a pod with whole GPUs, or with claims of its own, is left as it is.
NO_DIALECT: Final = "it asks for no GPU in a dialect"
#: Of most pods of a cluster.
NO_GPU: Final = Decision(outcome=Outcome.UNTOUCHED, reason="it asks for no GPU")
