"""What time does to sessions: the heartbeat, the time to live, and what is left over after both."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import msgspec

from gpuslice.model.sessions import SessionState
from gpuslice.node.sessions.attribution import may_end
from gpuslice.node.sessions.registry import boottime
from gpuslice.system import processes

if TYPE_CHECKING:
    import structlog

    from gpuslice.node.attach.server import AttachServer
    from gpuslice.node.audit import Audit
    from gpuslice.node.sessions.record import SessionRecord
    from gpuslice.node.sessions.registry import Registry
    from gpuslice.node.sessions.session import Session


class Lifetimes:
    """Called by the agent's loop in regular intervals."""

    def __init__(
        self, registry: Registry, server: AttachServer, audit: Audit, log: structlog.typing.FilteringBoundLogger
    ) -> None:
        self._registry = registry
        self.server = server
        self._audit = audit
        self._log = log

    def beat(self) -> None:
        """Tells every tenant that the agent lives."""
        now_ns = time.monotonic_ns()
        for session in self._registry.sessions.values():
            session.control.heartbeat.value = now_ns

    async def expire(self) -> None:
        """Ends what has expired: all of it for the tenants first, and then on the disk, which may take long."""
        now = boottime()
        due = [
            session
            for session in self._registry.sessions.values()
            if session.record.expires is not None
            and now >= session.record.expires
            and session.record.state is SessionState.ACTIVE
        ]
        for session in due:
            self._expire(session)
        for session in due:
            try:
                await self._registry.update(session, _expired)
            except OSError as error:  # a next agent finds it expired all the same: its record says when
                self._log.error("the state folder cannot be written", session_id=session.id, reason=error.strerror)
            self._registry.release_if_over(session)

    def _expire(self, session: Session) -> None:
        session.apply(_expired(session.record))
        self._audit.write(
            "expire", session_id=session.id, uid=session.record.owner_uid, processes=len(session.processes)
        )
        if session.record.ttl_kill:
            for process in session.processes.values():
                if not may_end(session, process.pid):
                    result = "denied"
                else:
                    result = "ok" if processes.send_signal(process.pidfd, signal.SIGKILL) else "error"
                self._audit.write(
                    "kill",
                    result=result,
                    session_id=session.id,
                    pid=process.pid,
                    error_code="expired",
                )

    def retry_releases(self) -> None:
        """Every few seconds: releases that failed before."""
        for session in list(self._registry.sessions.values()):
            self._registry.release_if_over(session)


def _expired(record: SessionRecord) -> SessionRecord:
    return msgspec.structs.replace(record, state=SessionState.EXPIRED)
