"""What a cluster has of this machine for its life: a number, and all that goes by it.

The number stands for a block of addresses, an interface, control groups, a folder in /run and a simulated machine. A
cluster claims a number by making its folder, with a file that names the cluster. The cluster's supervisor holds a lock
on that file, and the kernel drops the lock however the supervisor ends. So a claim without a lock is what a killed
cluster left, and the next `up` takes everything back.

    python -m gpuslice_cluster.reservations FOLDER

gives back what the cluster in this folder has: its supervisor does so when the node has ended for good.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuslice.model.errors import GpusliceError
from gpuslice.simulator import machine as machines
from gpuslice.simulator.machine import SimulatorError
from gpuslice.system import processes
from gpuslice.system.processes import ProcessIdentity
from gpuslice_cluster import cgroups
from gpuslice_cluster import network as networks
from gpuslice_cluster.network import Network

if TYPE_CHECKING:
    from collections.abc import Iterator

#: In a claim: the folder of the cluster that has it and its simulated machine, a line each. Locked by the holder.
_HOLDER: Final = "holder"
#: In a claim: the number and the start time of the node's first process, as this machine knows it.
_FIRST_PROCESS: Final = "first-process"
#: Beside the claims: what is being made or removed.
_UNFINISHED: Final = ".unfinished."
_SECONDS_TO_END: Final = 30.0
_SECONDS_BETWEEN_LOOKS: Final = 0.05


class ClaimError(GpusliceError):
    """Raised when there is nothing left to claim, another cluster has it, or a claim cannot be taken back."""


@dataclass(frozen=True)
class Claim:
    """A number, and what its cluster has besides."""

    network: Network
    cluster: Path
    machine: str


def take(cluster: Path, machine: str) -> tuple[Claim, int]:
    """Claims a free number, for the cluster in this folder with this simulated machine.

    Returns the descriptor that holds it, too: the claim is kept until every process that has it has ended or closed it.
    """
    with _locked():
        # Another `up` may be a moment ahead. What goes by a folder or a machine's name is given back with it.
        for other in _claims():
            if other.cluster == cluster or other.machine == machine:
                raise ClaimError(
                    f"the cluster in {other.cluster} is up or coming up with the simulated machine {other.machine!r}: "
                    "take it down first, or use another --name"
                )
        routes = networks.routed()
        for number in range(networks.COUNT):
            network = Network(number)
            if not network.claim.exists() and not any(network.block.overlaps(route) for route in routes):
                claim = Claim(network, cluster, machine)
                return claim, _write(claim)
    raise ClaimError(f"every address of {networks.POOL} is in use: take a cluster down, or remove a route to them")


def give_back(cluster: Path) -> None:
    """Gives back what the cluster in this folder has. Only for its holder; the node must have been told to end."""
    with _locked():
        for claim in _claims():
            if claim.cluster == cluster:
                _remove(claim)


def take_back(cluster: Path) -> None:
    """Removes what a killed cluster in this folder left. Its processes may still be ending."""
    latest = time.monotonic() + _SECONDS_TO_END
    while not _take_back_of(cluster):
        if time.monotonic() > latest:
            raise ClaimError(f"the cluster in {cluster} is still held by a process: end it and try again")
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def take_back_all() -> None:
    """Removes what killed clusters left, of all users."""
    with _locked():
        for claim in _claims():
            # What cannot be removed now stays claimed, and does not disturb the next cluster.
            with contextlib.suppress(OSError, GpusliceError):
                _remove_unless_held(claim)


def clean(network: Network) -> None:
    """Ends what is left of the node with this number, and removes what outlives its processes."""
    _end_first_process(network)
    networks.remove(network)
    cgroups.remove(network.label)
    shutil.rmtree(network.runtime_folder, ignore_errors=True)


def write_first_process(network: Network) -> None:
    """Called by the node's first process itself, while it still sees the machine's /proc."""
    number = int(Path("/proc/self").readlink().name)
    status = processes.status(number)
    assert status is not None
    (network.claim / _FIRST_PROCESS).write_text(f"{number} {status.start_time}\n")


def first_process(network: Network) -> ProcessIdentity | None:
    """None if there is none, or if it was killed before it wrote its number: then it has made nothing."""
    try:
        number, start_time = (network.claim / _FIRST_PROCESS).read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    return ProcessIdentity(int(number), int(start_time))


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Lets one process at a time make or remove claims, by a lock on the folder of all of them."""
    networks.CLAIMS.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(networks.CLAIMS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for unfinished in networks.CLAIMS.glob(f"{_UNFINISHED}*"):  # its process was killed with the lock
            shutil.rmtree(unfinished)
        yield
    finally:
        os.close(descriptor)


def _write(claim: Claim) -> int:
    """Makes the folder beside its place and moves it there, so that none is ever without its file."""
    folder = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=networks.CLAIMS))
    descriptor = os.open(folder / _HOLDER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, f"{claim.cluster}\n{claim.machine}\n".encode())
        folder.rename(claim.network.claim)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _claims() -> list[Claim]:
    found = []
    for number in range(networks.COUNT):
        network = Network(number)
        with contextlib.suppress(FileNotFoundError):
            cluster, machine = (network.claim / _HOLDER).read_text().splitlines()
            found.append(Claim(network, Path(cluster), machine))
    return found


def _take_back_of(cluster: Path) -> bool:
    """False if a process still holds it."""
    with _locked():
        return all(_remove_unless_held(claim) for claim in _claims() if claim.cluster == cluster)


def _remove_unless_held(claim: Claim) -> bool:
    descriptor = os.open(claim.network.claim / _HOLDER, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(claim)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _remove(claim: Claim) -> None:
    """The claim itself goes last: if anything before it fails, what is left is still known."""
    clean(claim.network)
    with contextlib.suppress(SimulatorError):  # a user took it down
        machines.find(claim.machine).destroy()
    shutil.rmtree(claim.network.claim.rename(networks.CLAIMS / f"{_UNFINISHED}{claim.network.number}"))


def _end_first_process(network: Network) -> None:
    """Ends the node's first process, which outlives the others. An ending process has no command line to know it by."""
    known = first_process(network)
    descriptor = processes.open_pidfd(known) if known is not None else None
    if descriptor is None:
        return
    with processes.closing(descriptor):
        processes.send_signal(descriptor, signal.SIGKILL)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(_SECONDS_TO_END * 1000):
            raise ClaimError(f"the node {network.label}: still ending after {_SECONDS_TO_END:.0f} s")


if __name__ == "__main__":
    give_back(Path(sys.argv[1]))
