"""Decoding of what the API server holds, however deep it is nested.

Some fields of objects, as the parameters of a claim, are any JSON that their author likes. The API server takes 10,000
levels of it, and Python's limit is a thousand: one such object, of any tenant, would make a whole list undecodable. So
what is too deep is decoded once more with a limit that is above the API server's. That takes three of the eight
megabytes that the main thread has for its stack. Other threads may have less, and the limit is the whole process's:
what is too deep is an error there.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_MORE_LEVELS: Final = 10_500


def decoder(kind: type[T]) -> Callable[[bytes | msgspec.Raw], T]:
    """Decodes JSON as that kind. What it raises is a msgspec.DecodeError."""
    decode = msgspec.json.Decoder(kind).decode

    def decode_any(document: bytes | msgspec.Raw) -> T:
        try:
            return decode(document)
        except RecursionError:
            if threading.current_thread() is not threading.main_thread():
                raise msgspec.ValidationError("it is nested too deep") from None
            return _decode_deep(decode, document)

    return decode_any


def _decode_deep(decode: Callable[[bytes | msgspec.Raw], T], document: bytes | msgspec.Raw) -> T:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + _MORE_LEVELS)
    try:
        return decode(document)
    except RecursionError:
        raise msgspec.ValidationError("it is nested deeper than the API server allows") from None
    finally:
        sys.setrecursionlimit(limit)
