"""Sessions: their states, what happens on a breach, and how they are named."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from gpuslice.model.values.quantities import format_bytes

#: A session's id is in a path, in a 64-byte field with a zero at its end, and in the arguments of commands.
MAX_ID: Final = 63
MAX_NAME: Final = 48
#: Less than any context takes: what is below was meant in another unit.
MIN_LIMIT_BYTES: Final = 2**20
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?", re.ASCII)

_CONSONANTS: Final = "bdfghjklmnprstvz"
_VOWELS: Final = "aiou"


class SessionState(StrEnum):
    """What a session's tenants may do: allocate, only keep what they hold, or nothing at all."""

    ACTIVE = "active"
    EXPIRED = "expired"
    RELEASED = "released"


class OnBreach(StrEnum):
    """What the agent does about memory that was not asked for through the session."""

    REPORT = "report"
    KILL = "kill"


def check_name(name: str) -> str:
    """The name, if a session can have it."""
    if len(name) > MAX_NAME or _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{name!r} cannot name a session: use up to {MAX_NAME} lower-case letters, digits, '-' and '_',"
            " with a letter or digit at both ends"
        )
    return name


def check_limit(text: str, size: int) -> None:
    """Refuses a limit that is not what its author meant. `size` is what was written, in bytes."""
    if size < MIN_LIMIT_BYTES:
        meant = f", or {text.strip()}GiB if that was meant" if text.strip().isdecimal() and size else ""
        raise ValueError(f"a limit of {format_bytes(size)} is too small: write at least 1MiB{meant}")


def is_id(text: str) -> bool:
    """Whether a session could have this id: anything else never reaches a path."""
    return len(text) <= MAX_ID and _NAME.fullmatch(text) is not None


def pronounceable(number: int) -> str:
    """32 bits as two words that can be read to a colleague (`lusab-babad`)."""
    return "-".join(_word(number >> shift & 0xFFFF) for shift in (16, 0))


def _word(number: int) -> str:
    """16 bits as consonant, vowel, consonant, vowel, consonant."""
    letters = []
    for position, bits in enumerate((4, 2, 4, 2, 4)):
        letters.append((_VOWELS if position % 2 else _CONSONANTS)[number & (1 << bits) - 1])
        number >>= bits
    return "".join(letters)
