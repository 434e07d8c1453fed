"""A process with memory on the first GPU, taken from the driver behind gpuslice's back.

    gpu_user.py                         has no slot
    gpu_user.py SOCKET SESSION TOKEN    has one, and charges what it is told

It prints `ready`, then `ok` after each command that it reads: `take BYTES`, `charge BYTES`, `drop BYTES`.
"""

from __future__ import annotations

import ctypes
import sys

from tests.node.tenant import Tenant

cuda = ctypes.CDLL("libcuda.so.1")


def take(size: int) -> None:
    pointer = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0


def main() -> None:
    tenant = Tenant(*sys.argv[1:]) if sys.argv[1:] else None
    if tenant is not None:
        assert tenant.attach().status == 0
    context = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        command, size = line.split()
        if command == "take":
            take(int(size))
        else:
            assert tenant is not None
            tenant.do("charge" if command == "charge" else "free", "0", size)
        sys.stdout.write("ok\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
