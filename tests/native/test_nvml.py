"""The simulated NVML as a client sees one machine: finding devices, what they say of themselves, and misuse."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
import pytest

from tests.native.inside import on_machine
from tests.native.nvml import MIB, call, gpu, names, refused

if TYPE_CHECKING:
    from tests.support import Simulated

NAMES_BEFORE_INIT = {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlErrorString"}
#: Their first argument is no handle, though their names begin as if it were.
WITHOUT_HANDLE = (
    "nvmlDeviceDiscoverGpus",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleBy",
    "nvmlDeviceModifyDrainState",
    "nvmlDeviceQueryDrainState",
    "nvmlDeviceRemoveGpu",
)


def library() -> Path:
    return Path(os.environ["LD_LIBRARY_PATH"].split(":")[0]) / "libnvidia-ml.so.1"


def functions_of_a_handle() -> list[str]:
    families = ("nvmlDevice", "nvmlGpuInstance", "nvmlComputeInstance")
    return [name for name in names(library()) if name.startswith(families) and not name.startswith(WITHOUT_HANDLE)]


# ---- the session ----


@on_machine("2xA100-40GB,1xT4")
def test_all_gpus_are_found_in_order() -> None:
    assert pynvml.nvmlDeviceGetCount() == 3
    products = [pynvml.nvmlDeviceGetName(gpu(index)) for index in range(3)]
    assert products == ["NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", "Tesla T4"]
    with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
        gpu(3)


@on_machine()
def test_every_init_needs_its_shutdown() -> None:
    for init in ("nvmlInit", "nvmlInit_v2"):
        assert call(init) == pynvml.NVML_SUCCESS
    assert call("nvmlInitWithFlags", pynvml.NVML_INIT_FLAG_NO_GPUS) == pynvml.NVML_SUCCESS
    for _ in range(4):
        assert pynvml.nvmlDeviceGetCount() == 1
        assert call("nvmlShutdown") == pynvml.NVML_SUCCESS
    assert call("nvmlShutdown") == pynvml.NVML_ERROR_UNINITIALIZED
    assert call("nvmlInit_v2") == pynvml.NVML_SUCCESS
    assert pynvml.nvmlDeviceGetCount() == 1


@on_machine()
def test_without_init_every_function_says_so() -> None:
    assert call("nvmlShutdown") == pynvml.NVML_SUCCESS
    assert {name: call(name, *[None] * 6) for name in names(library()) if name not in NAMES_BEFORE_INIT} == {
        name: pynvml.NVML_ERROR_UNINITIALIZED for name in names(library()) if name not in NAMES_BEFORE_INIT
    }


@on_machine()
def test_a_forked_child_starts_over_and_leaves_its_parent_alone() -> None:
    device = gpu()
    child = os.fork()
    if child == 0:
        before = call("nvmlDeviceGetCount_v2", ctypes.byref(ctypes.c_uint()))
        again = call("nvmlInit_v2")
        count = ctypes.c_uint()
        call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        os._exit(0 if (before, again, count.value) == (pynvml.NVML_ERROR_UNINITIALIZED, 0, 1) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert pynvml.nvmlDeviceGetMemoryInfo(device).total == 40960 * MIB


@on_machine()
def test_the_versions_are_those_of_the_machine() -> None:
    assert pynvml.nvmlSystemGetDriverVersion().count(".") == 2
    assert pynvml.nvmlSystemGetNVMLVersion().endswith(pynvml.nvmlSystemGetDriverVersion())
    assert pynvml.nvmlSystemGetCudaDriverVersion() == pynvml.nvmlSystemGetCudaDriverVersion_v2() >= 13000
    branch = pynvml.nvmlSystemGetDriverBranch().branch
    assert branch == f"r{pynvml.nvmlSystemGetDriverVersion().split('.')[0]}_00"


@on_machine()
def test_a_process_is_named_by_its_command() -> None:
    assert "python" in pynvml.nvmlSystemGetProcessName(os.getpid())
    with refused(pynvml.NVML_ERROR_NOT_FOUND):
        pynvml.nvmlSystemGetProcessName(2**22 + 1)


@on_machine()
def test_every_error_has_a_text() -> None:
    text = pynvml._nvmlGetFunctionPointer("nvmlErrorString")
    text.restype = ctypes.c_char_p
    texts = [text(code) for code in range(31)]
    assert all(texts)
    assert len(set(texts)) == 31
    assert text(3) == b"Not Supported"
    assert text(999) == text(12345) == b"Unknown Error"


def test_without_a_machine_the_driver_is_not_loaded(simulated: Simulated) -> None:
    machine = simulated()
    script = "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as error: print(error.value)"
    done = machine.run([sys.executable, "-c", script], extra={"GPUSLICE_SIM": "no-such-machine"})
    assert done.stdout == f"{pynvml.NVML_ERROR_DRIVER_NOT_LOADED}\n"
    (machine.directory / "machine").write_bytes(b"not a machine")
    done = machine.run([sys.executable, "-c", script])
    assert done.stdout == f"{pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH}\n"


# ---- finding devices ----


@on_machine("2xA100-40GB")
def test_a_device_is_found_by_every_name_it_has() -> None:
    device = gpu(1)
    assert pynvml.nvmlDeviceGetIndex(device) == 1
    uuid, pci = pynvml.nvmlDeviceGetUUID(device), pynvml.nvmlDeviceGetPciInfo(device)
    found = [
        pynvml.nvmlDeviceGetHandleByUUID(uuid),
        pynvml.nvmlDeviceGetHandleByUUID(uuid.upper().replace("GPU", "gpu")),
        pynvml.nvmlDeviceGetHandleBySerial(pynvml.nvmlDeviceGetSerial(device)),
        pynvml.nvmlDeviceGetHandleByPciBusId(pci.busId),
        pynvml.nvmlDeviceGetHandleByPciBusId(pci.busIdLegacy),
        pynvml.nvmlDeviceGetHandleByPciBusId("08:00"),
    ]
    assert [pynvml.nvmlDeviceGetUUID(handle) for handle in found] == [uuid] * len(found)


class Uuid(ctypes.Structure):
    """nvmlUUID_v1_t, which the bindings lack."""

    _fields_ = (("version", ctypes.c_uint), ("type", ctypes.c_uint), ("value", ctypes.c_ubyte * 44))


@on_machine()
def test_a_device_is_found_by_a_uuid_in_either_form() -> None:
    uuid = pynvml.nvmlDeviceGetUUID(gpu())
    version, found = 1 << 24 | ctypes.sizeof(Uuid), ctypes.c_void_p()

    def search(version: int, kind: int, value: bytes) -> int:
        asked = Uuid(version, kind, (ctypes.c_ubyte * 44)(*value))
        return call("nvmlDeviceGetHandleByUUIDV", ctypes.byref(asked), ctypes.byref(found))

    for kind, value in ((1, uuid.encode()), (2, bytes.fromhex(uuid.removeprefix("GPU-").replace("-", "")))):
        found.value = None
        assert search(version, kind, value) == pynvml.NVML_SUCCESS
        assert found.value == ctypes.cast(gpu(), ctypes.c_void_p).value
    assert search(version, 2, b"nobody's") == pynvml.NVML_ERROR_NOT_FOUND
    assert search(version, 3, uuid.encode()) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert search(version + 1, 1, uuid.encode()) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


@on_machine()
@pytest.mark.parametrize(
    ("search", "name"),
    [
        ("nvmlDeviceGetHandleByUUID", "GPU-00000000-0000-0000-0000-000000000000"),
        ("nvmlDeviceGetHandleByUUID", ""),
        ("nvmlDeviceGetHandleBySerial", ""),
        ("nvmlDeviceGetHandleByPciBusId", "0000:FF:00.0"),
        ("nvmlDeviceGetHandleByPciBusId", "0000:07:00.1"),
        ("nvmlDeviceGetHandleByPciBusId", "0000:07:00.0 and more"),
        ("nvmlDeviceGetHandleByPciBusId", "elsewhere"),
    ],
)
def test_a_device_that_is_not_there_is_not_found(search: str, name: str) -> None:
    with refused(pynvml.NVML_ERROR_NOT_FOUND):
        getattr(pynvml, search)(name)


# ---- what a device says of itself ----


@on_machine("1xA100-40GB,1xA100-80GB,1xH100-80GB,1xL4,1xT4,1xRTX-4090")
def test_each_model_reports_its_real_numbers() -> None:
    def story(index: int) -> tuple[object, ...]:
        device = gpu(index)
        return (
            pynvml.nvmlDeviceGetName(device),
            pynvml.nvmlDeviceGetMemoryInfo(device).total // MIB,
            pynvml.nvmlDeviceGetCudaComputeCapability(device),
            pynvml.nvmlDeviceGetArchitecture(device),
            f"{pynvml.nvmlDeviceGetPciInfo(device).pciDeviceId:08X}",
            pynvml.nvmlDeviceGetNumGpuCores(device),
            pynvml.nvmlDeviceGetPowerManagementLimit(device) // 1000,
            pynvml.nvmlDeviceGetMaxPcieLinkGeneration(device),
        )

    assert [story(index) for index in range(6)] == [
        ("NVIDIA A100-SXM4-40GB", 40960, (8, 0), pynvml.NVML_DEVICE_ARCH_AMPERE, "20B010DE", 6912, 400, 4),
        ("NVIDIA A100-SXM4-80GB", 81920, (8, 0), pynvml.NVML_DEVICE_ARCH_AMPERE, "20B210DE", 6912, 400, 4),
        ("NVIDIA H100 80GB HBM3", 81559, (9, 0), pynvml.NVML_DEVICE_ARCH_HOPPER, "233010DE", 16896, 700, 5),
        ("NVIDIA L4", 23034, (8, 9), pynvml.NVML_DEVICE_ARCH_ADA, "27B810DE", 7424, 72, 4),
        ("Tesla T4", 15360, (7, 5), pynvml.NVML_DEVICE_ARCH_TURING, "1EB810DE", 2560, 70, 3),
        ("NVIDIA GeForce RTX 4090", 24564, (8, 9), pynvml.NVML_DEVICE_ARCH_ADA, "268410DE", 16384, 450, 4),
    ]


@on_machine()
def test_an_idle_gpu_is_empty_cool_and_slow() -> None:
    device = gpu()
    memory = pynvml.nvmlDeviceGetMemoryInfo(device)
    assert (memory.used, memory.free) == (0, memory.total)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(device) == []
    rates = pynvml.nvmlDeviceGetUtilizationRates(device)
    assert (rates.gpu, rates.memory) == (0, 0)
    assert pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU) == 32
    assert pynvml.nvmlDeviceGetPowerUsage(device) == 50_000
    assert pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM) == 210
    assert pynvml.nvmlDeviceGetMaxClockInfo(device, pynvml.NVML_CLOCK_SM) == 1410
    assert pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_MEM) == 1215


@on_machine("1xA100-40GB,1xRTX-4090")
def test_a_board_for_racks_and_one_for_desks_differ_as_they_do() -> None:
    rack, desk = gpu(0), gpu(1)
    assert pynvml.nvmlDeviceGetNumFans(rack) == 0
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlDeviceGetFanSpeed(rack)
    assert pynvml.nvmlDeviceGetFanSpeed(desk) == 30
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlDeviceGetSerial(desk)
    assert pynvml.nvmlDeviceGetEccMode(rack) == [1, 1]
    assert pynvml.nvmlDeviceGetEccMode(desk) == [0, 0]
    volatile = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    assert pynvml.nvmlDeviceGetTotalEccErrors(rack, *volatile) == 0
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlDeviceGetTotalEccErrors(desk, *volatile)
    assert pynvml.nvmlDeviceGetPerformanceState(rack) == 0
    assert pynvml.nvmlDeviceGetPerformanceState(desk) == 8
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlDeviceGetMigMode(desk)


@on_machine("2xA100-40GB")
def test_neighbours_know_how_far_they_are_apart() -> None:
    first, second = gpu(0), gpu(1)
    assert pynvml.nvmlDeviceGetTopologyCommonAncestor(first, first) == pynvml.NVML_TOPOLOGY_INTERNAL
    assert pynvml.nvmlDeviceGetTopologyCommonAncestor(first, second) == pynvml.NVML_TOPOLOGY_NODE
    assert pynvml.nvmlDeviceGetP2PStatus(first, second, pynvml.NVML_P2P_CAPS_INDEX_WRITE) == pynvml.NVML_P2P_STATUS_OK
    cpus = pynvml.nvmlDeviceGetCpuAffinity(first, 16)
    assert sum(word.bit_count() for word in cpus) == os.cpu_count()


@on_machine()
def test_memory_has_two_versions_that_agree_and_a_third_is_refused() -> None:
    device = gpu()
    first, second = pynvml.nvmlDeviceGetMemoryInfo(device), pynvml.nvmlDeviceGetMemoryInfo(device, pynvml.nvmlMemory_v2)
    assert (first.total, first.free, first.used) == (second.total, second.free, second.used)
    assert second.reserved == 0
    second.version = 3 << 24 | ctypes.sizeof(second)
    code = call("nvmlDeviceGetMemoryInfo_v2", device, ctypes.byref(second))
    assert code == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


@on_machine()
def test_many_fields_are_asked_for_at_once_and_each_has_its_own_answer() -> None:
    fields = [pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, pynvml.NVML_FI_DEV_ECC_CURRENT, 9999]
    energy, ecc, unknown = pynvml.nvmlDeviceGetFieldValues(gpu(), fields)
    assert (energy.nvmlReturn, energy.valueType) == (0, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
    assert energy.value.ullVal <= pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu())
    assert (ecc.nvmlReturn, ecc.value.uiVal) == (0, 1)
    assert unknown.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


@on_machine()
@pytest.mark.parametrize(("function", "bytes_of_version"), [("", 32), ("_v2", 36), ("_v3", 68)])
def test_an_old_caller_gets_no_more_bytes_than_it_has_room_for(function: str, bytes_of_version: int) -> None:
    buffer = (ctypes.c_ubyte * 128)(*[0xAA] * 128)
    assert call(f"nvmlDeviceGetPciInfo{function}", gpu(), buffer) == pynvml.NVML_SUCCESS
    assert bytes(buffer[bytes_of_version:]) == b"\xaa" * (128 - bytes_of_version)
    assert bytes(buffer[:12]) == b"0000:07:00.0"


# ---- misuse ----


@on_machine()
def test_a_text_that_does_not_fit_is_refused_whole() -> None:
    buffer = ctypes.create_string_buffer(b"untouched", 64)
    for name in ("Name", "UUID", "Serial", "VbiosVersion", "BoardPartNumber"):
        code = call(f"nvmlDeviceGet{name}", gpu(), buffer, 4)
        assert (code, buffer.value) == (pynvml.NVML_ERROR_INSUFFICIENT_SIZE, b"untouched")


@on_machine()
def test_null_is_refused_everywhere_and_never_followed() -> None:
    fine = {pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED}
    everything = [name for name in names(library()) if name not in NAMES_BEFORE_INIT | {"nvmlShutdown"}]
    assert [name for name in everything if call(name, *[None] * 8) not in fine] == []
    device = gpu()
    assert [name for name in functions_of_a_handle() if call(name, device, *[None] * 7) not in fine] == []


@on_machine()
def test_a_bad_handle_is_refused_everywhere_and_never_followed() -> None:
    fine = {pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED}
    room = ctypes.create_string_buffer(4096)
    own = ctypes.cast(gpu(), ctypes.c_void_p).value
    assert own is not None
    # Nothing, an address that is none, one that is, the handle of a GPU that is not there, and ones never given out.
    for bad in (0xDEADBEEF, ctypes.addressof(room), own + (5 << 40), own + (1 << 44), own + (2 << 44), own ^ (1 << 63)):
        handle = ctypes.c_void_p(bad)
        assert [name for name in functions_of_a_handle() if call(name, handle, *[room] * 6) not in fine] == []


@on_machine("1xH100-80GB")
@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetPciInfoExt",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetRunningProcessDetailList",
        "nvmlDeviceGetProcessesUtilizationInfo",
    ],
)
def test_a_structure_of_no_known_version_is_refused(function: str) -> None:
    for version in (0, 1, 99 << 24 | 16, 0xFFFFFFFF):
        structure = (ctypes.c_uint * 256)(version)
        assert call(function, gpu(), structure) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
