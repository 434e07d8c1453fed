"""A process on a simulated machine that does what a test tells it, through the driver API and NVML.

It is a program (`python worker.py`): each line of its input is a command with a number, each line of its output the
answer. Tests start one with `with worker(machine) as process`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.support import SimulatedMachine

KERNELS = b".version 8.0\n.target sm_80\n.entry gpuslice_spin() { ret; }\n"


class Worker:
    """The test's end of it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def begin(self, command: str, number: int = 0) -> None:
        """Tells it to do that; `result` waits for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command} {number}\n")
        self.process.stdin.flush()

    def result(self) -> Any:  # noqa: ANN401 - JSON
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the worker is gone"
        return json.loads(line)

    def do(self, command: str, number: int = 0) -> Any:  # noqa: ANN401 - JSON
        self.begin(command, number)
        return self.result()

    def end(self, signal: int) -> None:
        """Ends it by that signal, and waits until it is gone."""
        self.process.send_signal(signal)
        self.process.wait(timeout=60)


@contextmanager
def worker(machine: SimulatedMachine, **extra: str) -> Iterator[Worker]:
    """In the block there is a process with a context on the machine's first GPU."""
    with machine.start([sys.executable, Path(__file__)], **extra) as process:
        try:
            yield Worker(process)
        finally:
            process.kill()


class Commands:
    """The process's end of it."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.held: list[ctypes.c_uint64] = []
        context, module, self.spin_kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.check("cuInit", 0)
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.check("cuCtxSetCurrent", context)
        self.check("cuModuleLoadData", ctypes.byref(module), KERNELS)
        self.check("cuModuleGetFunction", ctypes.byref(self.spin_kernel), module, b"gpuslice_spin")

    def check(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - C takes what it is given
        code = self.cuda[name](*arguments)
        assert code == 0, f"{name} returned {code}"

    def allocate(self, size: int) -> int:
        pointer = ctypes.c_uint64()
        code: int = self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
        if code == 0:
            self.held.append(pointer)
        return code

    def free(self, _: int) -> int:
        code: int = self.cuda.cuMemFree_v2(self.held.pop())
        return code

    def available(self, _: int) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def churn(self, size: int) -> int:
        """Allocates and frees for ever; says so first."""
        answer(0)
        while True:
            self.allocate(size)
            self.free(0)

    def launch(self, microseconds: int) -> int:
        """What the launch of a kernel of that much work answers."""
        argument = ctypes.c_uint64(microseconds)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        code: int = self.cuda.cuLaunchKernel(self.spin_kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
        return code

    def spin(self, microseconds: int) -> float:
        """Milliseconds of the device's clock that a kernel of that much work took."""
        begin, end, elapsed = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
        for event in (begin, end):
            self.check("cuEventCreate", ctypes.byref(event), 0)
        self.check("cuEventRecord", begin, None)
        assert self.launch(microseconds) == 0
        self.check("cuEventRecord", end, None)
        self.check("cuEventSynchronize", end)
        self.check("cuEventElapsedTime_v2", ctypes.byref(elapsed), begin, end)
        return elapsed.value

    def fork(self, _: int) -> list[int]:
        """What cuInit, cuMemAlloc and cuCtxSynchronize answer in a child, and how the child ended."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            codes: list[int] = [self.cuda.cuInit(0), self.allocate(4096), self.cuda.cuCtxSynchronize()]
            os.write(writer, json.dumps(codes).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            codes = json.load(answer)
        return [*codes, os.waitpid(child, 0)[1]]

    def replace(self, _: int) -> None:
        """Becomes another program, which holds nothing."""
        os.execv("/bin/sh", ["sh", "-c", "echo 0; read -r line"])  # noqa: S606 - replacing itself is what is wanted

    def used(self, _: int) -> dict[str, int]:
        """Bytes of the first GPU in use, and by whom, as NVML sees it."""
        import pynvml

        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        answer = {"all": pynvml.nvmlDeviceGetMemoryInfo(gpu).used}
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu):
            answer[str(process.pid)] = process.usedGpuMemory
        pynvml.nvmlShutdown()
        return answer

    def shares(self, _: int) -> dict[str, int]:
        """Percent of the first GPU's time that each process had, as NVML sees it."""
        import pynvml

        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        try:
            return {str(one.pid): one.smUtil for one in pynvml.nvmlDeviceGetProcessUtilization(gpu, 0)}
        except pynvml.NVMLError_NotFound:
            return {}
        finally:
            pynvml.nvmlShutdown()


def answer(value: Any) -> None:  # noqa: ANN401 - JSON
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


def main() -> None:
    commands = Commands()
    for line in sys.stdin:
        name, number = line.split()
        answer(getattr(commands, name)(int(number)))


if __name__ == "__main__":
    main()
