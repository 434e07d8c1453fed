"""How long to wait before the next try: longer each time, and never in step with the other replicas."""

from __future__ import annotations

import asyncio
import random
from typing import Final

_GROWTH: Final = 2.0


class Backoff:
    """Between `shortest` and `longest` seconds; `reset` after a success."""

    def __init__(self, shortest: float = 0.2, longest: float = 30.0) -> None:
        self._shortest = shortest
        self._longest = longest
        self._next = shortest

    def reset(self) -> None:
        self._next = self._shortest

    def seconds(self) -> float:
        ceiling, self._next = self._next, min(self._next * _GROWTH, self._longest)
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311 - nobody gains by guessing it

    async def wait(self) -> None:
        await asyncio.sleep(self.seconds())
