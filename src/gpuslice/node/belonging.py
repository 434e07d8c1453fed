"""Which session a process belongs to that never attached to one."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from gpuslice.node import processes

if TYPE_CHECKING:
    from gpuslice.node.registry import Registry
    from gpuslice.node.session import Session


_STRANGER_SECONDS: Final = 2.0


class Belonging:
    """Looks for traces: a parent, the environment it was started with, a container, a pod."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._own_container = processes.container(os.getpid())
        self._strangers: dict[int, float] = {}  # until when they are taken for strangers
        self._containers: dict[str, tuple[int, processes.Container | None]] = {}  # of one process of each session

    def session_of(self, pid: int) -> Session | None:
        """The session, or None if nothing ties the process to one. Strangers are looked at again after a while."""
        now = time.monotonic()
        if self._strangers.get(pid, 0.0) > now:
            return None
        found = self._by_family(pid) or self._by_environment(pid) or self._by_container(pid) or self._by_pod(pid)
        if found is None:
            self._strangers[pid] = now + _STRANGER_SECONDS
        return found

    def _by_family(self, pid: int) -> Session | None:
        owners = {
            session.record.owner.pid: session
            for session in self._registry.sessions.values()
            if session.record.owner is not None and session.owner_pidfd is not None
        }
        for ancestor in processes.ancestors(pid):
            if attached := self._registry.of(ancestor):
                return attached[0].session
            if ancestor in owners:
                return owners[ancestor]
        return None

    def _by_environment(self, pid: int) -> Session | None:
        named = processes.environment_variable(pid, "GPUSLICE_SESSION")
        return self._registry.sessions.get(named) if named else None

    def _by_container(self, pid: int) -> Session | None:
        """All processes of a container are in its session. The agent's own container says nothing."""
        wanted = processes.container(pid)
        if wanted is None or wanted == self._own_container:
            return None
        for session in self._registry.sessions.values():
            if session.processes and self._container_of(session) == wanted:
                return session
        return None

    def _by_pod(self, pid: int) -> Session | None:
        """A pod with a claim is known even if no process of it ever attached."""
        for session in self._registry.sessions.values():
            workload = session.record.workload
            if workload is not None and workload.pod_uid and processes.is_in_pod(pid, workload.pod_uid):
                return session
        return None

    def _container_of(self, session: Session) -> processes.Container | None:
        known = self._containers.get(session.id)
        if known is None or not self._registry.of(known[0]):
            pid = next(iter(session.processes.values())).pid
            known = self._containers[session.id] = (pid, processes.container(pid))
        return known[1]

    def forget_released(self) -> None:
        """Keeps nothing of what is gone."""
        now = time.monotonic()
        self._strangers = {pid: until for pid, until in self._strangers.items() if until > now}
        for session_id in self._containers.keys() - self._registry.sessions.keys():
            del self._containers[session_id]
