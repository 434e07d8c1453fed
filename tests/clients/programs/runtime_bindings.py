"""The runtime API through NVIDIA's cuda-bindings (12 or 13), which bring a runtime of their own.

Run in that environment, on a simulated machine.
"""

from __future__ import annotations

import sys
from typing import Any

from cuda.bindings import runtime

MIB = 1024**2
DATA = bytes(range(256)) * 16
TO_DEVICE = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
TO_HOST = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost


def ask(answer: tuple[Any, ...], expected: str = "cudaSuccess") -> Any:  # noqa: ANN401 - what the call gives
    """The results of a call, which must end with that code."""
    code, *results = answer
    assert code == getattr(runtime.cudaError_t, expected), code
    return results[0] if len(results) == 1 else tuple(results)


def available() -> int:
    return int(ask(runtime.cudaMemGetInfo())[0])


def devices() -> None:
    assert ask(runtime.cudaGetDeviceCount()) == 1
    properties = ask(runtime.cudaGetDeviceProperties(0))
    assert properties.name.rstrip(b"\0") == b"NVIDIA A100-SXM4-40GB"
    assert properties.totalGlobalMem == 40960 * MIB
    assert ask(runtime.cudaDriverGetVersion()) == 13040


def memory() -> None:
    before = available()
    address = ask(runtime.cudaMalloc(len(DATA)))
    copy = bytearray(len(DATA))
    ask(runtime.cudaMemcpy(address, DATA, len(DATA), TO_DEVICE))
    ask(runtime.cudaMemcpy(copy, address, len(DATA), TO_HOST))
    assert bytes(copy) == DATA
    ask(runtime.cudaFree(address))
    assert available() == before
    ask(runtime.cudaMalloc(before + 1), "cudaErrorMemoryAllocation")
    ask(runtime.cudaGetLastError(), "cudaErrorMemoryAllocation")


def streams_events_and_graphs() -> None:
    stream = ask(runtime.cudaStreamCreate())
    address = ask(runtime.cudaMallocAsync(len(DATA), stream))
    begin, end = (ask(runtime.cudaEventCreate()) for _ in range(2))
    ask(runtime.cudaEventRecord(begin, stream))
    ask(runtime.cudaMemcpyAsync(address, DATA, len(DATA), TO_DEVICE, stream))
    ask(runtime.cudaEventRecord(end, stream))
    ask(runtime.cudaEventSynchronize(end))
    assert ask(runtime.cudaEventElapsedTime(begin, end)) > 0
    copy = bytearray(len(DATA))
    ask(runtime.cudaStreamBeginCapture(stream, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal))
    ask(runtime.cudaMemcpyAsync(copy, address, len(DATA), TO_HOST, stream))
    graph = ask(runtime.cudaStreamEndCapture(stream))
    assert bytes(copy) == bytes(len(DATA))
    executable = ask(runtime.cudaGraphInstantiate(graph, 0))
    ask(runtime.cudaGraphLaunch(executable, stream))
    ask(runtime.cudaStreamSynchronize(stream))
    assert bytes(copy) == DATA
    ask(runtime.cudaGraphExecDestroy(executable))
    ask(runtime.cudaGraphDestroy(graph))
    ask(runtime.cudaFreeAsync(address, stream))
    ask(runtime.cudaStreamSynchronize(stream))
    ask(runtime.cudaStreamDestroy(stream))


def main() -> None:
    devices()
    memory()
    streams_events_and_graphs()
    ask(runtime.cudaDeviceReset())
    memory()
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main()
