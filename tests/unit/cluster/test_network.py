"""The addresses of clusters: each has a block of its own, with the link and the pods in it."""

from __future__ import annotations

from ipaddress import IPv4Address

from hypothesis import given
from hypothesis import strategies as st

from gpuslice_cluster.network import POOL, Network

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
