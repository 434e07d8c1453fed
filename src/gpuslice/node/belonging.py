"""Which session a process belongs to that never attached to one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuslice.node import processes

if TYPE_CHECKING:
    from gpuslice.node.registry import Registry
    from gpuslice.node.session import Session


class Belonging:
    """Looks for traces: a parent, the environment it was started with, a container."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._own_cgroup = processes.cgroup(os.getpid())
        self._cgroups: dict[str, tuple[int, str | None]] = {}  # of one process of each session

    def session_of(self, pid: int) -> Session | None:
        """The session, or None if nothing ties the process to one."""
        return self._by_family(pid) or self._by_environment(pid) or self._by_cgroup(pid)

    def _by_family(self, pid: int) -> Session | None:
        owners = {
            session.record.owner.pid: session
            for session in self._registry.sessions.values()
            if session.record.owner is not None and session.owner_pidfd is not None
        }
        for ancestor in processes.ancestors(pid):
            attached = self._registry.processes.get(ancestor)
            if attached is not None:
                return attached.session
            if ancestor in owners:
                return owners[ancestor]
        return None

    def _by_environment(self, pid: int) -> Session | None:
        named = processes.environment_variable(pid, "GPUSLICE_SESSION")
        return self._registry.sessions.get(named) if named else None

    def _by_cgroup(self, pid: int) -> Session | None:
        """A container has a cgroup of its own. That of the agent, or the root, says nothing."""
        wanted = processes.cgroup(pid)
        if wanted is None or wanted == self._own_cgroup:
            return None
        for session in self._registry.sessions.values():
            if session.processes and self._cgroup_of(session) == wanted:
                return session
        return None

    def _cgroup_of(self, session: Session) -> str | None:
        known = self._cgroups.get(session.id)
        if known is None or known[0] not in self._registry.processes:
            pid = next(iter(session.processes.values())).pid
            known = self._cgroups[session.id] = (pid, processes.cgroup(pid))
        return known[1]

    def forget_released(self) -> None:
        for session_id in self._cgroups.keys() - self._registry.sessions.keys():
            del self._cgroups[session_id]
