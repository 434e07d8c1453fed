"""MIG as NVML has it: profiles, placements, instances. Handles are NVML's own and mean nothing outside of it."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, Final

import pynvml

from gpuslice.model.mig import MediaExtension, MigPlacement, MigProfile
from gpuslice.node.gpus.hardware import GpuInstance

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Opaque, here and in NVML.
Handle = Any

_MIB: Final = 1024**2
_GIB: Final = 1024**3
_NAME_PREFIX: Final = "MIG "
_MEDIA_PROFILES: Final = (pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1, pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1)
#: What a profile that this GPU or this driver does not have is answered with.
_NO_SUCH_PROFILE: Final = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument)


def is_enabled(gpu: Handle) -> bool:
    """Whether the GPU is in MIG mode now, whatever is pending."""
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(gpu)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
    except pynvml.NVMLError_NotSupported:
        return False


def profiles(gpu: Handle) -> tuple[MigProfile, ...]:
    """Every shape that the GPU can be partitioned into, in MIG mode or not."""
    try:
        pynvml.nvmlDeviceGetMigMode(gpu)
    except pynvml.NVMLError_NotSupported:
        return ()
    found = []
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = _profile_info(gpu, number)
        except _NO_SUCH_PROFILE:
            continue
        if places := placements(gpu, info.id):
            found.append(_profile(gpu, number, info, places))
    return tuple(found)


def _profile_info(gpu: Handle, number: int) -> Any:  # noqa: ANN401 - of the bindings
    """What NVML tells of a profile; before R515 that has no name."""
    try:
        return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, number)
    except pynvml.NVMLError_FunctionNotFound:
        return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, number, version=1)


def _derived_name(gpu: Handle, info: Any, number: int) -> str:  # noqa: ANN401 - of the bindings
    """As newer drivers call it: its compute slices, and its eighths of the GPU's memory in GiB."""
    total = pynvml.nvmlDeviceGetMemoryInfo(gpu).total
    eighths = math.ceil(8 * info.memorySizeMB * _MIB / total)
    media = "+me" if number in _MEDIA_PROFILES else ""
    return f"{info.sliceCount}g.{round(eighths * math.ceil(total / _GIB) / 8)}gb{media}"


def _profile(
    gpu: Handle,
    number: int,
    info: Any,  # noqa: ANN401 - of the bindings
    places: tuple[MigPlacement, ...],
) -> MigProfile:
    name = getattr(info, "name", None) or _derived_name(gpu, info, number)
    name = name.decode() if isinstance(name, bytes) else name
    name = name.removeprefix(_NAME_PREFIX)
    return MigProfile(
        number=number,
        id=info.id,
        name=name,
        compute_slices=info.sliceCount,
        memory_slices=places[0].size,
        multiprocessors=info.multiprocessorCount,
        max_instances=info.instanceCount,
        copy_engines=info.copyEngineCount,
        decoders=info.decoderCount,
        encoders=info.encoderCount,
        jpegs=info.jpegCount,
        ofas=info.ofaCount,
        media=_media(name),
        memory_bytes=info.memorySizeMB * _MIB,
        placements=places,
    )


def _media(name: str) -> MediaExtension:
    signs = {
        "+me": MediaExtension.MEDIA_ENGINES,
        "+gfx": MediaExtension.GRAPHICS,
        "-me": MediaExtension.NO_MEDIA,
    }
    return next((media for sign, media in signs.items() if sign in name), MediaExtension.NONE)


def placements(gpu: Handle, profile_id: int) -> tuple[MigPlacement, ...]:
    """Where instances of the profile may sit, on a GPU with nothing on it."""
    count = ctypes.c_uint()
    try:
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, None, ctypes.byref(count))
        found = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, found, ctypes.byref(count))
    except _NO_SUCH_PROFILE:
        return ()
    return tuple(MigPlacement(place.start, place.size) for place in found[: count.value])


def gpu_instances(gpu: Handle, profile_id: int, limit: int) -> list[Handle]:
    """The instances of the profile that exist; at most `limit` can."""
    found = (pynvml.c_nvmlGpuInstance_t * limit)()
    count = ctypes.c_uint()
    pynvml.nvmlDeviceGetGpuInstances(gpu, profile_id, found, ctypes.byref(count))
    return list(found[: count.value])


def compute_instances(instance: Handle) -> Iterator[Handle]:
    """The compute instances in a GPU instance."""
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance, number, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            )
        except _NO_SUCH_PROFILE:
            continue
        found = (pynvml.c_nvmlComputeInstance_t * info.instanceCount)()
        count = ctypes.c_uint()
        pynvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, found, ctypes.byref(count))
        yield from found[: count.value]


def mig_uuids(gpu: Handle) -> dict[int, tuple[str, ...]]:
    """The UUIDs of the MIG devices, by the number of their GPU instance."""
    found: dict[int, tuple[str, ...]] = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except (pynvml.NVMLError_NotFound, *_NO_SUCH_PROFILE):
            continue
        number = pynvml.nvmlDeviceGetGpuInstanceId(device)
        found[number] = (*found.get(number, ()), pynvml.nvmlDeviceGetUUID(device))
    return found


def instances(gpu: Handle, known: tuple[MigProfile, ...]) -> list[tuple[Handle, GpuInstance]]:
    """Every GPU instance that exists, ours and others', from the lowest place on."""
    if not known or not is_enabled(gpu):
        return []
    uuids = mig_uuids(gpu)
    found = []
    for profile in known:
        for handle in gpu_instances(gpu, profile.id, len(profile.placements)):
            info = pynvml.nvmlGpuInstanceGetInfo(handle)
            place = MigPlacement(info.placement.start, info.placement.size)
            found.append((handle, GpuInstance(profile.name, place, uuids.get(info.id, ()))))
    return sorted(found, key=lambda item: item[1].placement.start)


def create(gpu: Handle, profile: MigProfile, place: MigPlacement) -> Handle:
    """A GPU instance at exactly that place, with nothing in it."""
    wanted = pynvml.c_nvmlGpuInstancePlacement_t(place.start, place.size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile.id, ctypes.byref(wanted))


def fill(instance: Handle, profile: MigProfile) -> None:
    """Makes the one compute instance that spans all of the GPU instance."""
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance, number, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            )
        except _NO_SUCH_PROFILE:
            continue
        if info.sliceCount == profile.compute_slices:
            pynvml.nvmlGpuInstanceCreateComputeInstance(instance, info.id)
            return
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def destroy(instance: Handle) -> None:
    """Removes a GPU instance and what is in it. Refused by NVML while a process uses it."""
    for compute in compute_instances(instance):
        pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
