"""What a process has on a GPU beyond what it allocated."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.node.sessions.cells import Cell
from gpuslice.node.usage.overhead import BUSY_LOOKS, Overhead

CONTEXT = 300


def cell(held: int, mark: int = 0) -> Cell:
    return Cell(held=held, allocations=0, denials=0, overhead=0, peak=0, mark=(mark,))


def test_of_a_process_that_is_quiet_it_is_what_nvml_counts_beyond_the_charge() -> None:
    overhead = Overhead(0)
    assert overhead.look(None, cell(100), 400) == 0, "nobody knows what it did before"
    assert overhead.look(cell(100), cell(100), 400) == CONTEXT


def test_less_must_be_seen_twice() -> None:
    overhead = Overhead(CONTEXT)
    assert overhead.look(cell(100), cell(100), 150) == CONTEXT
    assert overhead.look(cell(100), cell(100), 160) == 60


def test_a_process_that_allocates_all_the_time_gets_the_least_of_several_looks() -> None:
    overhead = Overhead(0)
    found = [overhead.look(cell(100, n), cell(90, n + 1), 100 + CONTEXT + n) for n in range(BUSY_LOOKS)]
    assert found == [0] * (BUSY_LOOKS - 1) + [CONTEXT]


def test_what_was_too_high_for_a_process_that_is_busy_is_put_right_by_the_next_look() -> None:
    overhead = Overhead(0)
    for n in range(BUSY_LOOKS):  # each look happened to be in a moment in which it had more
        high = overhead.look(cell(0, n), cell(0, n + 1), 5000)
    assert high == 5000
    assert overhead.look(cell(0, 100), cell(0, 101), CONTEXT) == CONTEXT


def test_what_was_certain_stays_while_it_is_busy() -> None:
    overhead = Overhead(CONTEXT)
    assert {overhead.look(cell(1000, n), cell(0, n + 1), 500) for n in range(3 * BUSY_LOOKS)} == {CONTEXT}


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=BUSY_LOOKS, max_size=40))
def test_one_look_at_which_it_had_no_more_than_before_or_after_keeps_it_from_being_too_high(
    ends: list[tuple[int, int]],
) -> None:
    overhead = Overhead(0)
    for n, (before, after) in enumerate(ends):
        between = max(before, after) if n % BUSY_LOOKS == 0 else 10_000
        assert overhead.look(cell(before, n), cell(after, n + 1), between + CONTEXT) <= CONTEXT
