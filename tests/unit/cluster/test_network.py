"""The addresses of clusters: each has a block of its own, with the link and the pods in it."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.cluster import network as networks
from gpuslice.cluster.network import POOL, Network, NetworkError

if TYPE_CHECKING:
    from pathlib import Path

_numbers = st.integers(0, 127)


@given(_numbers)
def test_link_and_pods_are_in_the_block_and_apart(number: int) -> None:
    network = Network(number)
    ends = {IPv4Address(network.host), IPv4Address(network.node)}
    assert len(ends) == 2
    assert all(end in network.block and end not in network.pods for end in ends)
    assert network.pods.subnet_of(network.block)
    assert network.block.subnet_of(POOL)


@given(_numbers, _numbers)
def test_blocks_of_two_clusters_do_not_overlap(one: int, other: int) -> None:
    assert Network(one).block.overlaps(Network(other).block) == (one == other)


@given(_numbers)
def test_the_kernel_takes_the_name_for_an_interface(number: int) -> None:
    assert len(Network(number).label) <= 15


@pytest.fixture
def claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Claims are made in a folder of the test's own."""
    folder = tmp_path / "claims"
    monkeypatch.setattr(networks, "CLAIMS", folder)
    return folder


@pytest.mark.usefixtures("claims")
def test_a_block_is_claimed_once_until_it_is_released(tmp_path: Path) -> None:
    first = networks.claim(tmp_path)
    second = networks.claim(tmp_path)
    assert first != second
    networks.release(first)
    assert networks.claim(tmp_path) == first


@pytest.mark.usefixtures("claims")
def test_the_block_of_a_cluster_whose_folder_was_deleted_is_free(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    claimed = networks.claim(folder)
    folder.rmdir()
    assert networks.claim(tmp_path) == claimed


def test_without_a_free_block_it_says_what_to_do(tmp_path: Path, claims: Path) -> None:
    for number in range(128):
        claim = claims / str(number)
        claim.mkdir(parents=True)
        (claim / "cluster").write_text(str(tmp_path))
    with pytest.raises(NetworkError, match="take a cluster down"):
        networks.claim(tmp_path)
