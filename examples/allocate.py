#!/usr/bin/env python3
"""Allocates memory on the first GPU with nothing but the driver's library.

usage: allocate.py MIB... [--pause SECONDS] [--hold SECONDS]

Each MIB is one allocation; --pause waits between them, --hold after the last. Ends with 1 at the first that fails.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time

MIB = 1024 * 1024


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("sizes", metavar="MIB", type=int, nargs="+")
    arguments.add_argument("--pause", type=float, default=0)
    arguments.add_argument("--hold", type=float, default=0)
    wanted = arguments.parse_args()
    driver = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    check(driver, driver.cuInit(0))
    check(driver, driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(driver, driver.cuCtxSetCurrent(context))
    for number, size in enumerate(wanted.sizes):
        time.sleep(wanted.pause if number else 0)
        if not check(driver, driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size * MIB))):
            return 1
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        check(driver, driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        say(f"allocated {size} MiB; {free.value // MIB} of {total.value // MIB} MiB are free")
    time.sleep(wanted.hold)
    return 0


def check(driver: ctypes.CDLL, code: int) -> bool:
    if code == 0:
        return True
    name = ctypes.c_char_p()
    driver.cuGetErrorName(code, ctypes.byref(name))
    say(f"failed: {(name.value or b'?').decode()} ({code})")
    return False


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
