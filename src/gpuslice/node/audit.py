"""The audit log: who did what to which session, one JSON object per line.

It survives rotation (a file that was moved away is opened anew) and a full disk (lines are lost, counted, and told when
there is room again). The agent never waits for it and never stops because of it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.node.errors import AgentError

if TYPE_CHECKING:
    from pathlib import Path

    import structlog

#: Refusals that are written in a second: a stranger who knocks all day does not fill the disk.
_REFUSALS: Final = 20
#: What every process does: in the log only with GPUSLICE_DEBUG. Writing a line takes longer than an attach.
_FREQUENT: Final = ("attach", "detach")


class Audit:
    """Writes audit lines, and the log line that goes with each."""

    def __init__(self, path: Path | None, log: structlog.typing.FilteringBoundLogger) -> None:
        self._path = path
        self._log = log
        self._descriptor: int | None = None
        self._inode = (0, 0)
        self._lost = 0
        self._refusals = (0, 0)  # the second, and how many in it
        self.dropped = 0
        if path is not None:
            try:
                self._open(path)
            except OSError as error:
                raise AgentError(
                    "audit_log", f"the audit log {path} cannot be opened ({error.strerror})", field="audit-log"
                ) from None

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
        if result in ("denied", "refused") and not self._may_write_refusal():
            self.dropped += 1
            return
        shown = {name: value for name, value in event.items() if value is not None and name != "operation"}
        tell = self._log.warning if result != "ok" else self._log.debug if operation in _FREQUENT else self._log.info
        tell(operation, operation=operation, **shown)
        if self._path is not None:
            self._write({"time": datetime.now(UTC).isoformat(), **event})

    def reopen(self) -> None:
        """After SIGHUP, or when the file is no longer the one at its path."""
        if self._path is None:
            return
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        with suppress(OSError):
            self._open(self._path)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
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
            self.dropped += 1
            return
        self._lost = 0

    def _append(self, lines: bytes) -> bool:
        if self._descriptor is None:
            return False
        try:
            written = os.write(self._descriptor, lines)
            if written != len(lines):  # half a line helps nobody
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
        except OSError:
            return False
        return written == len(lines)

    def _follow_rotation(self) -> None:
        assert self._path is not None
        try:
            found = self._path.stat()
            same = (found.st_dev, found.st_ino) == self._inode
        except OSError:
            same = False
        if not same or self._descriptor is None:
            self.reopen()

    def _may_write_refusal(self) -> bool:
        now = int(time.monotonic())
        second, count = self._refusals
        self._refusals = (now, 1) if now != second else (now, count + 1)
        return self._refusals[1] <= _REFUSALS
