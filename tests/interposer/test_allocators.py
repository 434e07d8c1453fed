"""Every way to have device memory and to give it back: up to the limit, not a byte more, and all of it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.interposer.node import INVALID_VALUE, MIB, OUT_OF_MEMORY

if TYPE_CHECKING:
    from tests.interposer.conftest import MakeNode
    from tests.interposer.node import Node, Tenant

LIMIT = 64 * MIB
PIECE = 8 * MIB
PIECES = LIMIT // PIECE


@dataclass(frozen=True)
class Way:
    """How blocks of a kind are given back: each by a call, then something for all of them."""

    kind: str
    each: str | None
    then: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join(filter(None, (self.kind, "by", self.each, *self.then)))


WAYS = [
    Way("linear", "free"),
    Way("linear", "free-async", ("synchronize",)),
    Way("managed", "free"),
    Way("managed", "free-async", ("synchronize",)),
    Way("pitched", "free"),
    Way("pitched", "free-async", ("synchronize",)),
    Way("async", "free-async", ("synchronize",)),
    Way("async", "free-async", ("synchronize-stream",)),
    Way("async", "free", ("synchronize",)),
    Way("default-pool", "free-async", ("synchronize",)),
    Way("default-pool", "free", ("synchronize",)),
    Way("own-pool", "free-async", ("trim-pool",)),
    Way("own-pool", "free-async", ("destroy-pool",)),
    Way("own-pool", "free", ("trim-pool",)),
    Way("own-pool", "free", ("destroy-pool",)),
    Way("physical", "release"),
    Way("mapped", "release-unmap"),
    Way("mapped", "unmap-release"),
    Way("mapped", "retain-release"),
    Way("locality-domain", "release"),
    Way("domain-pool", "free", ("destroy-pool",)),
    Way("array-1d", "array"),
    Way("array-2d", "array"),
    Way("array-3d", "array"),
    Way("mipmap", "mipmap"),
    Way("graph", "free", ("trim-graphs",)),
    Way("graph", "free-async", ("synchronize", "trim-graphs")),
    Way("graph-node", "free", ("trim-graphs",)),
    Way("capture", "free", ("trim-graphs",)),
    Way("linear", None, ("release-primary", "use-primary")),
    Way("linear", None, ("reset-primary", "use-primary")),
    Way("managed", None, ("reset-primary", "use-primary")),
    Way("array-2d", None, ("reset-primary", "use-primary")),
    Way("mipmap", None, ("release-primary", "use-primary")),
    Way("async", None, ("reset-primary", "use-primary")),
    Way("own-pool", None, ("reset-primary", "use-primary")),
    Way("graph", None, ("reset-primary", "use-primary")),
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_limit_can_be_had_not_a_byte_more_and_all_of_it_again(way: Way, node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    for _ in range(2):
        blocks = tenant.fill(way.kind, PIECE, times=PIECES)
        assert node.held(session) == [LIMIT]
        node.expect_used(LIMIT)
        refused_everything(tenant)
        node.expect_used(LIMIT)
        if way.each is not None:
            assert [tenant.give(way.each, block) for block in blocks] == [0] * PIECES
        assert [tenant.do(what) for what in way.then] == [0] * len(way.then)
        assert node.held(session) == [0]
        node.expect_used(0)
    tenant.fill("linear", LIMIT, times=1)
    assert tenant.close() == ""


def refused_everything(tenant: Tenant) -> None:
    """That with nothing left no allocator gives the least bit."""
    least = {"physical": 2 * MIB, "mapped": 2 * MIB, "locality-domain": 2 * MIB, "array-3d": 1 * MIB}
    codes = {way.kind: tenant.take(way.kind, least.get(way.kind, 64 * 1024)) for way in WAYS}
    assert codes == dict.fromkeys(codes, OUT_OF_MEMORY)


def test_the_oldest_calls_for_arrays_are_charged_and_uncharged_when_the_driver_has_them_not(node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    for kind in ("old-array-2d", "old-array-3d"):
        assert tenant.take(kind, PIECE) == 801
        assert tenant.take(kind, LIMIT + PIECE) == OUT_OF_MEMORY
    assert node.held(session) == [0]


@pytest.mark.parametrize("kind", ["linear", "managed", "async", "own-pool"])
def test_memory_freed_in_a_stream_that_waits_is_charged_until_the_stream_gets_there(kind: str, node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    blocks = tenant.fill(kind, PIECE, times=PIECES)
    assert tenant.do("hold-up-stream") == 0
    assert [tenant.give("free-async", block) for block in blocks] == [0] * PIECES
    for other in ("linear", "async-elsewhere", "array-2d", "physical"):
        assert tenant.take(other, PIECE) == OUT_OF_MEMORY, other
        assert node.used() == [LIMIT]
    assert tenant.do("let-stream-go") == 0
    if kind == "own-pool":
        assert tenant.do("trim-pool") == 0
    assert node.held(session) == [0]
    tenant.fill("linear", LIMIT, times=1)


def test_what_waits_in_a_stream_goes_with_its_context(node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    tenant.fill("linear", PIECE, times=PIECES)
    assert tenant.do("hold-up-stream") == 0
    assert tenant.give("free-async", 0) == 0
    assert tenant.take("linear", 512) == OUT_OF_MEMORY
    assert tenant.do("let-stream-go") == 0
    assert tenant.do("reset-primary") == 0
    assert tenant.do("use-primary") == 0
    assert node.held(session) == [0]
    tenant.fill("linear", LIMIT, times=1)


@pytest.mark.parametrize("size", [1, 512, 513, 100_000])
def test_small_blocks_are_charged_as_the_driver_hands_them_out(size: int, node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    tenant.fill("linear", size, times=300)
    tenant.fill("async", size, times=300)
    node.expect_used(*node.held(session))


def test_a_context_of_the_programs_own_takes_its_memory_with_it(node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    tenant.fill("linear", PIECE, times=1)
    for _ in range(2):
        assert tenant.do("make-context") == 0
        tenant.fill("linear", PIECE, times=4)
        tenant.fill("array-2d", PIECE, times=3)
        assert tenant.take("linear", 512) == OUT_OF_MEMORY
        assert tenant.do("destroy-context") == 0
        assert node.held(session) == [PIECE]
        node.expect_used(PIECE)


def test_memory_kept_by_a_pool_is_charged_until_the_driver_has_it_back(node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    blocks = tenant.fill("own-pool", PIECE, times=PIECES)
    assert [tenant.give("free-async", block) for block in blocks] == [0] * PIECES
    assert tenant.do("synchronize") == 0
    assert node.held(session) == [LIMIT]
    assert tenant.take("linear", PIECE) == OUT_OF_MEMORY
    tenant.fill("own-pool", PIECE, times=PIECES)  # what it kept is used again
    assert node.held(session) == [LIMIT]
    node.expect_used(LIMIT)


def test_a_destroyed_pool_is_charged_for_its_last_blocks(node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    blocks = tenant.fill("own-pool", PIECE, times=2)
    assert tenant.do("destroy-pool") == 0
    assert node.held(session) == [2 * PIECE]
    for left, block in zip((PIECE, 0), blocks, strict=True):
        assert tenant.give("free-async", block) == 0
        assert tenant.do("synchronize") == 0
        assert node.held(session) == [left]


def test_physical_memory_is_charged_until_the_last_of_handle_and_mapping(node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    (block,) = tenant.fill("mapped", PIECE, times=1)
    assert tenant.give("release", block) == 0
    assert node.held(session) == [PIECE]
    node.expect_used(PIECE)
    assert tenant.give("unmap", block) == 0
    assert node.held(session) == [0]
    node.expect_used(0)


MULTICAST = [
    ("bound", "unbind", None),
    ("bound-by-address", "unbind", None),
    ("bound", None, "release-multicast"),
    ("bound-by-address", None, "release-multicast"),
]


@pytest.mark.parametrize(("kind", "each", "then"), MULTICAST)
def test_memory_bound_to_a_multicast_object_is_charged_until_it_is_unbound_or_the_object_is_gone(
    kind: str, each: str | None, then: str | None, make_node: MakeNode
) -> None:
    node = make_node("1xH100-80GB")
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    for _ in range(2):
        blocks = tenant.fill(kind, PIECE, times=PIECES)
        assert node.held(session) == [LIMIT]
        node.expect_used(LIMIT)
        assert tenant.take("linear", 512) == OUT_OF_MEMORY
        if each is not None:
            assert [tenant.give(each, block) for block in blocks] == [0] * PIECES
        if then is not None:
            assert tenant.do(then) == 0
        assert node.held(session) == [0]
        node.expect_used(0)
    tenant.fill("linear", LIMIT, times=1)


def test_a_place_that_the_driver_does_not_know_is_not_charged_after_it_refused(node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    assert tenant.take("nowhere", PIECE) == INVALID_VALUE
    assert tenant.take("nowhere", LIMIT + PIECE) == OUT_OF_MEMORY  # what is not the host's is the device's
    assert node.held(session) == [0]


def test_graphs_that_run_one_after_the_other_share_their_memory(node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    blocks = tenant.fill("capture-with-free", LIMIT, times=3)
    assert [tenant.give("launch", block) for block in blocks * 3] == [0] * 9
    assert node.held(session) == [LIMIT]
    node.expect_used(LIMIT)
    assert [tenant.give("executable", block) for block in blocks] == [0] * 3
    assert tenant.do("trim-graphs") == 0
    assert node.held(session) == [0]


def test_graphs_that_keep_their_memory_do_not_share_it(node: Node) -> None:
    """One after the other they fit; together they must not."""
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    (first,) = tenant.fill("capture", LIMIT * 3 // 4, times=1)
    assert tenant.give("free", first) == 0
    (second,) = tenant.fill("capture", LIMIT * 3 // 4, times=1)
    assert tenant.give("free", second) == 0
    assert tenant.give("launch", first) == 0
    assert tenant.give("launch", second) == OUT_OF_MEMORY
    assert node.used() == [LIMIT * 3 // 4]


def test_a_pointer_without_a_record_goes_to_the_driver(node: Node) -> None:
    tenant = node.tenant(node.session())
    assert tenant.do("free-unknown") == 1


def test_without_a_context_the_driver_refuses_and_nothing_is_charged(node: Node) -> None:
    session = node.session()
    tenant = node.tenant(session)
    assert tenant.do("no-context") == 0
    for kind in ("linear", "managed", "pitched", "array-2d", "mipmap"):
        assert tenant.take(kind, MIB) == 201
    assert node.held(session) == [0]
    for kind in ("async", "default-pool", "own-pool", "physical"):
        tenant.take(kind, PIECE)
        assert node.held(session) == node.used(), kind
