"""Quantities as Kubernetes reads them (`1`, `500m`, `4Gi`, `1e3`), exactly. For what people type, see `quantities`."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([eE][+-]?[0-9]{1,2}|[numkMGTPE]|[KMGTPE]i)?", re.ASCII
)
_FACTORS: Final = (
    {"": Fraction(1), "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}
    | {prefix: Fraction(1000**power) for power, prefix in enumerate("kMGTPE", start=1)}
    | {f"{prefix}i": Fraction(1024**power) for power, prefix in enumerate("KMGTPE", start=1)}
)
_LONGEST: Final = 64  # characters; more is a mistake, and the arithmetic stays cheap
_SHORT: Final = 18  # digits that cannot exceed the largest
_MAX: Final = 2**63 - 1


def parse_quantity(value: str | float) -> Fraction:
    """What the quantity amounts to."""
    text = str(value)
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST and not isinstance(value, bool) else None
    if match is None:
        raise ValueError(f"{text[:_LONGEST]!r} is not a quantity: write for example 1, 500m or 4Gi")
    digits, suffix = match.group(1), match.group(2) or ""
    number = Fraction(digits.rstrip("."))
    if suffix and suffix not in _FACTORS:
        return number * Fraction(10) ** int(suffix[1:])
    return number * _FACTORS[suffix]


def parse_whole(value: str | float) -> int:
    """The quantity, where only a whole number that is not negative makes sense."""
    if isinstance(value, str) and len(value) <= _SHORT and value.isascii() and value.isdigit():
        return int(value)  # nearly all of them
    try:
        number = parse_quantity(value)
    except ValueError:
        # Callers know what to write instead: a fraction or a size would not do.
        raise ValueError(f"{str(value)[:_LONGEST]!r} is not a quantity") from None
    if number.denominator != 1 or number < 0:
        raise ValueError(f"{str(value)!r} is not a whole number of at least 0")
    if number > _MAX:
        raise ValueError(f"{str(value)!r} is too large")
    return int(number)


def format_bytes(count: int) -> str:
    """As Kubernetes writes it: in the largest binary unit that leaves a whole number (`4Gi`, `15360Mi`)."""
    power = 0
    while power < 6 and count and count % 1024 == 0:
        count //= 1024
        power += 1
    return f"{count}{'KMGTPE'[power - 1]}i" if power else str(count)


def describe_bytes(count: int) -> str:
    """The same for people: what has no unit is a number of bytes."""
    shown = format_bytes(count)
    if not shown.isdigit():
        return shown
    return f"{shown} byte{'s' if count != 1 else ''}"
