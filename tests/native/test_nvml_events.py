"""Event sets of the simulated NVML, and GPUs that are lost."""

from __future__ import annotations

import ctypes
import os
import threading
import time

import pynvml
import pytest

from tests.native.inside import on_machine
from tests.native.nvml import Handle, call, gpu, refused

XID = pynvml.nvmlEventTypeXidCriticalError
NO_INSTANCE = 0xFFFFFFFF


def inject(index: int, xid: int) -> None:
    assert call("gpusliceSimInjectXid", index, xid) == pynvml.NVML_SUCCESS


def event_set(*gpus: int) -> Handle:
    made = pynvml.nvmlEventSetCreate()
    for index in gpus:
        pynvml.nvmlDeviceRegisterEvents(gpu(index), XID, made)
    return made


def wait(events: Handle, timeout_ms: int = 0) -> tuple[int, int]:
    """The GPU and the XID of the next event."""
    data = pynvml.nvmlEventSetWait_v2(events, timeout_ms)
    assert data.eventType == XID
    assert (data.gpuInstanceId, data.computeInstanceId) == (NO_INSTANCE, NO_INSTANCE)
    return pynvml.nvmlDeviceGetIndex(data.device), data.eventData


@on_machine("2xA100-40GB")
def test_a_set_sees_what_happens_to_its_gpus_after_they_joined_it() -> None:
    inject(0, 31)
    events = event_set(0)
    inject(0, 43)
    inject(1, 48)  # not registered
    inject(0, 63)
    assert [wait(events), wait(events)] == [(0, 43), (0, 63)]
    with refused(pynvml.NVML_ERROR_TIMEOUT):
        wait(events)
    pynvml.nvmlDeviceRegisterEvents(gpu(1), XID, events)
    inject(1, 94)
    assert wait(events) == (1, 94)


@on_machine("2xA100-40GB")
def test_each_set_sees_each_event_once() -> None:
    first, second = event_set(0, 1), event_set(1)
    inject(0, 43)
    inject(1, 48)
    assert [wait(first), wait(first), wait(second)] == [(0, 43), (1, 48), (1, 48)]
    for events in (first, second):
        with refused(pynvml.NVML_ERROR_TIMEOUT):
            wait(events)


@on_machine()
def test_waiting_ends_with_the_event_or_with_the_time() -> None:
    events = event_set(0)
    before = time.monotonic()
    with refused(pynvml.NVML_ERROR_TIMEOUT):
        wait(events, 150)
    assert 0.15 <= time.monotonic() - before < 2
    threading.Timer(0.1, inject, (0, 43)).start()
    before = time.monotonic()
    assert wait(events, 60_000) == (0, 43)
    assert time.monotonic() - before < 5


@on_machine()
def test_a_waiter_that_comes_too_late_gets_the_newest() -> None:
    events = event_set(0)
    for number in range(1000):
        inject(0, 1000 + number)
    seen = []
    while True:
        try:
            seen.append(wait(events)[1])
        except pynvml.NVMLError_Timeout:
            break
    assert seen == list(range(2000 - len(seen), 2000))
    assert len(seen) == 256


@on_machine()
def test_events_cross_processes() -> None:
    events = event_set(0)
    child = os.fork()
    if child == 0:
        pynvml.nvmlInit()
        inject(0, 74)
        os._exit(0)
    assert wait(events, 60_000) == (0, 74)
    assert os.waitpid(child, 0)[1] == 0


@on_machine()
def test_an_old_waiter_gets_no_more_bytes_than_it_has_room_for() -> None:
    for function, size in (("nvmlEventSetWait", 24), ("nvmlEventSetWait_v2", 32)):
        events = event_set(0)
        inject(0, 43)
        buffer = (ctypes.c_ubyte * 64)(*[0xAA] * 64)
        assert call(function, events, buffer, 0) == pynvml.NVML_SUCCESS
        assert bytes(buffer[size:]) == b"\xaa" * (64 - size)


@on_machine("1xA100-40GB")
def test_a_set_takes_what_the_gpu_supports_and_nothing_else() -> None:
    supported = pynvml.nvmlDeviceGetSupportedEventTypes(gpu())
    assert supported & XID
    events = pynvml.nvmlEventSetCreate()
    with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
        pynvml.nvmlDeviceRegisterEvents(gpu(), 1 << 40, events)
    pynvml.nvmlEventSetFree(events)
    for misuse in (
        lambda: pynvml.nvmlEventSetFree(events),
        lambda: pynvml.nvmlDeviceRegisterEvents(gpu(), XID, events),
        lambda: wait(events),
        lambda: wait(ctypes.c_void_p(0xDEADBEEF)),
    ):
        with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
            misuse()


@on_machine("2xA100-40GB")
def test_a_gpu_that_fell_off_the_bus_is_lost_to_queries_and_still_counted() -> None:
    events = event_set(0, 1)
    inject(1, 79)
    data = pynvml.nvmlEventSetWait_v2(events, 0)
    assert data.eventData == 79
    assert pynvml.nvmlDeviceGetCount() == 2
    for ask in (pynvml.nvmlDeviceGetUUID, pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlDeviceGetComputeRunningProcesses):
        with refused(pynvml.NVML_ERROR_GPU_IS_LOST):
            ask(gpu(1))
        with refused(pynvml.NVML_ERROR_GPU_IS_LOST):
            ask(data.device)
    assert pynvml.nvmlDeviceGetMemoryInfo(gpu(0)).used == 0


@on_machine()
def test_an_xid_needs_a_gpu_that_is_there() -> None:
    assert call("gpusliceSimInjectXid", 1, 43) == pynvml.NVML_ERROR_INVALID_ARGUMENT


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@on_machine()
def test_only_an_administrator_of_the_machine_injects() -> None:
    os.seteuid(65534)
    assert call("gpusliceSimInjectXid", 0, 43) == pynvml.NVML_ERROR_NO_PERMISSION
