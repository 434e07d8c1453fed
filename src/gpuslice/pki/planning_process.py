"""What is to be done about the webhook's certificates, worked out in a process of its own.

Making and checking certificates takes a library of twelve megabytes, for some milliseconds a month. The webhook has
better use for its memory, so it asks: `python -m gpuslice.pki.planning_process` reads a question and writes a plan.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime  # noqa: TC003 - msgspec reads the types

import msgspec

from gpuslice.model.errors import GpusliceError
from gpuslice.pki.authority_state import Lifetimes, State  # noqa: TC001 - msgspec reads the types


class PlanningError(GpusliceError):
    """Raised when the process that makes the plan fails."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """How things stand."""

    #: What is stored, if it can be read.
    stored: State | None
    #: What this replica serves with.
    served: State | None
    names: tuple[str, ...]
    #: Of the authorities that have issued nothing yet, those that every webhook configuration has.
    trusted: frozenset[str]
    now: datetime
    lifetimes: Lifetimes


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What should be stored and served."""

    state: State
    #: Whether that is not what is stored.
    changed: bool
    #: Who must be trusted for it to be served, and until when it can be.
    issuer: str
    ends: datetime
    #: When to ask again, if nothing happens before.
    next_change: datetime | None
    #: Why what is stored is no use.
    complaint: str = ""


def plan(question: Question) -> Plan:
    """If what is stored is lost or broken, what this replica serves with is put back: it is trusted already."""
    from gpuslice.pki import rotation, signing

    now, lifetimes = question.now, question.lifetimes
    complaint, known = "", None
    for candidate in (question.stored, question.served):
        if candidate is None or known is not None:
            continue
        try:
            rotation.check(candidate, now)
            known = candidate
        except rotation.StateError as error:
            complaint = complaint or str(error)
    known = known or rotation.fresh(question.names, now, lifetimes)
    state = rotation.advance(known, question.names, question.trusted, now, lifetimes)
    return Plan(
        state=state,
        changed=state != question.stored,
        issuer=rotation.issuer_of(state),
        ends=signing.end(state.certificate),
        next_change=rotation.next_change(state, now, lifetimes),
        complaint=complaint,
    )


async def ask(question: Question) -> Plan:
    """The plan, from a process that is gone when it has answered."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gpuslice.pki.planning_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        answer, complaint = await process.communicate(msgspec.json.encode(question))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
        raise PlanningError(f"the webhook's certificates cannot be planned: {last or process.returncode}")
    return msgspec.json.decode(answer, type=Plan)


def main() -> int:
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    sys.stdout.buffer.write(msgspec.json.encode(plan(question)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
