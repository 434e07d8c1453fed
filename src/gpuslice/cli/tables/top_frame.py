"""One frame of `gpuslice top`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.text import Text

from gpuslice.cli import output
from gpuslice.cli.tables.session_tables import age, short_model, short_uuid, time_left
from gpuslice.model.durations import format_seconds
from gpuslice.model.quantities import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console
    from rich.table import Table

    from gpuslice.node.admin.messages import AgentView, GpuView, InventoryGpu, SessionView

_BAR_WIDTH: Final = 20
_NEARLY_FULL: Final = 0.9


def frame(agent: AgentView, sessions: Sequence[SessionView], console: Console) -> Group:
    """The agent in a line, then the GPUs, the sessions and their processes."""
    gpus = output.fit(_gpus(agent.gpus, sessions), console, ("UUID", "Model"))
    parts: list[Text | Table] = [_headline(agent), gpus]
    if sessions:
        indexes = {gpu.uuid: gpu.index for gpu in agent.gpus}
        parts.append(output.fit(_sessions(sessions, indexes), console, ("Age", "Peak", "Breaches", "TTL", "Denials")))
    else:
        parts.append(Text("No session: start one with `gpuslice run --limit 256MB -- COMMAND`."))
    if any(session.processes for session in sessions):
        parts.append(_processes(sessions))
    return Group(*(line for part in parts for line in (part, Text())))


def _headline(agent: AgentView) -> Text:
    line = Text.assemble(
        ("gpuslice top", "bold"),
        f"  {time.strftime('%H:%M:%S')}  agent {agent.pid}, up {format_seconds(agent.uptime_seconds)}",
        f"  sessions: {agent.sessions}  processes: {agent.processes}",
    )
    if not agent.nvml:
        line.append(f"  no cross-check with NVML: {output.plain(agent.nvml_error)}", "red")
    return line


def _gpus(gpus: Sequence[InventoryGpu], sessions: Sequence[SessionView]) -> Table:
    """What the sessions hold of each GPU, and what they were promised."""
    table = output.table("GPU", "Model", "UUID", "In use", right=("", "Promised", "Memory"))
    for gpu in gpus:
        shares = [share for session in sessions for share in session.gpus if share.uuid == gpu.uuid]
        used, promised = sum(map(_used, shares)), sum(share.limit_bytes for share in shares)
        table.add_row(
            gpu.index,
            short_model(gpu.model),
            short_uuid(gpu.uuid),
            _bar(used, gpu.memory_bytes),
            format_bytes(used),
            Text(format_bytes(promised), "yellow" if promised > gpu.memory_bytes else ""),
            format_bytes(gpu.memory_bytes),
        )
    return table


def _sessions(sessions: Sequence[SessionView], indexes: Mapping[str, str]) -> Table:
    table = output.table(
        "Session", "State", "GPU", "Of its limit", right=("", "Limit", "Peak", "Denials", "Breaches", "Age", "TTL")
    )
    for session in sessions:
        for gpu in session.gpus:
            table.add_row(
                output.plain(session.id),
                Text(session.state, "" if session.state == "active" else "yellow"),
                indexes.get(gpu.uuid, short_uuid(gpu.uuid)),
                _bar(_used(gpu), gpu.limit_bytes),
                format_bytes(_used(gpu)),
                format_bytes(gpu.limit_bytes),
                format_bytes(gpu.peak_bytes),
                Text(str(gpu.denials), "yellow" if gpu.denials else ""),
                Text(str(gpu.breaches), "red" if gpu.breaches else ""),
                age(session),
                time_left(session),
            )
    return table


def _processes(sessions: Sequence[SessionView]) -> Table:
    table = output.table("PID", "Session", "Command", right=("Held", "Overhead"))
    for session in sessions:
        for process in sorted(session.processes, key=lambda process: sum(process.held_bytes), reverse=True):
            held, overhead = sum(process.held_bytes), sum(process.overhead_bytes)
            table.add_row(
                str(process.pid),
                output.plain(session.id),
                Text(output.plain(process.command), no_wrap=True, overflow="ellipsis"),
                format_bytes(held),
                format_bytes(overhead),
            )
    return table


def _used(gpu: GpuView) -> int:
    return gpu.held_bytes + gpu.overhead_bytes


def _bar(used: int, total: int) -> ProgressBar:
    full = total > 0 and used >= _NEARLY_FULL * total
    style = "red" if full else "green"
    return ProgressBar(
        total=max(total, 1), completed=min(used, total), width=_BAR_WIDTH, complete_style=style, finished_style=style
    )
