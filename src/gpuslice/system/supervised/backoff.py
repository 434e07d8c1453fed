"""How long to wait before the next try: longer each time, and never in step with the other replicas."""

from __future__ import annotations

import asyncio
import random
from typing import Final

_GROWTH: Final = 2.0
#: Doubling this often exceeds every bound; more would only make large numbers.
_MOST_DOUBLINGS: Final = 32


class Backoff:
    """Between `shortest` and `longest` seconds; `reset` after a success."""

    def __init__(self, shortest: float = 0.2, longest: float = 30.0) -> None:
        self._shortest = shortest
        self._longest = longest
        self._tries = 0

    def reset(self) -> None:
        self._tries = 0

    def seconds(self) -> float:
        self._tries += 1
        return delay(self._tries, self._shortest, self._longest)

    async def wait(self) -> None:
        await asyncio.sleep(self.seconds())


def delay(failures: int, shortest: float, longest: float) -> float:
    """How long to wait after so many failures in a row: twice as long each time, at most `longest`, and at random
    between half of that and all of it, so that callers that failed together do not try together.
    """
    ceiling = min(shortest * _GROWTH ** min(failures - 1, _MOST_DOUBLINGS), longest)
    return random.uniform(ceiling / 2, ceiling)  # noqa: S311 - nothing is gained by guessing it
