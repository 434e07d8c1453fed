"""What `gpuslice ps` and `gpuslice session` print for people."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gpuslice.cli import output
from gpuslice.model.values.durations import format_seconds
from gpuslice.model.values.quantities import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.node.admin.messages import GpuView, SessionView

_AMOUNTS: Final = ("Limit", "Held", "Overhead", "Peak")
_COUNTS: Final = ("Allocations", "Denials", "Breaches")
#: In a table that is too wide for the screen, what is left out first.
_EXPENDABLE: Final = ("Breaches", "Allocations", "Overhead", "Peak", "Processes", "Age", "TTL", "Denials")


def print_sessions(sessions: Sequence[SessionView], *, wide: bool = False) -> None:
    """One line for each GPU of each session."""
    console = output.console()
    if not sessions:
        console.print("No session: start one with `gpuslice run --limit 256MB -- COMMAND`.")
        return
    names = ("Name",) if wide else ()
    pods = ("Pod",) if any(session.workload is not None for session in sessions) else ()
    more = ("Owner", "On breach", "Commands") if wide else ()
    table = output.table(
        "Session", *names, *pods, "State", "GPU", right=(*_AMOUNTS, "Processes", *_COUNTS, "Age", "TTL")
    )
    for title in more:
        table.add_column(title, overflow="fold")
    for session in sessions:
        for index, gpu in enumerate(session.gpus):
            named = [*([output.plain(session.name)] if wide else []), *([pod_name(session)] if pods else [])]
            row = [output.plain(session.id), *named, session.state, gpu_name(gpu, whole=wide)]
            row += [*_amounts(gpu), str(_processes_on(session, index)), *_counts(gpu), age(session), time_left(session)]
            if wide:
                row += [_owner(session), session.on_breach, _commands(session, index)]
            table.add_row(*row)
    console.print(table if wide else output.fit(table, console, _EXPENDABLE))


def print_session(session: SessionView) -> None:
    """Everything about one session, except its token."""
    console = output.console()
    for title, value in (
        ("Session", session.id),
        ("Name", session.name),
        ("State", session.state),
        *((("Pod", pod_name(session)),) if session.workload is not None else ()),
        ("Age", age(session)),
        ("TTL", time_left(session) + (", then its processes are ended" if session.ttl_kill else "")),
        ("Grace", format_seconds(session.grace_seconds)),
        ("On breach", session.on_breach),
        ("Owner", _owner(session)),
        ("Socket", session.socket),
    ):
        console.print(f"{title + ':':<11}{output.plain(value)}")
    console.print()
    gpus = output.table("GPU", "UUID", right=_AMOUNTS + _COUNTS)
    for gpu in session.gpus:
        gpus.add_row(short_model(gpu.model), gpu.uuid, *_amounts(gpu), *_counts(gpu))
    console.print(output.fit(gpus, console, ("GPU", "Breaches", "Overhead", "Allocations", "Peak")))
    console.print()
    if not session.processes:
        console.print("No process is in it.")
        return
    processes = output.table("PID", "Command", right=("Held", "Overhead"))
    for process in session.processes:
        held, overhead = sum(process.held_bytes), sum(process.overhead_bytes)
        processes.add_row(str(process.pid), output.plain(process.command), format_bytes(held), format_bytes(overhead))
    console.print(processes)


def pod_name(session: SessionView) -> str:
    """`namespace/pod container`, as far as it is known; empty if Kubernetes did not ask for the session."""
    workload = session.workload
    if workload is None:
        return ""
    return output.plain(f"{workload.namespace}/{workload.pod or workload.claim} {workload.container}".strip())


def gpu_name(gpu: GpuView, *, whole: bool = False) -> str:
    """The model, and as much of the UUID as tells a machine's GPUs apart."""
    return f"{short_model(gpu.model)} {gpu.uuid if whole else short_uuid(gpu.uuid)}".strip()


def short_model(model: str) -> str:
    """Without the words that every model begins with."""
    return model.removeprefix("NVIDIA ").removeprefix("Tesla ").removeprefix("GeForce ")


def short_uuid(uuid: str) -> str:
    return uuid[: len("GPU-00000000")]


def age(session: SessionView) -> str:
    return format_seconds(time.time() - session.created)


def time_left(session: SessionView) -> str:
    if session.expires_in is None:
        return "-"
    return format_seconds(session.expires_in) if session.expires_in > 0 else "over"


def _amounts(gpu: GpuView) -> list[str]:
    return [format_bytes(amount) for amount in (gpu.limit_bytes, gpu.held_bytes, gpu.overhead_bytes, gpu.peak_bytes)]


def _counts(gpu: GpuView) -> list[str]:
    return [str(count) for count in (gpu.allocations, gpu.denials, gpu.breaches)]


def _processes_on(session: SessionView, gpu: int) -> int:
    """How many of its processes have anything on that GPU; with one GPU, all that are attached."""
    if len(session.gpus) == 1:
        return len(session.processes)
    return sum(1 for process in session.processes if process.held_bytes[gpu] or process.overhead_bytes[gpu])


def _commands(session: SessionView, gpu: int) -> str:
    if gpu > 0:
        return ""
    return "\n".join(f"{process.pid} {output.plain(process.command)}" for process in session.processes)


def _owner(session: SessionView) -> str:
    pid = "" if session.owner.pid is None else f", process {session.owner.pid}"
    return f"user {session.owner.uid}{pid}"
