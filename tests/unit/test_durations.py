"""Durations, read and shown."""

from __future__ import annotations

import pytest

from gpuslice.model.values.durations import format_seconds, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("30m", 1800), ("1h30m", 5400), ("2d", 172800), ("500ms", 0.5), ("1.5s", 1.5), ("0", 0), (" 5s ", 5)],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-1s", "1 h", "10S", "1w", "1s2", "9" * 20 + "d", "٣s", "1e3s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration.*(30m|100 years)"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (-3, "0s"), (7.4, "7s"), (59.6, "1m"), (192, "3m12s"), (3600, "1h"), (3601, "1h"), (190_800, "2d5h")],
)
def test_a_duration_is_shown_with_its_two_largest_units(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
