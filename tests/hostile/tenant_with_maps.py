"""A process of a session with many mappings, which it splits into single pages by their protection.

    tenant_with_maps.py SOCKET SESSION TOKEN MAPPINGS

Prints `ready` when it has them and has hung up, so that the agent must look whether it still has the session's pages.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

from tests.node.tenant import Tenant

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def main() -> None:
    *session, mappings = sys.argv[1:]
    tenant = Tenant(*session)
    assert tenant.attach().status == 0
    pages = int(mappings)
    start = libc.mmap(None, pages * PAGE, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    for index in range(0, pages, 2):
        assert libc.mprotect(start + index * PAGE, PAGE, mmap.PROT_READ | mmap.PROT_WRITE) == 0
    tenant.connection.close()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
