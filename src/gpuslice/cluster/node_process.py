"""Holds a node: starts it in namespaces of its own and, when told to end, pulls the plug and clears up after it.

    python -m gpuslice.cluster.node_process FOLDER

If this process is killed, the kernel kills the node too; what is then left (empty control groups, the folder in /run)
is removed by whoever takes the cluster down or brings it up again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from gpuslice.cluster import node as nodes
from gpuslice.cluster.binaries import installed

_NAMESPACES: Final = ("--mount", "--pid", "--net", "--uts", "--ipc")
_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None)


def main(folder: Path) -> int:
    description = nodes.description(folder.parent)
    nodes.clean(folder.parent, description)
    outside = os.open("/proc/self/ns/net", os.O_RDONLY)
    inside = (sys.executable, "-m", "gpuslice.cluster.first_process", str(folder), str(outside))
    node = subprocess.Popen(
        # --kill-child: the kernel kills the first process, and with it the node, when its parent ends.
        (installed("unshare"), *_NAMESPACES, "--fork", "--kill-child", *inside),
        pass_fds=(outside,),
        preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509  # there are no threads here
    )
    told_to_end = False

    def end(*_: object) -> None:
        # Nothing inside is to be kept, so nothing has to be asked to stop.
        nonlocal told_to_end
        told_to_end = True
        node.kill()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    code = node.wait()
    if told_to_end:
        nodes.forget(folder.parent, description)
        return 0
    nodes.clean(folder.parent, description)
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
