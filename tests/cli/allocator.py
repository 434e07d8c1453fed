"""A program that uses the driver as any other does, and does what it is told, one line at a time.

4           allocate 4 MiB; prints the driver's code
child 4     allocate 4 MiB in a child process; prints the child's code
memory      prints the total memory of the device in MiB
devices     prints how many devices there are
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

MIB = 1 << 20


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer, count = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    say(f"ready {os.getpid()}")
    for line in sys.stdin:
        match line.split():
            case ["memory"]:
                total = ctypes.c_size_t()
                assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
                say(str(total.value // MIB))
            case ["devices"]:
                say(str(count.value))
            case ["child", size]:
                child = subprocess.run(
                    [sys.executable, __file__], input=size, check=True, capture_output=True, text=True
                )
                say(child.stdout.splitlines()[-1])
            case [size]:
                say(str(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(size) * MIB))))
            case _:
                raise SystemExit(f"what is {line!r}?")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
