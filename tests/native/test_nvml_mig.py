"""MIG on the simulated NVML: the rules of the hardware, and the codes of the real library."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.model.gpus import PRESETS, MigPlacement, MigProfile
from tests.native import nvml
from tests.native.inside import on_machine, python_path
from tests.native.nvml import MIB, call, create_instance, create_mig_device, enable_mig, gpu, place_of, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Simulated

A100 = PRESETS["A100-40GB"].mig_profiles
ONE, ONE_ME, ONE_10GB, TWO, THREE, FOUR, SEVEN = (profile.id for profile in A100)


def mig_gpu(index: int = 0) -> nvml.Handle:
    device = gpu(index)
    enable_mig(device)
    return device


# ---- the mode ----


@on_machine("1xA100-40GB,1xT4")
def test_the_mode_changes_at_once_on_a_gpu_that_can() -> None:
    device = gpu(0)
    assert pynvml.nvmlDeviceGetMigMode(device) == [0, 0]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(device) == 0
    enable_mig(device)
    assert pynvml.nvmlDeviceGetMigMode(device) == [1, 1]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(device) == 7
    with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
        pynvml.nvmlDeviceSetMigMode(device, 2)
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlDeviceSetMigMode(gpu(1), 1)


@on_machine()
def test_the_mode_stays_while_there_are_instances() -> None:
    device = mig_gpu()
    instance = create_instance(device, ONE)
    with refused(pynvml.NVML_ERROR_IN_USE):
        pynvml.nvmlDeviceSetMigMode(device, 0)
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert pynvml.nvmlDeviceSetMigMode(device, 0) == pynvml.NVML_SUCCESS


@on_machine()
def test_without_the_mode_profiles_are_known_and_instances_refused() -> None:
    device = gpu()
    assert pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE).id == ONE
    for ask in (pynvml.nvmlDeviceCreateGpuInstance, pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity):
        with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
            ask(device, ONE)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@on_machine()
def test_only_root_and_the_owner_of_the_machine_change_it() -> None:
    device = mig_gpu()
    instance = create_instance(device, THREE)
    os.seteuid(65534)
    attempts: list[Callable[[], object]] = [
        lambda: create_instance(device, ONE),
        lambda: pynvml.nvmlGpuInstanceDestroy(instance),
        lambda: pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0),
        lambda: pynvml.nvmlDeviceSetMigMode(device, 0),
        lambda: pynvml.nvmlDeviceGetMemoryInfo(device),
    ]
    for change in attempts:
        with refused(pynvml.NVML_ERROR_NO_PERMISSION):
            change()


# ---- profiles ----

#: What we call the numbers of a profile, and what NVML calls them.
NVML_NAMES = {
    "id": "id",
    "compute_slices": "sliceCount",
    "max_instances": "instanceCount",
    "multiprocessors": "multiprocessorCount",
    "copy_engines": "copyEngineCount",
    "decoders": "decoderCount",
    "encoders": "encoderCount",
    "jpegs": "jpegCount",
    "ofas": "ofaCount",
}


@on_machine("1xA100-40GB,1xA100-80GB,1xH100-80GB")
@pytest.mark.parametrize("index", [0, 1, 2])
def test_each_version_of_a_profile_says_the_same(index: int) -> None:
    device = gpu(index)
    profiles = list(PRESETS.values())[index].mig_profiles
    for profile in profiles:
        for version in (1, 2):
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, profile.number, version)
            told = {ours: getattr(info, theirs) for ours, theirs in NVML_NAMES.items()}
            assert told == {name: getattr(profile, name) for name in NVML_NAMES}
            assert info.memorySizeMB == profile.memory_bytes // MIB
        by_id = pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(device, profile.id)
        assert (by_id.name, info.name) == (f"MIG {profile.name}",) * 2


class ProfileInfoV3(ctypes.Structure):
    """nvmlGpuInstanceProfileInfo_v3_t, which the bindings lack."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("numbers", ctypes.c_uint * 9),
        ("memory", ctypes.c_ulonglong),
        ("name", ctypes.c_char * 96),
        ("capabilities", ctypes.c_uint),
    )


@on_machine()
def test_the_third_version_of_a_profile_is_spoken_and_a_fourth_refused() -> None:
    info = ProfileInfoV3(version=3 << 24 | ctypes.sizeof(ProfileInfoV3))
    ask = "nvmlDeviceGetGpuInstanceProfileInfoV"
    assert call(ask, gpu(), pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE, ctypes.byref(info)) == pynvml.NVML_SUCCESS
    assert (list(info.numbers), info.memory) == ([0, 7, 1, 98, 7, 5, 0, 1, 1], 40192)
    assert (info.name, info.capabilities) == (b"MIG 7g.40gb", 0)
    info.version += 1 << 24
    code = call(ask, gpu(), pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE, ctypes.byref(info))
    assert code == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


@on_machine()
def test_profiles_are_enumerated_until_there_are_no_more() -> None:
    answers = {}
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT + 2):
        info = pynvml.c_nvmlGpuInstanceProfileInfo_t()
        answers[number] = call("nvmlDeviceGetGpuInstanceProfileInfo", gpu(), number, ctypes.byref(info))
    assert {number for number, code in answers.items() if code == pynvml.NVML_SUCCESS} == {0, 1, 2, 3, 4, 7, 9}
    assert answers[5] == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert max(answers) > 18
    assert answers[max(answers)] == pynvml.NVML_ERROR_INVALID_ARGUMENT


@on_machine()
def test_placements_can_be_counted_before_they_are_read() -> None:
    device, count = gpu(), ctypes.c_uint()
    for ask in ("nvmlDeviceGetGpuInstancePossiblePlacements", "nvmlDeviceGetGpuInstancePossiblePlacements_v2"):
        for profile in A100:
            assert call(ask, device, profile.id, None, ctypes.byref(count)) == pynvml.NVML_SUCCESS
            assert count.value == len(profile.placements)
            room = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
            assert call(ask, device, profile.id, room, ctypes.byref(count)) == pynvml.NVML_SUCCESS
            assert [(place.start, place.size) for place in room] == [(p.start, p.size) for p in profile.placements]
        assert call(ask, device, 3, None, ctypes.byref(count)) == pynvml.NVML_ERROR_NOT_SUPPORTED


# ---- where instances go ----


@on_machine()
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        # (ID of the instance, first slice): what `nvidia-smi mig -cgi` and `-lgi` show on an A100.
        ([ONE] * 7, [(13, 6), (11, 4), (12, 5), (7, 0), (8, 1), (9, 2), (10, 3)]),
        ([TWO] * 3 + [ONE_ME], [(5, 4), (3, 0), (4, 2), (13, 6)]),
        ([THREE, THREE], [(2, 4), (1, 0)]),
        ([ONE, TWO, FOUR], [(13, 6), (5, 4), (1, 0)]),
        ([TWO] + [ONE] * 5, [(5, 4), (13, 6), (7, 0), (8, 1), (9, 2), (10, 3)]),
        ([THREE, ONE, TWO, ONE], [(2, 4), (7, 0), (4, 2), (8, 1)]),
        ([SEVEN], [(0, 0)]),
    ],
)
def test_instances_get_the_places_and_numbers_that_the_driver_gives(
    asked: list[int], expected: list[list[int]]
) -> None:
    device = mig_gpu()
    made = [pynvml.nvmlGpuInstanceGetInfo(create_instance(device, profile)) for profile in asked]
    assert [[info.id, info.placement.start] for info in made] == [list(pair) for pair in expected]
    assert [info.profileId for info in made] == asked


@on_machine()
@pytest.mark.parametrize(
    ("there", "profile", "start", "size", "code"),
    [
        ([], ONE, 7, 1, pynvml.NVML_ERROR_INVALID_ARGUMENT),  # the eighth slice of memory has no compute
        ([], ONE, 0, 2, pynvml.NVML_ERROR_INVALID_ARGUMENT),
        ([], TWO, 6, 2, pynvml.NVML_ERROR_INVALID_ARGUMENT),
        ([], TWO, 1, 2, pynvml.NVML_ERROR_INVALID_ARGUMENT),
        ([], FOUR, 4, 4, pynvml.NVML_ERROR_INVALID_ARGUMENT),
        ([], THREE, 0, 3, pynvml.NVML_ERROR_INVALID_ARGUMENT),
        ([], 3, 0, 1, pynvml.NVML_ERROR_NOT_SUPPORTED),  # no such profile
        ([(ONE, 0, 1)], ONE, 0, 1, pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES),
        ([(ONE, 3, 1)], FOUR, 0, 4, pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES),
        ([(ONE, 6, 1)], SEVEN, 0, 8, pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES),
        ([(THREE, 4, 4)], ONE_10GB, 6, 2, pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES),
        ([(ONE_ME, 0, 1)], ONE_ME, 1, 1, pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES),  # one has the media engines
    ],
)
def test_a_layout_that_the_tables_forbid_is_refused(
    there: list[list[int]], profile: int, start: int, size: int, code: int
) -> None:
    device = mig_gpu()
    for instance in there:
        create_instance(device, *instance)
    with refused(code):
        create_instance(device, profile, start, size)


@on_machine()
def test_a_full_gpu_takes_nothing_more() -> None:
    device = mig_gpu()
    create_instance(device, FOUR)
    create_instance(device, THREE)
    for profile in A100:
        assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, profile.id) == 0
        with refused(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES):
            create_instance(device, profile.id)


def legal(layout: dict[MigPlacement, MigProfile], profile: MigProfile, place: MigPlacement) -> bool:
    """The rules, told apart from the library: room, the profile's limit, seven compute slices."""
    return (
        not any(map(place.overlaps, layout))
        and list(layout.values()).count(profile) < profile.max_instances
        and sum(other.compute_slices for other in layout.values()) + profile.compute_slices <= 7
    )


def attempt(
    device: nvml.Handle, layout: dict[MigPlacement, MigProfile], profile: MigProfile, where: int | None
) -> None:
    """Asks for an instance and holds the answer against the rules."""
    places = list(profile.placements)
    wanted = None if where is None else places[where % len(places)]
    possible = [place for place in places if place == (wanted or place) and legal(layout, profile, place)]
    try:
        made = create_instance(device, profile.id, *((wanted.start, wanted.size) if wanted else ()))
    except pynvml.NVMLError_InsufficientResources:
        assert possible == []
        return
    place = MigPlacement(*place_of(made))
    assert place in possible
    layout[place] = profile


def destroy_at(device: nvml.Handle, profile: MigProfile, place: MigPlacement) -> None:
    found = [one for one in nvml.instances(device, profile.id) if place_of(one) == (place.start, place.size)]
    assert len(found) == 1
    pynvml.nvmlGpuInstanceDestroy(found[0])


Steps = list[tuple[int | None, int | None]]


@on_machine("1xA100-40GB,1xH100-80GB")
@pytest.mark.parametrize(("index", "model"), [(0, "A100-40GB"), (1, "H100-80GB")])
def test_no_sequence_of_changes_breaks_the_rules(index: int, model: str) -> None:
    device, profiles = mig_gpu(index), PRESETS[model].mig_profiles
    creation = st.tuples(st.integers(0, len(profiles) - 1), st.none() | st.integers(0, 6))
    destruction = st.tuples(st.none(), st.integers(0, 6))

    @settings(max_examples=150, deadline=None, database=None)
    @given(st.lists(creation | destruction, max_size=25))
    def check(steps: Steps) -> None:
        layout: dict[MigPlacement, MigProfile] = {}
        for profile, where in steps:
            if profile is not None:
                attempt(device, layout, profiles[profile], where)
            elif layout:
                assert where is not None
                place = list(layout)[where % len(layout)]
                destroy_at(device, layout.pop(place), place)
            for other in profiles:
                listed = sorted(place_of(instance) for instance in nvml.instances(device, other.id))
                assert listed == sorted((p.start, p.size) for p, held in layout.items() if held is other)
                left = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, other.id)
                assert (left > 0) == any(legal(layout, other, place) for place in other.placements)
        for place, profile_there in layout.items():
            destroy_at(device, profile_there, place)

    check()


# ---- compute instances ----


@on_machine("1xA100-40GB,1xH100-80GB")
@pytest.mark.parametrize(
    ("index", "profile", "expected"),
    [
        # As `nvidia-smi mig -lcip`: name, profile, instances, SM.
        (0, ONE, ["1g.5gb 0 1 14"]),
        (0, TWO, ["1c.2g.10gb 0 2 14", "2g.10gb 1 1 28"]),
        (0, THREE, ["1c.3g.20gb 0 3 14", "2c.3g.20gb 1 1 28", "3g.20gb 2 1 42"]),
        (0, FOUR, ["1c.4g.20gb 0 4 14", "2c.4g.20gb 1 2 28", "4g.20gb 3 1 56"]),
        (
            0,
            SEVEN,
            ["1c.7g.40gb 0 7 14", "2c.7g.40gb 1 3 28", "3c.7g.40gb 2 2 42", "4c.7g.40gb 3 1 56", "7g.40gb 4 1 98"],
        ),
        (1, THREE, ["1c.3g.40gb 0 3 16", "2c.3g.40gb 1 1 32", "3g.40gb 2 1 60"]),
    ],
)
def test_compute_profiles_follow_from_the_instance(index: int, profile: int, expected: list[str]) -> None:
    instance = create_instance(mig_gpu(index), profile)
    found = []
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            first, second = (
                pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, 0, version) for version in (1, 2)
            )
        except pynvml.NVMLError_NotSupported:
            continue
        assert (first.id, first.multiprocessorCount) == (second.id, second.multiprocessorCount)
        assert pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, number) == second.instanceCount
        name = second.name.removeprefix("MIG ")
        found.append(f"{name} {second.id} {second.instanceCount} {second.multiprocessorCount}")
    assert found == expected
    for number, engines in ((pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT + 5, 0), (0, 1)):
        with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
            pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, engines)


@on_machine()
def test_compute_instances_share_their_instance_without_overlap() -> None:
    instance = create_instance(mig_gpu(), THREE)
    two = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
    one = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    infos = [pynvml.nvmlComputeInstanceGetInfo_v2(made) for made in (two, one)]
    assert [(info.id, info.profileId, info.placement.start, info.placement.size) for info in infos] == [
        (0, 1, 0, 2),
        (1, 0, 2, 1),
    ]
    with refused(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 3)
    with refused(pynvml.NVML_ERROR_IN_USE):
        pynvml.nvmlGpuInstanceDestroy(instance)
    pynvml.nvmlComputeInstanceDestroy(two)
    place = pynvml.c_nvmlComputeInstancePlacement_t(1, 1)
    made = pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 0, ctypes.byref(place))
    assert pynvml.nvmlComputeInstanceGetInfo_v2(made).placement.start == 1
    with refused(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES):
        pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 0, ctypes.byref(place))
    place.start = 3
    with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
        pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 0, ctypes.byref(place))
    with refused(pynvml.NVML_ERROR_NOT_FOUND):
        pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 5)


# ---- MIG devices ----


@on_machine()
def test_a_mig_device_is_a_device_of_its_own() -> None:
    parent = mig_gpu()
    small, large = create_mig_device(parent, ONE), create_mig_device(parent, THREE)
    assert [pynvml.nvmlDeviceGetName(device) for device in nvml.mig_devices(parent)] == [
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",  # by the number of its instance: 1 before 13
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    ]
    assert [pynvml.nvmlDeviceGetIndex(device) for device in nvml.mig_devices(parent)] == [0, 1]
    assert [pynvml.nvmlDeviceIsMigDeviceHandle(device).value for device in (parent, small)] == [0, 1]
    back = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(small)
    assert pynvml.nvmlDeviceGetUUID(back) == pynvml.nvmlDeviceGetUUID(parent)
    assert pynvml.nvmlDeviceGetMemoryInfo(small).total == 4864 * MIB
    attributes = pynvml.nvmlDeviceGetAttributes(large)
    assert (attributes.multiprocessorCount, attributes.memorySizeMB) == (42, 19968)
    assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 3)
    assert pynvml.nvmlDeviceGetCudaComputeCapability(small) == (8, 0)


@on_machine()
def test_a_mig_device_is_found_by_its_uuid_and_gets_it_again() -> None:
    parent = mig_gpu()
    uuid = pynvml.nvmlDeviceGetUUID(create_mig_device(parent, ONE))
    assert uuid.startswith("MIG-")
    assert uuid.split("-")[3].startswith("5")  # of the kind that follows from a name
    same = pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{pynvml.nvmlDeviceGetUUID(parent)}/13/0")
    assert pynvml.nvmlDeviceGetUUID(same) == uuid
    assert pynvml.nvmlDeviceGetUUID(create_mig_device(parent, ONE)) != uuid
    instance = pynvml.nvmlDeviceGetGpuInstanceById(parent, 13)
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
    with refused(pynvml.NVML_ERROR_NOT_FOUND):
        pynvml.nvmlDeviceGetHandleByUUID(uuid)
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid


@on_machine()
def test_a_handle_dies_with_what_it_stood_for() -> None:
    parent = mig_gpu()
    device = create_mig_device(parent, ONE)
    instance = pynvml.nvmlDeviceGetGpuInstanceById(parent, 13)
    compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
    create_mig_device(parent, ONE)  # at the same place
    uses: list[Callable[[], object]] = [
        lambda: pynvml.nvmlDeviceGetUUID(device),
        lambda: pynvml.nvmlGpuInstanceGetInfo(instance),
        lambda: pynvml.nvmlGpuInstanceDestroy(instance),
        lambda: pynvml.nvmlComputeInstanceGetInfo(compute),
    ]
    for use in uses:
        with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
            use()


@on_machine()
def test_what_only_a_whole_gpu_has_is_not_told_of_a_part() -> None:
    parent = mig_gpu()
    device = create_mig_device(parent, ONE)
    for ask in (pynvml.nvmlDeviceGetPowerUsage, pynvml.nvmlDeviceGetMigMode, pynvml.nvmlDeviceGetUtilizationRates):
        with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
            ask(device)
    for ask in (pynvml.nvmlDeviceGetUtilizationRates, pynvml.nvmlDeviceGetNumGpuCores):
        with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
            ask(parent)
    for ask in (pynvml.nvmlDeviceGetGpuInstanceId, pynvml.nvmlDeviceGetAttributes):
        with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
            ask(parent)


@on_machine()
@pytest.mark.parametrize(
    ("function", "bytes_of_version"),
    [("nvmlDeviceGetAttributes", 24), ("nvmlDeviceGetAttributes_v2", 40)],
)
def test_an_old_caller_gets_no_more_attributes_than_it_has_room_for(function: str, bytes_of_version: int) -> None:
    device = create_mig_device(mig_gpu(), ONE)
    buffer = (ctypes.c_ubyte * 64)(*[0xAA] * 64)
    assert call(function, device, buffer) == pynvml.NVML_SUCCESS
    assert bytes(buffer[bytes_of_version:]) == b"\xaa" * (64 - bytes_of_version)


# ---- sudden death ----

RESTLESS = """
import pynvml
from tests.native.nvml import gpu, create_mig_device
pynvml.nvmlInit()
print("ready", flush=True)
while True:
    for profile in (19, 14, 9):
        create_mig_device(gpu(), profile)
    for id in (13, 5, 1):
        instance = pynvml.nvmlDeviceGetGpuInstanceById(gpu(), id)
        pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
        pynvml.nvmlGpuInstanceDestroy(instance)
"""

CLEAN_UP = """
import pynvml
from tests.native import nvml
pynvml.nvmlInit()
parent = nvml.gpu()
pynvml.nvmlDeviceSetMigMode(parent, 1)
for device in nvml.mig_devices(parent):
    assert pynvml.nvmlDeviceGetUUID(device).startswith("MIG-")
    assert pynvml.nvmlDeviceGetAttributes(device).memorySizeMB in (4864, 9856, 19968)
    instance = pynvml.nvmlDeviceGetGpuInstanceById(parent, pynvml.nvmlDeviceGetGpuInstanceId(device))
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
for profile in (19, 14, 9):
    for instance in nvml.instances(parent, profile):
        pynvml.nvmlGpuInstanceDestroy(instance)
assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(parent, 0) == 1
"""


def test_a_process_killed_while_it_changes_the_layout_leaves_whole_instances(simulated: Simulated) -> None:
    machine = simulated()
    machine.run([sys.executable, "-c", CLEAN_UP], extra=python_path())
    for lifetime_ms in range(10, 34, 3):
        with machine.start([sys.executable, "-c", RESTLESS], **python_path()) as restless:
            assert restless.stdout is not None
            assert restless.stdout.readline() == "ready\n"
            time.sleep(lifetime_ms / 1000)
            restless.send_signal(signal.SIGKILL)
        assert restless.returncode == -signal.SIGKILL
        machine.run([sys.executable, "-c", CLEAN_UP], extra=python_path())
