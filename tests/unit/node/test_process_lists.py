"""How large the records of NVML's lists of processes are: measured, never believed."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.node.driver.process_lists import record_size

PATTERN = b"\xa5"
ROOM = 64 * 32
NO_INSTANCE = 0xFFFFFFFF
LAYOUTS = {16: "=I4xQ", 24: "=I4xQII", 32: "=I4xQIIQ"}

pids = st.integers(1, 1 << 22)
sizes = st.integers(0, 1 << 40) | st.just(2**64 - 1)
instances = st.just(NO_INSTANCE) | st.integers(0, 14)
records = st.lists(st.tuples(pids, sizes, instances, instances, st.integers(0, 1 << 40)), min_size=1, max_size=64)


def written(size: int, listed: list[tuple[int, ...]]) -> bytes:
    """A buffer as a driver leaves it whose records have that size."""
    fields = {16: 2, 24: 4, 32: 5}[size]
    content = b"".join(struct.pack(LAYOUTS[size], *each[:fields]) for each in listed)
    return content.ljust(ROOM, PATTERN)


@given(listed=records, size=st.sampled_from([24, 32]))
def test_records_of_the_newest_function_are_measured(listed: list[tuple[int, ...]], size: int) -> None:
    assert record_size(written(size, listed), len(listed), (24, 32)) == size


@given(listed=records)
def test_records_of_the_oldest_function_are_measured(listed: list[tuple[int, ...]]) -> None:
    assert record_size(written(16, listed), len(listed), (16,)) == 16


def test_records_of_another_size_fit_none() -> None:
    assert record_size((b"\1" * 40 * 3).ljust(ROOM, PATTERN), 3, (24, 32)) is None


def test_a_buffer_that_was_cleared_as_a_whole_fits_none() -> None:
    assert record_size(b"\0" * ROOM, 2, (24, 32)) is None
