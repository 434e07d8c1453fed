"""Finds a session's cells again after a restart of the agent: in the processes that have them open.

A tenant chooses what its descriptors are: a file of a FUSE or NFS server that never answers, a FIFO, a device. So
nothing is asked of a file, and nothing opened, before the kernel's own word that it is a memfd:

    1. the link /proc/PID/fd/N has the name of cells (a string that the kernel keeps);
    2. an O_PATH descriptor pins what the number means, without an open;
    3. its /proc/self/fdinfo names the mount of the kernel's own shared memory, and the inode that was written down.

The search is bounded in descriptors and in time, and in threads of its own: what a tenant does to it costs the agent's
loop nothing, and other sessions are served meanwhile. Sessions take turns: first every session's few likely descriptors
are looked at, where programs that hide nothing have theirs, and then the rest, a little of each session at a time. So a
tenant with many sessions and descriptors makes no other session's search end without what it would find.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuslice.node.sessions import cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Where the interposer keeps the descriptor, unless the program has so many open already (session.c); or not at all.
_LIKELY: Final = (*range(300, 332), *range(3, 64))
_MOST_LIKELY: Final = range(300, 308)
_FIRST_PROCESSES: Final = 4  # of a session, whose most likely descriptors are looked at first
_PER_PROCESS: Final = 4096
_SECONDS: Final = 0.5  # of a session's search, in time that a thread works for it: not what others make it wait
_TURN_SECONDS: Final = 0.02
_STUCK_SECONDS: Final = 10.0  # in one turn: the thread does not come back
_THREADS: Final = 2
_PAUSE: Final = ""


class Wanted(NamedTuple):
    """The cells of a session, and the processes that were attached to it and live."""

    session_id: str
    inode: int
    gpu_count: int
    pids: tuple[int, ...]


class Result(NamedTuple):
    """What a search found: a descriptor of the agent's own, or nothing."""

    session_id: str
    descriptor: int | None


class CellsSearch:
    """Searches for the cells of many sessions, which take turns."""

    def __init__(self) -> None:
        self._searches: queue.SimpleQueue[_Search] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._mount = _shared_memory_mount()
        #: By thread: whose turn it is, and since when.
        self._turns: dict[int, tuple[str, float]] = {}

    def start(self, wanted: Sequence[Wanted]) -> None:
        """Each gets a result, unless its search is stuck."""
        for each in wanted:
            self._searches.put(_Search(each))
        for _ in range(min(_THREADS, len(wanted))):
            self._start_thread()

    def _start_thread(self) -> None:
        threading.Thread(target=self._run, name="cells", daemon=True).start()

    def result(self, timeout: float) -> Result | None:
        """The next result, or None if there is none by then."""
        try:
            return self._results.get(timeout=timeout) if timeout > 0 else self._results.get_nowait()
        except queue.Empty:
            return None

    def stuck(self) -> list[str]:
        """Sessions whose search the kernel does not come back from, each once. Another thread takes the next turns."""
        latest = time.monotonic() - _STUCK_SECONDS
        found = [(thread, turn[0]) for thread, turn in list(self._turns.items()) if turn[1] < latest]
        for thread, _ in found:
            self._turns.pop(thread, None)
            self._start_thread()
        return [session_id for _, session_id in found]

    def _run(self) -> None:
        thread = threading.get_ident()
        while True:
            try:
                search = self._searches.get_nowait()
            except queue.Empty:
                return
            session_id = search.wanted.session_id
            self._turns[thread] = session_id, time.monotonic()
            descriptor = search.take_turn(self._mount)
            self._turns.pop(thread, None)
            if descriptor is None and not search.over:
                self._searches.put(search)
            else:
                self._results.put(Result(session_id, descriptor))


class _Search:
    """One session's search, in turns."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.over = False
        self._paths = _paths(wanted.pids)
        self._seconds = _SECONDS

    def take_turn(self, mount: bytes) -> int | None:
        """A new descriptor of the cells if this turn finds them. The first turn ends after the most likely places."""
        began = now = time.thread_time()
        for path in self._paths:
            if path == _PAUSE:
                return None
            if (found := _open(path, self.wanted, mount)) is not None:
                return found
            now = time.thread_time()
            if now - began > min(_TURN_SECONDS, self._seconds):
                break
        else:
            self.over = True
        self._seconds -= now - began
        self.over = self.over or self._seconds <= 0
        return None


def find(wanted: Wanted, mount: bytes) -> int | None:
    """A new descriptor of the cells, for reading and writing, from whichever process has them."""
    search = _Search(wanted)
    while not search.over:
        if (found := search.take_turn(mount)) is not None:
            return found
    return None


def _paths(pids: Sequence[int]) -> Iterator[str]:
    """Descriptors of the processes: where ours should be in each, then all of each, up to so many."""
    for pid in pids[:_FIRST_PROCESSES]:
        for number in _MOST_LIKELY:
            yield f"/proc/{pid}/fd/{number}"
    yield _PAUSE
    for pid in pids:
        for number in _LIKELY:
            yield f"/proc/{pid}/fd/{number}"
    for pid in pids:
        yield from _all_of(pid)


def _all_of(pid: int) -> list[str]:
    """At once: thousands of searches that wait for their turns have no folder open."""
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        return [entry.path for entry in itertools.islice(entries, _PER_PROCESS)]
    return []


def _open(path: str, wanted: Wanted, mount: bytes) -> int | None:
    try:
        if str(Path(path).readlink()) != cells.LINK:
            return None
        pinned = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not _is_on(pinned, mount, wanted.inode):
            return None
        # A lease that a tenant holds on it makes this fail, and not wait.
        opened = os.open(f"/proc/self/fd/{pinned}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    finally:
        os.close(pinned)
    if os.fstat(opened).st_ino == wanted.inode and cells.is_sealed(opened, wanted.gpu_count):
        return opened
    os.close(opened)
    return None


def _is_on(descriptor: int, mount: bytes, inode: int) -> bool:
    """Whether the descriptor is on that mount and, where the kernel says it (since 5.14), is that inode."""
    fields = _fdinfo(descriptor)
    return fields.get(b"mnt_id") == mount and fields.get(b"ino", b"%d" % inode) == b"%d" % inode


def _fdinfo(descriptor: int) -> dict[bytes, bytes]:
    opened = os.open(f"/proc/self/fdinfo/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(opened, 4096)
    finally:
        os.close(opened)
    return {name: value.strip() for name, _, value in (line.partition(b":") for line in content.splitlines())}


def _shared_memory_mount() -> bytes:
    """The number of the mount that every memfd is on."""
    own = os.memfd_create("gpuslice-mount", os.MFD_CLOEXEC)
    try:
        return _fdinfo(own)[b"mnt_id"]
    finally:
        os.close(own)
