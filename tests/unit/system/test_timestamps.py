"""Moments as the API server writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from gpuslice.system import timestamps

_MOMENT = datetime(2026, 11, 8, 1, 2, 3, 45, tzinfo=UTC)


@pytest.mark.parametrize(
    "moment", [_MOMENT, _MOMENT.astimezone(timezone(timedelta(hours=5, minutes=30))), _MOMENT.timestamp()]
)
def test_any_moment_is_told_in_utc(moment: datetime | float) -> None:
    assert timestamps.time(moment) == "2026-11-08T01:02:03Z"
    assert timestamps.micro_time(moment) == "2026-11-08T01:02:03.000045Z"


def test_without_a_moment_it_is_now() -> None:
    before = datetime.now(UTC)
    told = datetime.fromisoformat(timestamps.micro_time())
    assert before <= told <= datetime.now(UTC)
    assert abs(datetime.fromisoformat(timestamps.time()) - told) <= timedelta(seconds=1)


def test_a_moment_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="says no time zone"):
        timestamps.time(datetime(2026, 11, 8))  # noqa: DTZ001 - it is meant
