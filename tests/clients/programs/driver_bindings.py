"""The driver API through NVIDIA's cuda-bindings (12 or 13). Run in that environment, on a simulated machine.

driver_bindings.py              every check; the first that fails ends it
driver_bindings.py import HEX   writes into memory that another process shared
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

from cuda.bindings import driver

MIB = 1024**2
DATA = bytes(range(256)) * 16


def ask(answer: tuple[Any, ...], expected: str = "CUDA_SUCCESS") -> Any:  # noqa: ANN401 - what the call gives
    """The results of a call, which must end with that code."""
    code, *results = answer
    assert code == getattr(driver.CUresult, expected), code
    return results[0] if len(results) == 1 else tuple(results)


def pointer(number: int) -> Any:  # noqa: ANN401 - a type of the bindings
    return driver.CUdeviceptr(number)


def read(address: Any, size: int = len(DATA)) -> bytes:  # noqa: ANN401 - a type of the bindings
    copy = bytearray(size)
    ask(driver.cuMemcpyDtoH(copy, address, size))
    return bytes(copy)


def write(address: Any) -> None:  # noqa: ANN401 - a type of the bindings
    ask(driver.cuMemcpyHtoD(address, DATA, len(DATA)))


def available() -> int:
    return int(ask(driver.cuMemGetInfo())[0])


def device_location() -> Any:  # noqa: ANN401 - a type of the bindings
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = 0
    return location


def open_device() -> None:
    ask(driver.cuInit(0))
    assert ask(driver.cuDeviceGetCount()) == 1
    device = ask(driver.cuDeviceGet(0))
    assert ask(driver.cuDeviceGetName(64, device)).split(b"\0")[0] == b"NVIDIA A100-SXM4-40GB"
    assert ask(driver.cuDeviceTotalMem(device)) == 40960 * MIB
    ask(driver.cuCtxSetCurrent(ask(driver.cuDevicePrimaryCtxRetain(device))))


def linear_pitched_and_managed_memory() -> None:
    before = available()
    linear = ask(driver.cuMemAlloc(len(DATA)))
    pitched, pitch = ask(driver.cuMemAllocPitch(100, 40, 4))
    managed = ask(driver.cuMemAllocManaged(len(DATA), driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value))
    assert pitch >= 100
    assert available() < before
    for address in (linear, managed):
        write(address)
        assert read(address) == DATA
    ask(driver.cuMemsetD8(pitched, 7, pitch * 40))
    assert read(pitched, pitch * 40) == b"\7" * (pitch * 40)
    for address in (linear, pitched, managed):
        ask(driver.cuMemFree(address))
    ask(driver.cuMemFree(linear), "CUDA_ERROR_INVALID_VALUE")
    assert available() == before
    ask(driver.cuMemAlloc(before + 1), "CUDA_ERROR_OUT_OF_MEMORY")


def arrays_and_mipmaps() -> None:
    described = driver.CUDA_ARRAY3D_DESCRIPTOR()
    described.Width, described.Height, described.Depth = 64, 64, 0
    described.Format, described.NumChannels = driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8, 1
    before = available()
    mipmap = ask(driver.cuMipmappedArrayCreate(described, 3))
    assert available() < before
    level = ask(driver.cuMipmappedArrayGetLevel(mipmap, 0))
    for array in (level, ask(driver.cuArray3DCreate(described))):
        there = driver.CUDA_MEMCPY2D()
        there.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        there.srcHost, there.srcPitch = DATA, 64
        there.dstMemoryType, there.dstArray = driver.CUmemorytype.CU_MEMORYTYPE_ARRAY, array
        there.WidthInBytes, there.Height = 64, 64
        ask(driver.cuMemcpy2D(there))
        copy = bytearray(64 * 64)
        back = driver.CUDA_MEMCPY2D()
        back.srcMemoryType, back.srcArray = driver.CUmemorytype.CU_MEMORYTYPE_ARRAY, array
        back.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        back.dstHost, back.dstPitch = copy, 64
        back.WidthInBytes, back.Height = 64, 64
        ask(driver.cuMemcpy2D(back))
        assert bytes(copy) == DATA[: 64 * 64]
    ask(driver.cuArrayDestroy(array))
    ask(driver.cuMipmappedArrayDestroy(mipmap))
    assert available() == before


def virtual_memory() -> None:
    before = available()
    wanted = driver.CUmemAllocationProp()
    wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location = device_location()
    minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    size = ask(driver.cuMemGetAllocationGranularity(wanted, minimum))
    physical = ask(driver.cuMemCreate(size, wanted, 0))
    assert available() == before - size
    # Twice the addresses for one piece of memory: what is written through one is read through the other.
    reserved = int(ask(driver.cuMemAddressReserve(2 * size, 0, pointer(0), 0)))
    access = driver.CUmemAccessDesc()
    access.location = device_location()
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    for address in (reserved, reserved + size):
        ask(driver.cuMemMap(pointer(address), size, 0, physical, 0))
        ask(driver.cuMemSetAccess(pointer(address), size, [access], 1))
    write(pointer(reserved))
    assert read(pointer(reserved + size)) == DATA
    again = ask(driver.cuMemRetainAllocationHandle(reserved))
    for address in (reserved, reserved + size):
        ask(driver.cuMemUnmap(pointer(address), size))
    ask(driver.cuMemRelease(again))
    assert available() == before - size
    ask(driver.cuMemRelease(physical))
    ask(driver.cuMemAddressFree(pointer(reserved), 2 * size))
    assert available() == before


def stream_ordered_memory_and_pools() -> None:
    before = available()
    stream = ask(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value))
    wanted = driver.CUmemPoolProps()
    wanted.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location = device_location()
    pool = ask(driver.cuMemPoolCreate(wanted))
    ordered = ask(driver.cuMemAllocAsync(len(DATA), stream))
    pooled = ask(driver.cuMemAllocFromPoolAsync(len(DATA), pool, stream))
    ask(driver.cuMemcpyHtoDAsync(ordered, DATA, len(DATA), stream))
    ask(driver.cuMemcpyDtoDAsync(pooled, ordered, len(DATA), stream))
    ask(driver.cuStreamSynchronize(stream))
    assert read(pooled) == DATA
    ask(driver.cuMemFreeAsync(ordered, stream))
    ask(driver.cuMemFreeAsync(pooled, stream))
    ask(driver.cuStreamSynchronize(stream))
    ask(driver.cuMemPoolDestroy(pool))
    ask(driver.cuStreamDestroy(stream))
    ask(driver.cuCtxSynchronize())
    assert available() == before


def graphs_with_memory_nodes() -> None:
    before = available()
    graph = ask(driver.cuGraphCreate(0))
    wanted = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
    wanted.poolProps.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.poolProps.location = device_location()
    wanted.bytesize = 2 * MIB
    allocation = ask(driver.cuGraphAddMemAllocNode(graph, None, 0, wanted))
    assert int(wanted.dptr) != 0
    assert available() == before  # an address, but no bytes until it is launched
    executable = ask(driver.cuGraphInstantiate(graph, 0))
    ask(driver.cuGraphLaunch(executable, 0))
    ask(driver.cuCtxSynchronize())
    assert available() <= before - 2 * MIB
    write(wanted.dptr)
    assert read(wanted.dptr) == DATA
    ask(driver.cuMemFree(wanted.dptr))
    ask(driver.cuGraphExecDestroy(executable))
    ask(driver.cuGraphDestroy(graph))
    ask(driver.cuDeviceGraphMemTrim(0))
    assert available() == before
    assert allocation is not None


def kernels_by_name() -> None:
    code = b".version 8.0\n.target sm_80\n.entry gpuslice_fill() { ret; }\n\0"
    module = ask(driver.cuModuleLoadData(code))
    function = ask(driver.cuModuleGetFunction(module, b"gpuslice_fill"))
    address = ask(driver.cuMemAlloc(4096))
    begin, end = (ask(driver.cuEventCreate(0)) for _ in range(2))
    ask(driver.cuEventRecord(begin, 0))
    arguments = ((address, 1.5, 1024), (None, ctypes.c_float, ctypes.c_ulonglong))
    ask(driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, 0, arguments, 0))
    ask(driver.cuEventRecord(end, 0))
    ask(driver.cuEventSynchronize(end))
    assert ask(driver.cuEventElapsedTime(begin, end)) > 0
    assert bytes(read(address, 4096)) == bytes((ctypes.c_float * 1024)(*[1.5] * 1024))
    ask(driver.cuMemFree(address))
    ask(driver.cuModuleUnload(module))


def another_process_shares_memory() -> None:
    address = ask(driver.cuMemAlloc(len(DATA)))
    ask(driver.cuMemsetD8(address, 0, len(DATA)))
    shared = ask(driver.cuIpcGetMemHandle(address))
    handle = ctypes.string_at(shared.getPtr(), 64)
    subprocess.run([sys.executable, __file__, "import", handle.hex()], check=True, timeout=60)
    assert read(address) == DATA
    ask(driver.cuMemFree(address))


def import_memory(text: str) -> None:
    handle = driver.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), bytes.fromhex(text), 64)
    lazily = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    shared = ask(driver.cuIpcOpenMemHandle(handle, lazily.value))
    write(shared)
    ask(driver.cuIpcCloseMemHandle(shared))


def main(arguments: list[str]) -> None:
    open_device()
    if arguments:
        import_memory(arguments[1])
        return
    linear_pitched_and_managed_memory()
    arrays_and_mipmaps()
    virtual_memory()
    stream_ordered_memory_and_pools()
    graphs_with_memory_nodes()
    kernels_by_name()
    another_process_shares_memory()
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main(sys.argv[1:])
