"""Amounts as people and Kubernetes write them: bytes, percents and durations. The arithmetic is exact.

Bytes take decimal suffixes (256MB, 128M: powers of ten) and binary ones (4GiB, 1.5Gi: powers of two). Suffixes are
case-sensitive, because Kubernetes reads `m` as thousandths: a limit of `128m` is a typing error, not 128 MB.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final

MAX_BYTES: Final = 2**63 - 1

_NUMBER: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)((?:[eE][+-]?\d+)?)\s*(.*)", re.ASCII)
_MAX_EXPONENT: Final = 30  # beyond any amount of bytes, and small enough to compute with

_DECIMAL: Final = {prefix: 1000**power for power, prefix in enumerate("kMGTPE", start=1)}
_BINARY: Final = {prefix: 1024**power for power, prefix in enumerate("KMGTPE", start=1)}
_BYTES: Final = (
    {"": 1, "B": 1, "K": 1000, "KB": 1000}
    | _DECIMAL
    | {f"{prefix}B": factor for prefix, factor in _DECIMAL.items()}
    | {f"{prefix}i": factor for prefix, factor in _BINARY.items()}
    | {f"{prefix}iB": factor for prefix, factor in _BINARY.items()}
)
_NANOSECONDS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}


def parse_bytes(text: str | int) -> int:
    """The number of bytes that `text` means. A part of a byte is rounded up, as Kubernetes does."""
    number = _parse(text, _BYTES, what="an amount of bytes", example="256MB, 4GiB, 1.5Gi or 1048576")
    if number > MAX_BYTES:
        raise ValueError(f"{text!r} is not an amount of bytes: the largest is 8EiB less one byte")
    return math.ceil(number)


def parse_percent(text: str) -> Fraction:
    """`25%` as one quarter. More than 100% is refused: nothing has more than all of itself."""
    share = _parse(text, {"%": Fraction(1, 100)}, what="a percentage", example="25% or 12.5%")
    if share > 1:
        raise ValueError(f"{text!r} is not a percentage of a whole: it is above 100%")
    return share


def percent_of(text: str, total: int) -> int:
    """That percentage of `total`, rounded down: shares that add up to 100% never add up to more than the whole."""
    return math.floor(parse_percent(text) * total)


def parse_nanoseconds(text: str) -> int:
    """`2us` as 2000. A part of a nanosecond is rounded up."""
    return math.ceil(_parse(text, _NANOSECONDS, what="a duration", example="500ns, 2us, 1.5ms or 1s"))


def format_bytes(count: int) -> str:
    """For people: at most one decimal, in the largest binary unit that leaves at least 1 (`39.5 GiB`)."""
    if count < 0:
        return f"-{format_bytes(-count)}"
    power = 0
    # A number that would be shown as 1024.0 of a unit is 1 of the next.
    while power < len(_BINARY) and _tenths(count, power) >= 10 * 1024:
        power += 1
    whole, tenth = divmod(_tenths(count, power), 10)
    unit = f"{'KMGTPE'[power - 1]}iB" if power else "B"
    return f"{whole}.{tenth} {unit}" if tenth else f"{whole} {unit}"


def _tenths(count: int, power: int) -> int:
    return round(Fraction(10 * count, 1024**power))


def _parse(text: str | int, units: dict[str, int] | dict[str, Fraction], *, what: str, example: str) -> Fraction:
    match = _NUMBER.fullmatch(str(text).strip())
    if match is None:
        reason = "it is negative" if str(text).strip().startswith("-") else "it does not start with a number"
        raise ValueError(f"{text!r} is not {what}: {reason}; write for example {example}")
    digits, exponent, unit = match.groups()
    if unit not in units:
        reason = f"the unit {unit!r} is not known" if unit else "the unit is missing"
        raise ValueError(f"{text!r} is not {what}: {reason}; write for example {example}")
    power = int(exponent[1:] or 0)
    if abs(power) > _MAX_EXPONENT:
        raise ValueError(f"{text!r} is not {what}: its exponent is out of range; write for example {example}")
    return Fraction(digits.rstrip(".")) * Fraction(10) ** power * units[unit]
