"""Which connection goes: one of the address that has most, whatever came and went before."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.http.client_addresses import Sources, source_of

if TYPE_CHECKING:
    from gpuslice.http.connection import Connection


@dataclass(eq=False)
class _Connection:
    source: str
    in_request: bool = False
    deadline: float = 0.0


def _made(source: str, *, deadline: float = 0.0, in_request: bool = False) -> Connection:
    return cast("Connection", _Connection(source, in_request, deadline))


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        (("10.0.0.7", 4711), "10.0.0.7"),
        (("::ffff:10.0.0.7", 4711, 0, 0), "10.0.0.7"),
        (("2001:db8:1:2:aaaa::1", 4711, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:bbbb::9", 4711, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 4711, 0, 2), "fe80::/64"),
        (("::1", 4711, 0, 0), "::/64"),
    ],
)
def test_all_addresses_of_one_machine_are_one(peer: tuple[object, ...], source: str) -> None:
    assert source_of(peer) == source


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "heard", "asked", "evict"]), st.integers(0, 4))))
def test_the_address_that_has_most_loses_one(steps: list[tuple[str, int]]) -> None:
    sources, there = Sources(), list[_Connection]()
    for step, number in steps:
        address = f"10.0.0.{number}"
        found = next((each for each in there if each.source == address), None)
        if step == "add":
            there.append(_Connection(address))
            sources.add(cast("Connection", there[-1]))
        elif step == "remove" and found is not None:
            there.remove(found)
            assert sources.remove(cast("Connection", found))
            assert not sources.remove(cast("Connection", found))
        elif step in ("heard", "asked") and found is not None:
            getattr(sources, step)(found)
        elif step == "evict":
            victim = sources.least_missed()
            assert (victim is None) == (not there)
            if victim is not None:
                counts = Counter(each.source for each in there)
                assert counts[victim.source] == max(counts.values())
                there.remove(cast("_Connection", victim))
                sources.remove(victim)
        assert len(sources) == len(there)
        assert {id(each) for each in sources} == {id(each) for each in there}


def test_of_one_address_the_silent_go_first_then_those_that_asked_nothing_then_the_longest_idle() -> None:
    sources = Sources()
    at_work, recent, idle, spoke, silent = (
        _made("10.0.0.1", deadline=deadline, in_request=in_request)
        for deadline, in_request in ((1, True), (9, False), (5, False), (0, False), (0, False))
    )
    for each in (at_work, recent, idle, spoke, silent):
        sources.add(each)
    for each in (at_work, recent, idle, spoke):
        sources.heard(each)
    for each in (at_work, recent, idle):
        sources.asked(each)
    gone = []
    while (victim := sources.least_missed()) is not None:
        gone.append(victim)
        sources.remove(victim)
    assert gone == [silent, spoke, idle, recent, at_work]


def test_the_connections_of_one_address_can_be_taken_elsewhere() -> None:
    sources, mine, other = Sources(), [_made("10.0.0.1") for _ in range(3)], _made("10.0.0.2")
    for each in (*mine, other):
        sources.add(each)
    assert sources.take("10.0.0.1") == mine
    assert sources.take("10.0.0.1") == []
    assert list(sources) == [other]
