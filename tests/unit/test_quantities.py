"""Amounts as people write them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.model.values.quantities import (
    MAX_BYTES,
    format_bytes,
    parse_bytes,
    parse_nanoseconds,
    parse_percent,
    percent_of,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("1048576", 1048576),
        (1048576, 1048576),
        ("12B", 12),
        ("256MB", 256 * 10**6),
        ("128M", 128 * 10**6),
        ("1k", 1000),
        ("1KB", 1000),
        ("4GiB", 4 * 2**30),
        ("1.5Gi", 3 * 2**29),
        (".5Ki", 512),
        ("1.Mi", 2**20),
        (" 4 GiB ", 4 * 2**30),
        ("2Ti", 2**41),
        ("1E", 10**18),
        ("1E3", 1000),
        ("129e6", 129 * 10**6),
        ("0.1Gi", 107374183),  # as Kubernetes does: 107374182.4 rounded up
        (str(MAX_BYTES), MAX_BYTES),
    ],
)
def test_bytes_are_read_as_written(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "does not start with a number"),
        ("GiB", "does not start with a number"),
        ("-1", "is negative"),
        ("128m", "the unit 'm' is not known"),
        ("4gib", "the unit 'gib' is not known"),
        ("1 000", "the unit '000' is not known"),
        ("25%", "the unit '%' is not known"),
        ("1e999999999", "exponent is out of range"),
        ("8EiB", "the largest is"),
        ("٣GiB", "does not start with a number"),
    ],
)
def test_what_is_no_amount_of_bytes_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)


@given(st.integers(0, MAX_BYTES))
def test_a_plain_number_is_itself(count: int) -> None:
    assert parse_bytes(str(count)) == count


@given(st.integers(0, 2**13), st.sampled_from(["Ki", "Mi", "Gi", "Ti", "KiB", "MiB", "GiB", "TiB"]))
def test_binary_suffixes_are_powers_of_1024(number: int, suffix: str) -> None:
    assert parse_bytes(f"{number}{suffix}") == number * 1024 ** ("KMGT".index(suffix[0]) + 1)


@given(st.integers(0, MAX_BYTES))
def test_what_is_shown_is_short_and_within_a_twentieth_of_a_unit(count: int) -> None:
    shown = format_bytes(count)
    number, unit = shown.split(" ")
    factor = parse_bytes(f"1{unit}")
    assert abs(Fraction(number) * factor - count) * 20 <= factor
    assert Fraction(number) < 1024


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (3 * 2**29, "1.5 GiB"), (2**40 - 1, "1 TiB"), (-1024, "-1 KiB")],
)
def test_bytes_are_shown_in_the_unit_that_fits(count: int, shown: str) -> None:
    assert format_bytes(count) == shown


def test_a_percentage_is_exact() -> None:
    assert parse_percent("25%") == Fraction(1, 4)
    assert parse_percent("12.5 %") == Fraction(1, 8)


@pytest.mark.parametrize("text", ["25", "101%", "-1%", "%", "25 percent"])
def test_what_is_no_percentage_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a percentage") as caught:
        parse_percent(text)
    assert repr(text) in str(caught.value)


@given(st.integers(0, 2**50), st.integers(1, 100))
def test_equal_shares_never_add_up_to_more_than_the_whole(total: int, parts: int) -> None:
    share = percent_of(f"{100 // parts}%", total)
    assert share * parts <= total


def test_a_share_is_that_part_of_the_total() -> None:
    assert percent_of("25%", 40 * 2**30) == 10 * 2**30
    assert percent_of("33%", 10) == 3


@pytest.mark.parametrize(("text", "count"), [("500ns", 500), ("2us", 2000), ("2µs", 2000), ("1.5ms", 1_500_000)])
def test_durations_are_read_as_written(text: str, count: int) -> None:
    assert parse_nanoseconds(text) == count


def test_a_duration_needs_a_unit() -> None:
    with pytest.raises(ValueError, match="the unit is missing"):
        parse_nanoseconds("2")
