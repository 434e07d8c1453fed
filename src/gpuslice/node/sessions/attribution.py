"""Which session a process belongs to that never attached to one.

Breaches are counted against that session, and it may end the process, so belonging is proven and never believed. In
this order:

    1. an ancestor of the process is attached, or is the living owner of a session;
    2. the process is in a container that an attached process is in;
    3. the process is in a pod that has a session;
    4. it was started with the session's name in its environment, as the session's owner, outside of containers. Anyone
       can write any name there: so this proves nothing of a pod's session, and nothing for other users.

A user's session has that user's processes and no others: two users may share a service, a container or a shell, and
neither answers for what the other takes. Only root answers for all that it starts.

A process is known by its number and its start time. All evidence is read in a thread, within a budget: what there was
no time for has its turn before what was looked at already.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from gpuslice.system import processes
from gpuslice.system.pod_cgroups import KubeletRoot, PodPlace
from gpuslice.system.processes import ProcessIdentity
from gpuslice.system.supervised.threads import InspectionTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuslice.node.sessions.registry import Registry
    from gpuslice.node.sessions.session import Session
    from gpuslice.system.supervised.threads import InspectionThread

_LOOK_AGAIN_SECONDS: Final = 2.0  # at processes that belong to no session: one may be made around them
_BUDGET_SECONDS: Final = 0.1  # of a round
_MOST_PROCESSES: Final = 256  # in a round
_MOST_ENVIRONMENTS: Final = 16  # in a round; each is a read of its own, because it may hang
_ENVIRONMENTS_SECONDS: Final = 1.0
_MOST_KNOWN: Final = 10_000
_VARIABLE: Final = "GPUSLICE_SESSION"


@dataclass(frozen=True, slots=True)
class Container:
    """A container that no kubelet made: its cgroups and its view of the file tree, both."""

    cgroups: str
    mounts: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the kernel says of a process. None of it can be chosen by the process alone."""

    identity: ProcessIdentity
    ancestors: tuple[ProcessIdentity, ...] = ()  # the nearest first
    uid: int | None = None
    pod: PodPlace | None = None
    container: Container | None = None
    #: In the file tree of the machine or of the agent itself: in no container.
    at_home: bool = False

    def containers(self) -> PodPlace | Container | None:
        """What tells its container from others; None outside of containers."""
        return self.pod if self.pod is not None and self.pod.container else self.container


@dataclass(slots=True)
class _Known:
    evidence: Evidence
    looked: float
    named: str | None = None  # in its environment; None if that was not read
    proven: str = ""  # the session: what was proven once stays so, whatever becomes of its parents


@dataclass(frozen=True, slots=True)
class Member:
    """A process that is proven to belong to a session."""

    session: Session
    identity: ProcessIdentity


class Surroundings:
    """What is the same for all processes: where the agent itself is."""

    def __init__(self) -> None:
        own = processes.cgroups(os.getpid()) or ""
        self.root = KubeletRoot.seen_from(own)
        self._homes = {mounts for pid in (1, os.getpid()) if (mounts := processes.mounts(pid)) is not None}
        self._own_cgroups = own

    def evidence(self, pid: int) -> Evidence | None:
        """None if there is no such process, or it ended while it was looked at. Reads none of the process's memory."""
        before = processes.status(pid)
        cgroups, mounts = processes.cgroups(pid), processes.mounts(pid)
        ancestors, uid = processes.ancestors(pid), processes.real_uid(pid)
        after = processes.status(pid)
        if before is None or after is None or before.start_time != after.start_time:
            return None
        at_home = mounts in self._homes
        in_container = cgroups is not None and mounts is not None and not at_home and not _is_root(cgroups)
        return Evidence(
            ProcessIdentity(pid, before.start_time),
            tuple(ancestors),
            uid,
            None if cgroups is None else self.root.place(cgroups),
            Container(cgroups, mounts) if in_container and cgroups is not None and mounts is not None else None,
            at_home=at_home,
        )

    def pod_of(self, pid: int) -> str | None:
        """The UID of the pod that a process is in; empty if in none, and None if that cannot be told.

        The kernel says "/" of a process whose first thread has ended.
        """
        cgroups, status = processes.cgroups(pid), processes.status(pid)
        if cgroups is None or status is None or status.ended:
            return None
        place = self.root.place(cgroups)
        return "" if place is None else place.pod_uid


def _is_root(cgroups: str) -> bool:
    return all(line.endswith(":/") for line in cgroups.splitlines())


class Attribution:
    """Remembers what was seen of processes that use a GPU without a slot, and says whose they are."""

    def __init__(self, registry: Registry, thread: InspectionThread, surroundings: Surroundings) -> None:
        self._registry = registry
        self._thread = thread
        self._surroundings = surroundings
        self._known: OrderedDict[int, _Known] = OrderedDict()  # those looked at longest ago first
        self._containers: dict[
            str, tuple[ProcessIdentity, PodPlace | Container | None]
        ] = {}  # of one process per session

    # ---- looking ----

    async def look_at(self, pids: Iterable[int]) -> None:
        """Looks at processes of which nothing is known, or nothing new for a while, as far as the budget goes."""
        wanted = dict.fromkeys(pids)
        self._forget(wanted)
        due = self._due(wanted)
        attached = self._sessions_without_container()
        if not wanted:
            return
        with suppress(InspectionTimeoutError):
            seen = await self._thread.run(partial(self._look, [*attached.values(), *due]))
            for session_id, identity in attached.items():
                evidence = seen.get(identity.pid)
                if evidence is not None and evidence.identity == identity:
                    self._containers[session_id] = identity, evidence.containers()
            for pid in due:
                if pid in seen:
                    self._remember(pid, seen[pid])
        await self._read_environments(wanted)

    def _due(self, wanted: Iterable[int]) -> list[int]:
        """Those never seen before, then those seen longest ago."""
        oldest = time.monotonic() - _LOOK_AGAIN_SECONDS
        new = [pid for pid in wanted if pid not in self._known]
        return [*new, *(pid for pid, known in self._known.items() if known.looked <= oldest)][:_MOST_PROCESSES]

    def _sessions_without_container(self) -> dict[str, ProcessIdentity]:
        found = {}
        for session in self._registry.sessions.values():
            known = self._containers.get(session.id)
            members = session.processes.values()
            if members and (known is None or not any(process.identity == known[0] for process in members)):
                found[session.id] = next(iter(members)).identity
            if len(found) == _MOST_PROCESSES:
                break
        return found

    def _look(self, wanted: Sequence[int | ProcessIdentity]) -> dict[int, Evidence | None]:
        """In the thread. What is not in the answer was not looked at: the time was over."""
        end = time.monotonic() + _BUDGET_SECONDS
        seen: dict[int, Evidence | None] = {}
        for each in wanted:
            pid = each if isinstance(each, int) else each.pid
            seen[pid] = self._surroundings.evidence(pid)
            if time.monotonic() > end:
                break
        return seen

    def _remember(self, pid: int, evidence: Evidence | None) -> None:
        before = self._known.pop(pid, None)
        if evidence is None:
            return
        known = self._known[pid] = _Known(evidence, time.monotonic())
        if before is not None and before.evidence.identity == evidence.identity:
            known.named, known.proven = before.named or None, before.proven

    async def _read_environments(self, wanted: Iterable[int]) -> None:
        """Of those that only this could prove anything of: a read of a process's memory, each with its own deadline."""
        owners = {session.record.owner_uid for session in self._registry.sessions.values() if _is_run(session)}
        left, end = _MOST_ENVIRONMENTS, time.monotonic() + _ENVIRONMENTS_SECONDS
        for pid in wanted:
            known = self._known.get(pid)
            if known is None or known.named is not None or not known.evidence.at_home:
                continue
            if known.evidence.uid not in owners or self._by_kernel(known.evidence, "") is not None:
                continue
            known.named = ""  # and not again before it is looked at anew
            with suppress(InspectionTimeoutError):
                read = partial(_variable, known.evidence.identity)
                known.named = await self._thread.run(read, tenant=f"uid {known.evidence.uid}", seconds=0.5)
            left -= 1
            if left == 0 or time.monotonic() > end:
                return

    def _forget(self, wanted: dict[int, None]) -> None:
        """Keeps nothing of what is gone."""
        for pid in self._known.keys() - wanted.keys():
            del self._known[pid]
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        for session_id in self._containers.keys() - self._registry.sessions.keys():
            del self._containers[session_id]

    # ---- proving ----

    def member(self, pid: int, gpu_uuid: str, *, before: float) -> Member | None:
        """The session that a process is proven to belong to, and which process that is.

        `before` is in ticks since boot: a process that was started later is not the one that was seen on the GPU.
        """
        known = self._known.get(pid)
        if known is None or known.evidence.identity.start_time >= before:
            return None
        proven = self._registry.sessions.get(known.proven)
        if proven is not None and not _may_have(proven, known.evidence):
            proven = None  # it has become another user's
        session = proven or self._by_kernel(known.evidence, gpu_uuid) or self._by_environment(known)
        if session is None:
            return None
        known.proven = session.id
        return Member(session, known.evidence.identity)

    def _by_kernel(self, evidence: Evidence, gpu_uuid: str) -> Session | None:
        return (
            self._by_ancestry(evidence, gpu_uuid)
            or self._by_container(evidence, gpu_uuid)
            or self._by_pod(evidence, gpu_uuid)
        )

    def _by_ancestry(self, evidence: Evidence, gpu_uuid: str) -> Session | None:
        owners = {
            session.record.owner: session
            for session in self._registry.sessions.values()
            if session.record.owner is not None and session.owner_pidfd is not None
        }
        for ancestor in evidence.ancestors:
            found = [process.session for process in self._registry.of(ancestor.pid) if process.identity == ancestor]
            found += [owners[ancestor]] if not found and ancestor in owners else []
            if found := [session for session in found if _may_have(session, evidence)]:
                return _with_share(found, gpu_uuid)
        return None

    def _by_container(self, evidence: Evidence, gpu_uuid: str) -> Session | None:
        """All processes of a container are in its sessions."""
        wanted = evidence.containers()
        if wanted is None:
            return None
        sessions = self._registry.sessions
        found = [
            sessions[session_id] for session_id, (_, container) in self._containers.items()
            if container == wanted and session_id in sessions and sessions[session_id].processes
            and (not _is_run(sessions[session_id]) or sessions[session_id].record.owner_uid == evidence.uid)
        ]  # fmt: skip
        return _with_share(found, gpu_uuid)

    def _by_pod(self, evidence: Evidence, gpu_uuid: str) -> Session | None:
        """A pod with a claim is known even if no process of it ever attached."""
        if evidence.pod is None:
            return None
        found = [
            session for session in self._registry.sessions.values()
            if session.record.workload is not None and session.record.workload.pod_uid == evidence.pod.pod_uid
        ]  # fmt: skip
        return _with_share(found, gpu_uuid)

    def _by_environment(self, known: _Known) -> Session | None:
        session = self._registry.sessions.get(known.named) if known.named else None
        if session is None or not _is_run(session):
            return None
        evidence = known.evidence
        return session if evidence.at_home and evidence.uid == session.record.owner_uid else None


def _is_run(session: Session) -> bool:
    """Of `gpuslice run` or `gpuslice session`, and not of a pod."""
    return session.record.workload is None


def _may_have(session: Session, evidence: Evidence) -> bool:
    return not _is_run(session) or session.record.owner_uid in (0, evidence.uid)


def may_end(session: Session, pid: int) -> bool:
    """Whether the session may end the process as it is now: a user's session ends nothing that the user cannot end.

    A process that attached may have become another user's since, as a set-uid program does.
    """
    return not _is_run(session) or processes.may_be_ended_by(pid, session.record.owner_uid)


def _with_share(sessions: Sequence[Session], gpu_uuid: str) -> Session | None:
    """Of several, the one with a share of that GPU."""
    having = [session for session in sessions if any(gpu.uuid == gpu_uuid for gpu in session.record.gpus)]
    return next(iter([*having, *sessions]), None)


def _variable(identity: ProcessIdentity) -> str:
    named = processes.environment_variable(identity.pid, _VARIABLE) or ""
    status = processes.status(identity.pid)
    return named if status is not None and status.start_time == identity.start_time else ""
