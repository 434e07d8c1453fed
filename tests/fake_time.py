"""An event loop whose clock jumps to the next timer when nothing else is to be done: hours pass in no time."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Where the loop would sleep, the time is over at once."""

    def __init__(self) -> None:
        super().__init__()
        self.jumped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # no timer: something outside of the loop has to happen
            return super().select(timeout)
        events = super().select(0)
        if not events:
            self.jumped += max(timeout, 0)
        return events


class FakeTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Zero at the start."""
        return self._jumping.jumped


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs it to its end in a loop of its own."""
    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        return runner.run(coroutine)
