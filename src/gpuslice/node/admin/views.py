"""Sessions and the agent as the admin socket shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuslice.node.admin.messages import GpuView, OwnerView, ProcessView, SessionView, WorkloadView
from gpuslice.node.sessions.registry import boottime

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpuslice.node.sessions.record import WorkloadRecord
    from gpuslice.node.sessions.session import Session


def view(session: Session, socket: Path, commands: Mapping[int, str], *, with_token: bool) -> SessionView:
    """The session now. `commands` are those of its processes, by number."""
    record = session.record
    gpus = [
        GpuView(
            uuid=gpu.uuid,
            model=gpu.model,
            limit_bytes=gpu.limit_bytes,
            core_percent=gpu.core_percent,
            held_bytes=use.held,
            overhead_bytes=use.overhead,
            peak_bytes=use.peak,
            allocations=use.allocations,
            denials=use.denials,
            recovered_bytes=use.recovered,
            breaches=use.breaches,
        )
        for gpu, use in zip(record.gpus, session.use(), strict=True)
    ]
    return SessionView(
        id=record.id,
        name=record.name,
        state=record.state.value,
        created=record.created,
        expires_in=None if record.expires is None else max(0.0, record.expires - boottime()),
        grace_seconds=record.grace_seconds,
        on_breach=record.on_breach.value,
        ttl_kill=record.ttl_kill,
        owner=OwnerView(
            uid=record.owner_uid, gid=record.owner_gid, pid=None if record.owner is None else record.owner.pid
        ),
        gpus=gpus,
        processes=_processes(session, commands),
        allocations=sum(gpu.allocations for gpu in gpus),
        denials=sum(gpu.denials for gpu in gpus),
        breaches=sum(gpu.breaches for gpu in gpus),
        socket=str(socket),
        token=record.token if with_token else "",
        workload=_workload(record.workload),
    )


def _workload(workload: WorkloadRecord | None) -> WorkloadView | None:
    if workload is None:
        return None
    return WorkloadView(
        namespace=workload.namespace,
        pod=workload.pod,
        container=workload.container,
        claim=workload.claim,
        claim_uid=workload.claim_uid,
        request=workload.request,
    )


def _processes(session: Session, commands: Mapping[int, str]) -> list[ProcessView]:
    found = []
    for slot, process in sorted(session.processes.items()):
        row = session.cells.read_slot(slot)
        found.append(
            ProcessView(
                pid=process.pid,
                slot=slot,
                command=commands.get(process.pid, "?"),
                held_bytes=[cell.held for cell in row],
                overhead_bytes=[cell.overhead for cell in row],
            )
        )
    return found
