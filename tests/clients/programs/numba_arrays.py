"""numba-cuda with arrays, streams, events, memory of every kind it has, and a kernel.

Run in its environment, on a simulated machine, which does not compute what numba compiles: only that it loads and
launches is checked.
"""

from __future__ import annotations

import gc
import sys

import numpy as np
from numba import cuda

MIB = 1024**2
HOST = np.arange(4096, dtype=np.float32)


@cuda.jit
def double(values):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201 - numba finds the types
    here = cuda.grid(1)
    if here < values.size:
        values[here] *= 2


def check_devices() -> None:
    assert cuda.is_available()
    assert len(cuda.gpus) == 1
    assert cuda.get_current_device().name in (b"NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB")
    assert cuda.current_context().get_memory_info().total == 40960 * MIB


def check_arrays() -> None:
    stream = cuda.stream()
    there = cuda.to_device(HOST, stream=stream)
    other = cuda.device_array_like(HOST)
    other.copy_to_device(there, stream=stream)
    back = other.copy_to_host(stream=stream)
    stream.synchronize()
    assert np.array_equal(back, HOST)
    assert np.array_equal(there[10:20].copy_to_host(), HOST[10:20])
    with cuda.pinned(np.zeros_like(HOST)):
        pinned = cuda.pinned_array_like(HOST)
    there.copy_to_host(pinned)
    assert np.array_equal(pinned, HOST)
    managed = cuda.managed_array(HOST.shape, dtype=HOST.dtype)
    managed[:] = HOST
    assert np.array_equal(managed, HOST)


def check_memory_info() -> None:
    context = cuda.current_context()
    context.memory_manager.deallocations.clear()
    before = context.get_memory_info().free
    array = cuda.device_array(64 * MIB, dtype=np.uint8)
    assert context.get_memory_info().free == before - 64 * MIB
    del array
    gc.collect()
    context.memory_manager.deallocations.clear()
    assert context.get_memory_info().free == before


def check_kernel() -> None:
    stream = cuda.stream()
    begin, end = cuda.event(), cuda.event()
    array = cuda.to_device(HOST, stream=stream)
    begin.record(stream)
    double[16, 256, stream](array)
    end.record(stream)
    end.synchronize()
    assert begin.elapsed_time(end) > 0
    cuda.synchronize()


def main() -> None:
    check_devices()
    check_arrays()
    check_memory_info()
    check_kernel()
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main()
