"""The audit log: who did what to which session, one JSON object per line.

A thread writes it, in the order of what happened: a slow disk delays no process of a tenant. It survives rotation (a
file that was moved away is opened anew) and a full disk (lines are lost, counted, and told when there is room again).
What a tenant can repeat at will has a bounded number of lines in a second; how many were left out is a line as well.
The agent never stops because of it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.node.errors import AgentError
from gpuslice.system import timestamps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import structlog

#: Lines of one kind that are written in a second for one session, and refusals for all: no tenant fills the disk.
_LINES_PER_WINDOW: Final = 20
_WINDOW_SECONDS: Final = 1.0
#: What a tenant can bring about as often as it likes.
_REPEATABLE: Final = ("attach", "detach", "recover", "breach")
#: What every process does: in the log only with GPUSLICE_DEBUG. Writing a line takes longer than an attach.
_FREQUENT: Final = ("attach", "detach")
#: Lines that wait for a slow disk; more are lost and counted.
_MOST_WAITING: Final = 10_000
#: How long an acknowledgement waits for the lines before it, and the end of the agent for all.
_FLUSH_SECONDS: Final = 1.0


class Audit:
    """Writes audit lines, and the log line that goes with each."""

    def __init__(self, path: Path | None, log: structlog.typing.FilteringBoundLogger) -> None:
        self._log = log
        self._window_end = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._lines: Counter[tuple[str, str]] = Counter()  # in this window, by operation and session
        self._suppressed = 0
        self._file = None if path is None else _AuditFile(path, log)

    @property
    def dropped(self) -> int:
        """Lines that are not in the log."""
        return self._suppressed + (0 if self._file is None else self._file.dropped)

    def write(
        self,
        operation: str,
        *,
        result: str = "ok",
        session_id: str = "",
        pid: int | None = None,
        uid: int | None = None,
        size: int | None = None,
        error_code: str | None = None,
        **more: object,
    ) -> None:
        """One thing that happened."""
        event: dict[str, object] = {"operation": operation, "session_id": session_id, "pid": pid, "uid": uid}
        event |= {"bytes": size, "result": result, "error_code": error_code, **more}
        if not self._may_write(operation, result, session_id):
            self._suppressed += 1
            return
        shown = {name: value for name, value in event.items() if value is not None and name != "operation"}
        tell = self._log.warning if result != "ok" else self._log.debug if operation in _FREQUENT else self._log.info
        tell(operation, operation=operation, **shown)
        if self._file is not None:
            self._file.put({"time": timestamps.micro_time(), **event})

    def reopen(self) -> None:
        """After SIGHUP: whatever is at the path now is written from here on."""
        if self._file is not None:
            self._file.call(self._file.reopen)

    async def flush(self) -> None:
        """Returns when all lines so far are written, or after a while."""
        if self._file is None or self._file.idle:
            return
        written = asyncio.Event()
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the agent has ended meanwhile
                loop.call_soon_threadsafe(written.set)

        self._file.call(tell)
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                await written.wait()

    def close(self) -> None:
        self._end_window()
        if self._file is not None:
            self._file.close()

    def _may_write(self, operation: str, result: str, session_id: str) -> bool:
        if result in ("denied", "refused"):
            kind = ("refusal", "")  # the session is what a stranger says it is: it does not count by itself
        elif operation in _REPEATABLE and result != "left_out":
            kind = (operation, session_id)
        else:
            return True
        now = time.monotonic()
        if now >= self._window_end:
            self._end_window()
            self._window_end = now + _WINDOW_SECONDS
        self._lines[kind] += 1
        if self._lines[kind] > _LINES_PER_WINDOW and self._timer is None:
            with suppress(RuntimeError):  # without a loop, the next line or the end tells what was left out
                self._timer = asyncio.get_running_loop().call_later(self._window_end - now, self._end_window)
        return self._lines[kind] <= _LINES_PER_WINDOW

    def _end_window(self) -> None:
        """Tells what was left out since the window began."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines, self._window_end = self._lines, Counter(), 0.0
        for (operation, session_id), count in lines.items():
            if count > _LINES_PER_WINDOW:
                left_out = count - _LINES_PER_WINDOW
                self.write(operation, result="left_out", session_id=session_id, lines=left_out)


class _AuditFile:
    """The file, and the thread that writes it. `put` and `call` are the event loop's, all else is the thread's."""

    def __init__(self, path: Path, log: structlog.typing.FilteringBoundLogger) -> None:
        self._path = path
        self._log = log
        self._descriptor: int | None = None
        self._inode = (0, 0)
        self._lost = 0
        self._unwritten = 0
        self._overflow = 0
        try:
            self._open()
        except OSError as error:
            raise AgentError(
                "audit_log", f"the audit log {path} cannot be opened ({error.strerror})", field="audit-log"
            ) from None
        self._waiting: queue.SimpleQueue[dict[str, object] | Callable[[], None] | None] = queue.SimpleQueue()
        self._asked = 0
        self._done = 0
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        return self._unwritten + self._overflow

    @property
    def idle(self) -> bool:
        return self._asked == self._done

    def put(self, event: dict[str, object]) -> None:
        if self._waiting.qsize() >= _MOST_WAITING:
            self._overflow += 1
            return
        self._asked += 1
        self._waiting.put(event)

    def call(self, work: Callable[[], None]) -> None:
        """Has the thread call it after the lines before."""
        self._asked += 1
        self._waiting.put(work)

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join(_FLUSH_SECONDS)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                if callable(item):
                    item()
                else:
                    self._write(item)
            except Exception:  # noqa: BLE001 - the thread goes on: one line is lost, and not all that follow
                self._unwritten += 1
                self._log.exception("an audit line is lost", path=str(self._path))
            self._done += 1
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def reopen(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        with suppress(OSError):
            self._open()

    def _open(self) -> None:
        self._descriptor = os.open(
            self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o600
        )
        found = os.fstat(self._descriptor)
        self._inode = found.st_dev, found.st_ino

    def _write(self, event: dict[str, object]) -> None:
        self._follow_rotation()
        lines = msgspec.json.encode(event) + b"\n"
        if self._lost:
            lost = {"time": event["time"], "operation": "audit", "result": "lost", "lines": self._lost}
            lines = msgspec.json.encode(lost) + b"\n" + lines
        if not self._append(lines):
            if not self._lost:
                self._log.error("the audit log cannot be written; lines are lost", path=str(self._path))
            self._lost += 1
            self._unwritten += 1
            return
        self._lost = 0

    def _append(self, lines: bytes) -> bool:
        if self._descriptor is None:
            return False
        try:
            written = os.write(self._descriptor, lines)
            if written != len(lines):  # half a line is no use
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
        except OSError:
            return False
        return written == len(lines)

    def _follow_rotation(self) -> None:
        try:
            found = self._path.stat()
            same = (found.st_dev, found.st_ino) == self._inode
        except OSError:
            same = False
        if not same or self._descriptor is None:
            self.reopen()
