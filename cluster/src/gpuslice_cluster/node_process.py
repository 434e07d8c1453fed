"""Holds a node: starts it in namespaces of its own, and kills it on SIGTERM.

    python -m gpuslice_cluster.node_process FOLDER

If this process is killed, the kernel kills the node too. What outlives its processes (empty control groups, the folder
in /run) is removed before it starts again, or when the cluster gives back what it has.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from gpuslice_cluster import node as nodes
from gpuslice_cluster import parent_death, reservations
from gpuslice_cluster.binaries import installed

_NAMESPACES: Final = ("--mount", "--pid", "--net", "--uts", "--ipc")


def main(folder: Path) -> int:
    description = nodes.description(folder.parent)
    assert description is not None
    reservations.clean(description.network)
    outside = os.open("/proc/self/ns/net", os.O_RDONLY)
    inside = (sys.executable, "-m", "gpuslice_cluster.first_process", str(folder), str(outside))
    node = subprocess.Popen(
        # --kill-child: the kernel kills the first process, and with it the node, when its parent ends.
        (installed("unshare"), *_NAMESPACES, "--fork", "--kill-child", *inside),
        pass_fds=(outside,),
        preexec_fn=parent_death.kill_child(),  # noqa: PLW1509  # there are no threads here
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
    return 1 if code and not told_to_end else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
