"""What clusters claim of this machine: theirs alone while they live, and taken back when they were killed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpuslice.simulator import configuration
from gpuslice.simulator import machine as machines
from gpuslice_cluster import network as networks
from gpuslice_cluster import reservations
from gpuslice_cluster.reservations import ClaimError

if TYPE_CHECKING:
    from pathlib import Path

#: Those below may be of clusters that are up here: they would have the same interfaces and control groups.
_FIRST = 120

_HOLDER = """
import sys
from pathlib import Path
from gpuslice_cluster import reservations, network
from gpuslice.simulator import configuration, machine
network.CLAIMS = Path(sys.argv[1])
reservations.take(Path(sys.argv[2]), sys.argv[3])
machine.create(configuration.from_text("1xT4", name=sys.argv[3]))
print("claimed", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Claims are made in a folder of the test's own."""
    place = tmp_path / "claims"
    monkeypatch.setattr(networks, "CLAIMS", place)
    for number in range(_FIRST):
        (place / str(number)).mkdir(parents=True)
    return place


def test_a_number_is_claimed_once_until_it_is_given_back(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    first, descriptor = reservations.take(one, "machine-of-none")
    second, another = reservations.take(other, "another-machine-of-none")
    assert first.network != second.network
    reservations.give_back(one)
    assert reservations.take(one, "machine-of-none")[0] == first
    for number in (descriptor, another):
        os.close(number)


def test_a_second_cluster_with_the_same_folder_or_machine_takes_nothing_from_the_first(
    tmp_path: Path, machine_name: str
) -> None:
    cluster = tmp_path / "cluster"
    claim, descriptor = reservations.take(cluster, machine_name)
    machine = machines.create(configuration.from_text("1xT4", name=machine_name))
    for folder, name in ((cluster, "machine-of-none"), (tmp_path / "elsewhere", machine_name)):
        with pytest.raises(ClaimError, match="is up or coming up"):
            reservations.take(folder, name)
    assert claim.network.claim.exists()
    assert machine in machines.machines()
    reservations.give_back(cluster)
    os.close(descriptor)


def test_without_a_free_number_it_says_what_to_do(tmp_path: Path, folder: Path) -> None:
    for number in range(_FIRST, networks.COUNT):
        (folder / str(number)).mkdir()
    with pytest.raises(ClaimError, match="take a cluster down"):
        reservations.take(tmp_path, "machine-of-none")


def test_what_a_killed_holder_left_is_taken_back_and_only_then(tmp_path: Path, folder: Path, machine_name: str) -> None:
    cluster = tmp_path / "cluster"
    arguments = [sys.executable, "-c", _HOLDER, str(folder), str(cluster), machine_name]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "claimed\n"
        reservations.take_back_all()
        assert (folder / str(_FIRST)).exists()
        assert machine_name in [machine.name for machine in machines.machines()]
        holder.kill()
    reservations.take_back_all()
    assert not (folder / str(_FIRST)).exists()
    assert machine_name not in [machine.name for machine in machines.machines()]


def test_a_cluster_that_is_removed_late_takes_nothing_from_the_next_with_its_number(tmp_path: Path) -> None:
    early, late = tmp_path / "early", tmp_path / "late"
    first, descriptor = reservations.take(early, "machine-of-none")
    os.close(descriptor)
    reservations.take_back_all()
    second, descriptor = reservations.take(late, "machine-of-none")
    assert second.network == first.network
    reservations.take_back(early)
    reservations.give_back(early)
    assert second.network.claim.exists()
    os.close(descriptor)


def test_a_claim_that_was_left_half_done_does_not_block_the_next(tmp_path: Path, folder: Path) -> None:
    half = folder / ".unfinished.left"
    half.mkdir()
    (half / "holder").write_text("somebody\n")
    claim, descriptor = reservations.take(tmp_path, "machine-of-none")
    assert claim.network.claim.is_dir()
    assert not half.exists()
    os.close(descriptor)
