"""One frame of `gpuslice top`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.text import Text

from gpuslice.cli import output
from gpuslice.cli.tables.session_tables import age, short_model, short_uuid, time_left
from gpuslice.model.values.durations import format_seconds
from gpuslice.model.values.quantities import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console
    from rich.table import Table

    from gpuslice.node.admin.messages import AgentView, GpuView, InventoryGpu, SessionView

_BAR_WIDTH: Final = 20
_NEARLY_FULL: Final = 0.9
#: Lines that a table has in any case: title, rule, a row or how many rows there are, and a blank.
_LEAST: Final = 4


def frame(agent: AgentView, sessions: Sequence[SessionView], console: Console, *, height: int | None = None) -> Group:
    """The agent in a line, then the GPUs, the sessions and their processes; as much as fits into so many lines."""
    indexes = {gpu.uuid: gpu.index for gpu in agent.gpus}
    headline = _headline(agent)
    if not agent.gpus:
        headline = Text("\n").join([headline, Text("The agent sees no GPU.", "yellow")])
    parts = [
        _Part("GPUs", _gpus(agent.gpus, sessions), ("UUID", "Model")),
        _Part("sessions", _sessions(sessions, indexes), ("Age", "Peak", "Breaches", "TTL", "Denials")),
        _Part("processes", _processes(sessions), ()),
    ]
    there = [part for part in parts if part.table.row_count]
    shown: list[Text | Table] = [headline, Text()]
    left = None if height is None else height - _lines(headline, console) - 1
    for number, part in enumerate(there, start=1):
        room = None if left is None else left - _LEAST * len(there[number:])
        pieces = [*part.within(room, console), Text()]
        shown += pieces
        left = None if left is None else left - sum(_lines(piece, console) for piece in pieces)
    if not sessions:
        shown += [Text("No session: start one with `gpuslice run --limit 256MB -- COMMAND`."), Text()]
    return Group(*(shown if height is None else shown[:-1]))


@dataclass(frozen=True)
class _Part:
    """A table of the frame, and what it is of."""

    what: str
    table: Table
    #: Columns that are left out first where the screen is narrow.
    expendable: tuple[str, ...]

    def within(self, room: int | None, console: Console) -> Iterator[Text | Table]:
        """The table in so many lines; what has no room is counted."""
        whole = output.fit(self.table, console, self.expendable)
        kept = whole.row_count
        table = whole
        while room is not None and kept and _lines(table, console) + (kept < whole.row_count) > room:
            kept -= 1
            table = output.with_rows(whole, kept)
        if kept:
            yield table
        if kept < whole.row_count:
            yield Text(f"... and {whole.row_count - kept} more {self.what}: see `gpuslice ps -o wide`", "yellow")


def _lines(part: Text | Table, console: Console) -> int:
    return len(console.render_lines(part, pad=False))


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
        if gpu.lost:
            table.add_row(gpu.index, short_model(gpu.model), short_uuid(gpu.uuid), Text("fell off the bus", "red"))
            continue
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
