"""Durations as people write them (`30m`, `1h30m`, `0.5s`) and as they are shown."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_MILLISECONDS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART: Final = r"(\d+(?:\.\d+)?)(ms|s|m|h|d)"
_PARTS: Final = re.compile(_PART, re.ASCII)
_WHOLE: Final = re.compile(f"(?:{_PART})+", re.ASCII)
_LONGEST: Final = 100 * 365 * 86400


def parse_seconds(text: str) -> float:
    """`1h30m` as 5400.0. Zero needs no unit."""
    wanted = text.strip()
    if wanted == "0":
        return 0.0
    if _WHOLE.fullmatch(wanted) is None:
        raise ValueError(f"{text!r} is not a duration: write for example 500ms, 10s, 30m, 1h30m or 2d")
    seconds = sum(Fraction(number) * _MILLISECONDS[unit] for number, unit in _PARTS.findall(wanted)) / 1000
    if seconds > _LONGEST:
        raise ValueError(f"{text!r} is not a duration for us: it is above 100 years")
    return float(seconds)


def format_seconds(seconds: float) -> str:
    """For people: the two largest units that say something (`2d5h`, `3m12s`, `7s`)."""
    left = max(0, round(seconds))
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        parts.append((count, unit))
    first = next((position for position, (count, _) in enumerate(parts) if count), len(parts) - 1)
    shown = [f"{count}{unit}" for count, unit in parts[first : first + 2] if count]
    return "".join(shown) or "0s"
