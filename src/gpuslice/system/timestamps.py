"""Moments as text, by RFC 3339 and as the API server writes them: in UTC, with a Z."""

from __future__ import annotations

from datetime import UTC, datetime


def time(moment: datetime | float | None = None) -> str:
    """To the second, as the API's `Time` has it. A number is in seconds since 1970; without a moment, it is now."""
    return _text(moment, "seconds")


def micro_time(moment: datetime | float | None = None) -> str:
    """To the microsecond, as the API's `MicroTime` has it."""
    return _text(moment, "microseconds")


def _text(moment: datetime | float | None, precision: str) -> str:
    # strftime takes three times as long, and every line of a log has a time.
    return _utc(moment).isoformat(timespec=precision).removesuffix("+00:00") + "Z"


def _utc(moment: datetime | float | None) -> datetime:
    if moment is None:
        return datetime.now(UTC)
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError(f"{moment} says no time zone: give it one, as datetime.now(UTC) has")
        return moment.astimezone(UTC)
    return datetime.fromtimestamp(moment, UTC)
