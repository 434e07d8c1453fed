"""One session: its files, and the processes that have slots in it.

Nothing here waits or watches: the registry and the agent's loop do, and call what happened.
"""

from __future__ import annotations

import asyncio
import ctypes
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuslice.model.sessions import SessionState
from gpuslice.node.errors import AttachRefusedError
from gpuslice.node.sessions import page
from gpuslice.node.sessions.cells import Cell, Cells, make_cells
from gpuslice.node.sessions.control_page import ControlPage, write_control
from gpuslice.node.sessions.record import SessionRecord, encode_record, read_record, write_record
from gpuslice.node.sessions.slot_table import EMPTY_SLOT, AttachedFile, write_attached
from gpuslice.system.files import synchronize

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from gpuslice.system.processes import ProcessIdentity

HEARTBEAT_SECONDS: Final = 0.25
_STATES: Final = {
    SessionState.ACTIVE: page.ACTIVE,
    SessionState.EXPIRED: page.EXPIRED,
    SessionState.RELEASED: page.RELEASED,
}


class Counts(NamedTuple):
    """What a process did on one GPU."""

    allocations: int = 0
    denials: int = 0
    peak: int = 0


class GpuUse(NamedTuple):
    """A session on one GPU, now and since it was made."""

    held: int
    overhead: int
    peak: int
    allocations: int
    denials: int
    recovered: int
    breaches: int


class Process:
    """An attached process. There may be thousands: no more than what is needed."""

    __slots__ = ("cells_inode", "connection", "identity", "pidfd", "seen", "session", "slot")

    def __init__(self, session: Session, slot: int, identity: ProcessIdentity, pidfd: int, cells_inode: int) -> None:
        self.session = session
        #: Which cells it has mapped: the session's, or 0 if they were lost in a restart.
        self.cells_inode = cells_inode
        self.slot = slot
        self.identity = identity
        self.pidfd = pidfd
        self.connection: socket.socket | None = None
        #: What it last said it did, per GPU: what a tenant takes back afterwards is not believed.
        self.seen: list[Counts] | None = None

    @property
    def has_other_cells(self) -> bool:
        """Whether its cells are lost. NVML alone says what it holds, so it keeps its slot until it ends."""
        return self.cells_inode == 0

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def key(self) -> tuple[int, str]:
        """A process of a container with several claims is in several sessions."""
        return self.identity.pid, self.session.id

    def believe(self, gpu: int, cell: Cell) -> Counts:
        """What it did on that GPU, with what it says now."""
        if self.seen is None:
            if not (cell.allocations or cell.denials or cell.peak):
                return _NO_COUNTS
            self.seen = [_NO_COUNTS] * self.session.gpu_count
        before = self.seen[gpu]
        counts = Counts(
            max(before.allocations, cell.allocations),
            max(before.denials, cell.denials),
            max(before.peak, cell.peak),
        )
        if counts != before:
            self.seen[gpu] = counts
        return counts


_NO_COUNTS: Final = Counts()


class Session:
    """A session that is being served."""

    def __init__(self, folder: Path, session_id: str | None = None) -> None:
        self.folder = folder
        self.control_name = f"{folder.name}/control"
        self.record = read_record(folder / "session.json", session_id or folder.name)
        self.gpu_count = len(self.record.gpus)
        self.processes: dict[int, Process] = {}
        self.owner_pidfd: int | None = None
        #: Whether `cells` are decided on. Until then they stand in for those that processes have from an earlier agent.
        self.settled = False
        #: No process gets a slot before that (CLOCK_MONOTONIC): what those without cells hold is being counted.
        self.closed_until = 0.0
        #: Held while the record or the folder changes on the disk, which takes its time.
        self.changing = asyncio.Lock()
        #: Whether a release has begun: no process gets a slot any more.
        self.releasing = False
        self.attached = AttachedFile(folder / "attached", self.gpu_count)
        try:
            self.cells = make_cells(self.gpu_count)
            try:
                self.control = ControlPage(folder / "control")
                try:
                    self.control.check(self.id, [gpu.uuid for gpu in self.record.gpus])
                except BaseException:
                    self.control.close()
                    raise
            except BaseException:
                self.cells.close()
                raise
        except BaseException:
            self.attached.close()
            raise
        for gpu in range(self.gpu_count):
            self.say_less_room(gpu)  # an agent before this one may have been killed before it said so

    @property
    def id(self) -> str:
        return self.record.id

    # ---- cells ----

    def settle(self, found: Cells | None) -> list[tuple[ProcessIdentity, int]]:
        """Goes on with the cells that an earlier agent's processes have, or with new ones where they are lost.

        Returns the processes that ended since, and what they held. A process that has other cells than the control page
        names is denied memory: it would be charged in cells that no sum includes. What it holds counts as its overhead.
        """
        if found is not None:
            self.cells.close()
            self.cells = found
        self.settled = True
        entries = self.attached.entries()
        gone = [
            (identity, self.fold(slot, identity)) for slot, identity in entries.items() if slot not in self.processes
        ]
        if found is None:
            for slot, process in self.processes.items():  # first: an agent that is killed in between loses none of them
                process.cells_inode = 0
                self.attached.write_entry(slot, process.identity, other_cells=True)
        if self.attached.cells_inode != self.cells.inode:
            self.attached.write_cells_inode(self.cells.inode)
        if found is None:
            self.control.values.slots_high = max(self.processes, default=-1) + 1
        else:  # the page may be a new one
            self.control.values.slots_high = max(self.control.values.slots_high, max(self.processes, default=-1) + 1)
        self.control.values.cells_inode = self.cells.inode
        for slot in self.processes:
            with suppress(OSError):  # no memory left: it had its cells before
                self.cells.ensure(slot)
        return gone

    # ---- slots ----

    def give_slot(self, identity: ProcessIdentity, pidfd: int) -> Process:
        """The lowest free slot. It is the process's before it is told, so that a restart in between loses nothing."""
        slot = next((number for number in range(page.SLOTS) if number not in self.processes), None)
        if slot is None:
            raise AttachRefusedError(page.ATTACH_FULL, f"all {page.SLOTS} slots of the session are taken")
        self.cells.ensure(slot)
        self.cells.clear(slot)
        if self.attached.folded == (slot, identity):  # it had this slot before: what it does from now on counts again
            self.attached.write_totals(EMPTY_SLOT)
        self.attached.write_entry(slot, identity)
        self.control.values.slots_high = max(self.control.values.slots_high, slot + 1)
        process = self.processes[slot] = Process(self, slot, identity, pidfd, self.cells.inode)
        return process

    def adopt(self, slot: int, identity: ProcessIdentity, pidfd: int, *, other_cells: bool = False) -> Process:
        """A process that an earlier agent gave its slot."""
        inode = 0 if other_cells else self.attached.cells_inode
        process = self.processes[slot] = Process(self, slot, identity, pidfd, inode)
        return process

    def take_slot(self, process: Process) -> int:
        """Clears the slot of a process that is gone, and returns the bytes that it held."""
        if not self.settled:  # its cells are not known yet, and folded when they are
            del self.processes[process.slot]
            return 0
        recovered = self.fold(process.slot, process.identity, process)
        del self.processes[process.slot]
        # What is above is cleared: tenants need not sum it any more.
        self.control.values.slots_high = max(self.processes, default=-1) + 1
        return recovered

    def fold(self, slot: int, identity: ProcessIdentity, process: Process | None = None) -> int:
        """Moves what the cells of a slot say into the totals. See gpuslice.node.sessions.slot_table for the order."""
        recovered = 0
        if self.attached.folded != (slot, identity):
            for gpu, cell in enumerate(self.cells.read_slot(slot)):
                counts = process.believe(gpu, cell) if process else Counts(cell.allocations, cell.denials, cell.peak)
                totals = self.attached.totals[gpu]
                totals.allocations += counts.allocations
                totals.denials += counts.denials
                totals.recovered_bytes += cell.held
                totals.peak_bytes = max(totals.peak_bytes, counts.peak)
                recovered += cell.held
            self.attached.write_totals((slot, identity))
        self.cells.clear(slot)
        self.attached.write_entry(slot, None)
        return recovered

    # ---- what it uses ----

    def use(self) -> list[GpuUse]:
        return [self._gpu_use(gpu) for gpu in range(self.gpu_count)]

    def _gpu_use(self, gpu: int) -> GpuUse:
        totals = self.attached.totals[gpu]
        held = overhead = 0
        allocations, denials, peak = totals.allocations, totals.denials, totals.peak_bytes
        if self.processes:
            row = self.cells.read(gpu, max(self.processes) + 1)
            for slot, process in self.processes.items():
                cell = row[slot]
                counts = process.believe(gpu, cell)
                held += cell.held
                overhead += cell.overhead
                allocations += counts.allocations
                denials += counts.denials
                peak = max(peak, counts.peak)
        return GpuUse(held, overhead, peak, allocations, denials, totals.recovered_bytes, totals.breaches)

    def count_breach(self, gpu: int) -> None:
        self.attached.totals[gpu].breaches += 1
        self.attached.write_totals()

    # ---- what the agent says ----

    def apply(self, record: SessionRecord) -> None:
        """Makes the record the session's for its tenants."""
        lowered = [
            index
            for index, gpu in enumerate(record.gpus)
            if gpu.limit_bytes < self.control.values.gpus[index].limit_bytes
        ]
        self.record = record
        fill_control(self.control.values, record)
        for gpu in lowered:
            self.say_less_room(gpu)

    def say_less_room(self, gpu: int) -> None:
        """After the limit was lowered or an overhead raised: what tenants keep spare is from before."""
        self.control.values.gpus[gpu].epoch += 1

    def say_released(self) -> None:
        """The last word to processes that still have the page."""
        self.control.values.state = page.RELEASED

    def close(self) -> None:
        self.control.close()
        self.cells.close()
        self.attached.close()


def fill_control(values: page.Control, record: SessionRecord) -> None:
    """What the record says, in the page's words."""
    # A grace of zero means: as soon as the agent is known to be gone, and one missed beat is no proof.
    values.grace_ns = int(max(record.grace_seconds, 2 * HEARTBEAT_SECONDS) * 1e9)
    values.state = _STATES[record.state]
    for index, gpu in enumerate(record.gpus):
        values.gpus[index].limit_bytes = gpu.limit_bytes
        values.gpus[index].core_percent = gpu.core_percent


def write_session(folder: Path, record: SessionRecord, now_ns: int) -> None:
    """Makes a session's files in an empty folder."""
    write_control(folder / "control", _control_values(record, now_ns))
    write_attached(folder / "attached", len(record.gpus))
    write_record(folder, encode_record(record))


def replace_control(folder: Path, now_ns: int, counting_seconds: float) -> None:
    """Gives a session another control page where the agent cannot write the one that its processes have.

    Their page names their cells, and its last heartbeat lets them allocate for as long as the grace: so no process gets
    a slot before that time is over, and what they hold by then was counted. Raises OSError, and then nothing changed.
    """
    record = read_record(folder / "session.json", folder.name)
    record.closed_until = now_ns / 1e9 + max(record.grace_seconds, 2 * HEARTBEAT_SECONDS) + counting_seconds
    new = folder / ".control.new"
    new.unlink(missing_ok=True)
    write_control(new, _control_values(record, now_ns))
    write_record(folder, encode_record(record))
    new.rename(folder / "control")
    synchronize(folder)


def _control_values(record: SessionRecord, now_ns: int) -> page.Control:
    values = page.Control(
        magic=page.MAGIC,
        version=page.VERSION,
        gpu_count=len(record.gpus),
        heartbeat_ns=now_ns,
        session=record.id.encode(),
    )
    for index, gpu in enumerate(record.gpus):
        ctypes.memmove(values.gpus[index].uuid, page.uuid_bytes(gpu.uuid), 16)
    fill_control(values, record)
    return values
