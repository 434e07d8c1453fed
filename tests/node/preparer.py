"""Prepares or unprepares one claim as the agent does, and can be killed before any of its changes to the disk.

    preparer.py FOLDER GPUS

Each line of its input is `STEP prepare|unprepare|recover`, done in a child of its own that kills itself before change
number STEP (0: never). It prints what is on the node when the child is done, or `killed`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from gpuslice.node.audit import Audit
from gpuslice.node.claims.cdi import CdiFolder
from gpuslice.node.claims.checkpoint import Checkpoint
from gpuslice.node.claims.claim_sessions import ClaimSessions
from gpuslice.node.claims.devices import NodeDevices
from gpuslice.node.claims.preparing import ClaimPreparer
from gpuslice.node.claims.resource_claims import Allocated, Claim, ClaimReference
from gpuslice.node.disk import DiskThread
from gpuslice.node.gpus.partitions import Partitions
from gpuslice.node.sessions.registry import Registry
from gpuslice.node.sessions.state_folder import StateFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

CLAIM = ClaimReference("team", "crash", "cccccccc-1111-2222-3333-444444444444")
_CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Steps:
    """Counts changes to files in the folder, and dies before a certain one."""

    def __init__(self, folder: str, last: int) -> None:
        self.folder, self.last, self.count = folder, last, 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        changes = event in _CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING)
        if not changes or not os.fsdecode(arguments[0] if not isinstance(arguments[0], int) else "").startswith(
            self.folder
        ):
            return
        self.count += 1
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


class OneClaim:
    """The API server's view: one share, and one MIG partition on another GPU."""

    def __init__(self, gpus: Sequence[str]) -> None:
        names = [f"gpu-{uuid.removeprefix('GPU-')[:8]}" for uuid in gpus]
        self._claim = Claim(
            CLAIM,
            (
                Allocated(request="share", pool="node-1/gpuslice", device=names[0], memory_bytes=1 << 30),
                Allocated(request="mig", pool="node-1/gpuslice", device=f"{names[1]}-mig-3g-20gb-0"),
            ),
        )

    async def claim(self, _reference: ClaimReference) -> Claim:
        return self._claim

    async def report(self, reference: ClaimReference, status: Sequence[dict[str, Any]]) -> None:
        raise NotImplementedError


async def run(folder: Path, gpus: Sequence[str], last: int, command: str) -> dict[str, Any]:
    state, log = StateFolder(folder / "state"), structlog.get_logger()
    state.prepare()
    audit = Audit(None, log)
    disk = DiskThread()
    registry = Registry(state, audit, log, asyncio.get_running_loop(), disk, max_descriptors=1024)
    registry.load()
    folder_of_specs = CdiFolder(folder / "cdi")
    sessions = ClaimSessions(registry, state, folder_of_specs, folder / "lib", audit, disk)
    checkpoint, partitions = Checkpoint(state.prepared, state.single_checkpoint), Partitions(state.partitions)
    preparer = ClaimPreparer(OneClaim(gpus), NodeDevices("node-1"), partitions, sessions, checkpoint, disk, log)
    sys.addaudithook(Steps(str(folder), last))
    if command == "recover":
        await preparer.recover()
    elif command == "prepare":
        await preparer.prepare(CLAIM)
    else:
        await preparer.unprepare(CLAIM.uid)
    found = {
        "phases": {uid: claim.phase for uid, claim in checkpoint.claims.items()},
        "limits": sorted(gpu.limit_bytes for each in registry.sessions.values() for gpu in each.record.gpus),
        "specs": sorted(folder_of_specs.uids()),
        "files": sorted(path.name for path in state.claims.glob("*/*")),
        "folders": sorted(path.name for path in state.claims.iterdir()),
        "partitions": [partition.mig_uuid for partition in partitions.ours()],
    }
    registry.close()
    return found


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    folder, gpus = Path(sys.argv[1]), sys.argv[2].split(",")
    for line in sys.stdin:
        last, command = line.split()
        if (child := os.fork()) == 0:
            found = asyncio.run(run(folder, gpus, int(last), command))
            found["temporary"] = sorted(path.name for path in folder.rglob(".*.new"))
            print(json.dumps(found), flush=True)  # noqa: T201 - its answer
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 0:
            print("killed" if status == -signal.SIGKILL else f"failed {status}", flush=True)  # noqa: T201 - its answer


if __name__ == "__main__":
    main()
