"""Quantities as Kubernetes reads them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.model.values.kubernetes_quantities import format_bytes, parse_quantity, parse_whole


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1),
        (1, 1),
        (1.5, Fraction(3, 2)),
        ("500m", Fraction(1, 2)),
        ("4Gi", 4 * 2**30),
        ("1k", 1000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("2e-1", Fraction(1, 5)),
        ("-1", -1),
        ("+1", 1),
        (".5", Fraction(1, 2)),
        ("1.", 1),
        ("100n", Fraction(1, 10**7)),
    ],
)
def test_quantities_are_exact(text: str | float, number: Fraction | int) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize(
    "text", ["", "Gi", "1gi", "1 Gi", "1GiB", "1e", "1e999", "٣", "1K", "0x1", "1_000", "9" * 100, True]
)
def test_what_kubernetes_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["500m", "-1", "0.5", "1e-3"])
def test_only_whole_numbers_are_whole(text: str) -> None:
    with pytest.raises(ValueError, match="not a whole number"):
        parse_whole(text)


def test_what_to_write_instead_is_left_to_who_wants_a_whole_number() -> None:
    with pytest.raises(ValueError, match=r"^'x' is not a quantity$"):
        parse_whole("x")


def test_whole_numbers_have_an_end() -> None:
    with pytest.raises(ValueError, match="too large"):
        parse_whole("9e20")


@given(st.integers(0, 2**62))
def test_bytes_are_written_without_loss(count: int) -> None:
    assert parse_whole(format_bytes(count)) == count


def test_bytes_are_written_in_the_largest_unit() -> None:
    assert [format_bytes(count) for count in (0, 1000, 1024, 3 * 2**29, 2**40)] == ["0", "1000", "1Ki", "1536Mi", "1Ti"]
