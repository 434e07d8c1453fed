"""From what a request says of GPUs and limits to the GPUs of the machine and bytes on each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuslice.model.sessions import check_limit
from gpuslice.model.values import quantities
from gpuslice.node.errors import AgentError
from gpuslice.node.sessions import page
from gpuslice.node.sessions.record import GpuRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.node.admin.messages import GpuShare
    from gpuslice.node.gpus.nvml import GpuInfo


def resolve(shares: Sequence[GpuShare], limit: str | int | None, machine: Sequence[GpuInfo]) -> list[GpuRecord]:
    """The session's GPUs. Without any named, all that are not partitioned."""
    if not shares:
        chosen = [(gpu, limit, 0) for gpu in machine if not gpu.mig]
        if not chosen:
            raise AgentError(
                "no_gpus",
                "the machine has no GPU that the agent can see",
                field="gpus",
                remedy="load NVIDIA's driver, or run the agent on a simulated machine (`gpuslice sim up`)",
            )
    else:
        chosen = []
        for share in shares:
            wanted = limit if share.limit is None else share.limit
            chosen.append((_find(share.gpu, machine), wanted, share.core_percent))
    if len(chosen) > page.MAX_GPUS:
        raise AgentError("too_many_gpus", f"a session has at most {page.MAX_GPUS} GPUs", field="gpus")
    if len({page.uuid_bytes(gpu.uuid) for gpu, _, _ in chosen}) < len(chosen):
        raise AgentError("gpu_twice", "the same GPU is named twice", field="gpus")
    return [_record(gpu, wanted, cores) for gpu, wanted, cores in chosen]


def limit_bytes(limit: str | int | None, memory_bytes: int) -> int:
    """The limit in bytes on a GPU with that much memory (0: not known)."""
    if limit is None:
        raise AgentError("no_limit", "no limit is given", field="limit", remedy="say for example 256MB, 4GiB or 25%")
    try:
        if isinstance(limit, str) and limit.rstrip().endswith("%"):
            if not memory_bytes:
                raise AgentError(
                    "no_nvml",
                    f"{limit} of a GPU whose memory is not known",
                    field="limit",
                    remedy="give the limit in bytes, as in 4GiB",
                )
            size = quantities.percent_of(limit, memory_bytes)
        else:
            size = quantities.parse_bytes(limit)
        if isinstance(limit, str):  # from a person; a program counts bytes
            check_limit(limit, size)
    except ValueError as error:
        raise AgentError("bad_limit", str(error), field="limit") from None
    if size == 0:
        raise AgentError("bad_limit", "a limit of 0 leaves no memory at all", field="limit")
    most = memory_bytes or page.BYTES_MASK
    if size > most:
        shown = quantities.format_bytes(most)
        raise AgentError(
            "bad_limit", f"{limit} is more than the GPU has", field="limit", remedy=f"give at most {shown}, or 100%"
        )
    return size


def _record(gpu: GpuInfo, limit: str | int | None, core_percent: int) -> GpuRecord:
    if not 0 <= core_percent <= 100:
        raise AgentError("bad_cores", f"{core_percent}% is not a share of the cores", field="core_percent")
    return GpuRecord(gpu.uuid, limit_bytes(limit, gpu.memory_bytes), core_percent, gpu.model)


def _find(name: str, machine: Sequence[GpuInfo]) -> GpuInfo:
    """By index, by UUID, or by what a UUID begins with if no other does."""
    exact = [gpu for gpu in machine if name in (gpu.index, gpu.uuid)]
    found = exact or [gpu for gpu in machine if len(name) >= 8 and gpu.uuid.startswith(name)]
    if len(found) == 1:
        return found[0]
    if not machine:
        return _unseen(name)
    known = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in machine)
    problem = "names several GPUs" if found else "is not a GPU of this machine"
    raise AgentError("unknown_gpu", f"{name!r} {problem}", field="gpus", remedy=f"it has {known}")


def _unseen(uuid: str) -> GpuInfo:
    """A GPU that is named by UUID where NVML cannot be asked."""
    from gpuslice.node.gpus.nvml import GpuInfo

    try:
        page.uuid_bytes(uuid)
    except (ValueError, IndexError):
        raise AgentError(
            "no_gpus",
            f"{uuid!r} cannot be looked up: the agent has no NVML",
            field="gpus",
            remedy="load NVIDIA's driver, or name the GPU by its whole UUID",
        ) from None
    return GpuInfo(index="", uuid=uuid, model="", memory_bytes=0, mig=uuid.startswith("MIG-"))
