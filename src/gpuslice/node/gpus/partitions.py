"""MIG partitions that this node's agent makes and destroys, and the record by which it knows its own.

A partition is a GPU instance at exactly the place that the scheduler allocated, with one compute instance that spans
it. It is recorded before it is made and once it is, so that whatever a crash leaves is known as ours; what someone
else made is never touched. Calls wait for NVML, and may come from any thread.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec
import pynvml

from gpuslice.node.errors import AgentError
from gpuslice.node.gpus import mig
from gpuslice.node.gpus.nvml import opened
from gpuslice.system import processes
from gpuslice.system.files import synchronize, write_durably

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuslice.model.mig import MigPlacement, MigProfile
    from gpuslice.node.gpus.hardware import GpuInstance
    from gpuslice.node.gpus.mig import Handle

_VERSION: Final = 1
_STUCK_SECONDS: Final = 600.0


class PartitionError(AgentError):
    """Raised when a partition cannot be made or destroyed, or a GPU not be switched to or from MIG."""


class UnknownGpuError(PartitionError):
    """Raised for a GPU that this node does not have, or not any more."""


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of ours. `mig_uuid` is None from the decision to make it until it is made."""

    gpu_uuid: str
    profile: str
    start: int
    mig_uuid: str | None = None
    #: Partitions do not outlive the boot that they were made in.
    boot_id: str = ""
    version: int = _VERSION

    @property
    def file_name(self) -> str:
        return f"{self.gpu_uuid}_{self.profile}_{self.start}.json"


class Partitions:
    """The partitions of this node. `folder` keeps the record of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._boot_id = processes.boot_id()
        #: Until when GPUs count as stuck in their mode.
        self._stuck: dict[str, float] = {}

    def make(self, gpu_uuid: str, profile: str, placement_start: int) -> str:
        """The UUID of the partition, which exists when this returns. Asking again changes nothing."""
        wanted = Partition(gpu_uuid=gpu_uuid, profile=profile, start=placement_start, boot_id=self._boot_id)
        with self._lock, opened(), _explained(f"MIG {profile} at {placement_start} of {gpu_uuid} cannot be made"):
            gpu = _Gpu(gpu_uuid)
            shape, place = gpu.place_for(wanted)
            self._switch(gpu, pynvml.NVML_DEVICE_MIG_ENABLE)
            known = self._read(self._folder / wanted.file_name)
            if (found := gpu.at(wanted)) is not None:
                instance, state = found
                if known is None or not _is_ours(known, state):
                    raise PartitionError(
                        "foreign",
                        f"someone else made a MIG {profile} at {placement_start} of {gpu_uuid}",
                        remedy="remove it, or reserve the GPU for them in the agent's policy",
                    )
                if known.mig_uuid in state.mig_uuids:
                    return state.mig_uuids[0]
                mig.destroy(instance)  # half made
            return self._make(gpu, wanted, shape, place)

    def _make(self, gpu: _Gpu, wanted: Partition, shape: MigProfile, place: MigPlacement) -> str:
        self._write(wanted)
        try:
            instance = mig.create(gpu.handle, shape, place)
            try:
                mig.fill(instance, shape)
            except pynvml.NVMLError:
                mig.destroy(instance)
                raise
        except pynvml.NVMLError:
            self._forget(wanted)
            raise
        made = gpu.at(wanted)
        assert made is not None
        mig_uuid = made[1].mig_uuids[0]
        self._write(msgspec.structs.replace(wanted, mig_uuid=mig_uuid))
        return mig_uuid

    def destroy(self, mig_uuid: str) -> None:
        """Removes a partition of ours. One that is gone already is none to remove."""
        with self._lock, opened(), _explained(f"{mig_uuid} cannot be destroyed"):
            for partition in self._records():
                if partition.mig_uuid == mig_uuid:
                    self._destroy(partition)
                    return
            if _exists(mig_uuid):
                raise PartitionError("foreign", f"{mig_uuid} was not made by gpuslice", remedy="remove it by hand")

    def share(self, gpu_uuid: str) -> None:
        """Makes the GPU usable as a whole: out of MIG mode. Refused while it has partitions."""
        with self._lock, opened(), _explained(f"{gpu_uuid} cannot be shared"):
            gpu = _Gpu(gpu_uuid)
            if mig.is_enabled(gpu.handle) and (left := gpu.instances()):
                raise PartitionError(
                    "partitioned",
                    f"{gpu_uuid} has {len(left)} MIG partition{'s' if len(left) > 1 else ''}",
                    remedy="remove those that were made by hand; the agent removes its own with their pods",
                )
            self._switch(gpu, pynvml.NVML_DEVICE_MIG_DISABLE)

    def ours(self) -> list[Partition]:
        """What this agent made, or began to make."""
        with self._lock:
            return self._records()

    def repair(self) -> list[Partition]:
        """After a start: undoes what was half made or half destroyed. Returns our partitions that are gone."""
        gone = []
        with self._lock, opened():
            for partition in self._records():
                try:
                    found = self._find(partition)
                    if found is not None and partition.mig_uuid in found[1].mig_uuids:
                        continue
                    self._destroy(partition)
                except pynvml.NVMLError:
                    continue  # in use, or its GPU is lost: still ours, and tried again at the next start
                if partition.mig_uuid is not None:
                    gone.append(partition)
        return gone

    @property
    def unswitchable(self) -> frozenset[str]:
        """GPUs whose MIG mode could not be changed when it was tried a short while ago."""
        now = time.monotonic()
        return frozenset(uuid for uuid, until in list(self._stuck.items()) if now < until)

    def _find(self, partition: Partition) -> tuple[Handle, GpuInstance] | None:
        """The instance that the record speaks of, if it is there and not another that took its place."""
        if partition.boot_id != self._boot_id:
            return None
        try:
            found = _Gpu(partition.gpu_uuid).at(partition)
        except UnknownGpuError:
            return None
        return found if found is not None and _is_ours(partition, found[1]) else None

    def _destroy(self, partition: Partition) -> None:
        if (found := self._find(partition)) is not None:
            mig.destroy(found[0])
        self._forget(partition)

    def _switch(self, gpu: _Gpu, mode: int) -> None:
        """Switches the MIG mode of an idle GPU. If it takes a reset, the driver makes it while no process is on it."""
        enabled = mode == pynvml.NVML_DEVICE_MIG_ENABLE
        if mig.is_enabled(gpu.handle) == enabled:
            return
        refusal = _set_mode(gpu.handle, mode)
        if refusal is None:
            self._stuck.pop(gpu.uuid, None)
            return
        self._stuck[gpu.uuid] = time.monotonic() + _STUCK_SECONDS
        raise PartitionError(
            "mode",
            f"MIG mode of {gpu.uuid} cannot be switched {'on' if enabled else 'off'} now ({refusal})",
            remedy="end every process on the GPU, monitoring included, or switch it with nvidia-smi and a reset",
        )

    # ---- the record ----

    def _records(self) -> list[Partition]:
        found = []
        for path in sorted(self._folder.glob("*.json")):
            with suppress(PartitionError):  # one bad file must not stop the work on all others
                if (partition := self._read(path)) is not None:
                    found.append(partition)
        return found

    def _read(self, path: Path) -> Partition | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=Partition)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PartitionError(
                "record", f"{path} cannot be read ({error})", remedy="remove it, and the partition by hand"
            ) from None

    def _write(self, partition: Partition) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self._folder / partition.file_name, msgspec.json.encode(partition))

    def _forget(self, partition: Partition) -> None:
        (self._folder / partition.file_name).unlink(missing_ok=True)
        synchronize(self._folder)


class _Gpu:
    """A GPU by its UUID, for as long as NVML is open."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        try:
            self.handle: Handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError_NotFound:
            raise UnknownGpuError("gpu", f"there is no GPU {uuid} on this node", field="gpu_uuid") from None

    @cached_property
    def profiles(self) -> tuple[MigProfile, ...]:
        return mig.profiles(self.handle)

    def instances(self) -> list[tuple[Handle, GpuInstance]]:
        return mig.instances(self.handle, self.profiles)

    def at(self, partition: Partition) -> tuple[Handle, GpuInstance] | None:
        """The instance that has exactly the partition's profile and place."""
        for handle, instance in self.instances():
            if (instance.profile, instance.placement.start) == (partition.profile, partition.start):
                return handle, instance
        return None

    def place_for(self, wanted: Partition) -> tuple[MigProfile, MigPlacement]:
        for profile in self.profiles:
            if profile.name == wanted.profile:
                for place in profile.placements:
                    if place.start == wanted.start:
                        return profile, place
                starts = ", ".join(str(place.start) for place in profile.placements)
                raise PartitionError(
                    "placement", f"a MIG {profile.name} of {self.uuid} starts at {starts}, not at {wanted.start}"
                )
        names = ", ".join(profile.name for profile in self.profiles) or "no MIG profiles"
        raise PartitionError("profile", f"{self.uuid} has {names}, and no {wanted.profile!r}", field="profile")


def _is_ours(partition: Partition, state: GpuInstance) -> bool:
    """Whether the instance at our partition's place is that partition, whole or half made."""
    return partition.mig_uuid is None or not state.mig_uuids or partition.mig_uuid in state.mig_uuids


def _set_mode(gpu: Handle, mode: int) -> pynvml.NVMLError | None:
    """Switches the mode now, or says why not and leaves it as it was."""
    try:
        status = pynvml.nvmlDeviceSetMigMode(gpu, mode)
        if status == pynvml.NVML_SUCCESS:
            return None
        # Left pending, the mode would change at the next reset, when no one expects it.
        pynvml.nvmlDeviceSetMigMode(gpu, pynvml.NVML_DEVICE_MIG_ENABLE - mode)
    except pynvml.NVMLError as error:
        return error
    return pynvml.NVMLError(status)


def _exists(mig_uuid: str) -> bool:
    try:
        pynvml.nvmlDeviceGetHandleByUUID(mig_uuid)
    except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
        return False
    return True


@contextmanager
def _explained(failure: str) -> Iterator[None]:
    """Says what NVML's refusal was about."""
    try:
        yield
    except pynvml.NVMLError_InUse:
        raise PartitionError("in_use", f"{failure}: a process uses it", remedy="end the process first") from None
    except pynvml.NVMLError as error:
        raise PartitionError("nvml", f"{failure} ({error})") from None
