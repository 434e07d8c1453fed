"""The thread for large reviews: one at a time, and the addresses that they come from in turn.

So many large reviews take no more than one thread, and those of one address delay another's by one of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from gpuslice.http.fair_share import caller

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


class LargeReviews:
    """Does work in the thread. What is asked for meanwhile waits."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "large-review")
        self._busy = False
        #: Reviews that wait, by address; the address whose turn is next comes first.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def run(self, work: Callable[[], _T]) -> _T:
        loop = asyncio.get_running_loop()
        if self._busy:
            await self._wait(loop.create_future())
        self._busy = True
        try:
            return await loop.run_in_executor(self._thread, work)
        finally:
            self._pass_on()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _wait(self, turn: asyncio.Future[None]) -> None:
        self._waiting.setdefault(caller.get(), deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given its turn, and does not use it
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Gives the next their turn."""
        while self._waiting:
            address = next(iter(self._waiting))
            turns = self._waiting.pop(address)
            turn = turns.popleft()
            if turns:
                self._waiting[address] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False
