"""Waiting for what other processes do, where there is no event to wait for."""

from __future__ import annotations

import asyncio
import inspect
import select
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

#: Generous: the machine may be busy. Nothing waits that long when it works.
PATIENCE_SECONDS = 120.0
_PAUSE_SECONDS = 0.02


def eventually(condition: Callable[[], object], what: str = "", *, seen: Callable[[], object] | None = None) -> None:
    """Asks again and again until it holds. If it never does, says what was awaited and, by `seen`, what is there."""
    latest = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < latest, _message(condition, what, seen)
        time.sleep(_PAUSE_SECONDS)


async def until(
    condition: Callable[[], Awaitable[object] | object], what: str = "", *, seen: Callable[[], object] | None = None
) -> None:
    """As `eventually`, while the other tasks of this process go on."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await _answer(condition):  # noqa: ASYNC110  # see above
                await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        raise AssertionError(_message(condition, what, seen)) from None


def wait_for_end(pidfd: int) -> None:
    """Until the process of this descriptor has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(PATIENCE_SECONDS * 1000), "the process goes on"


async def _answer(condition: Callable[[], Awaitable[object] | object]) -> object:
    answer = condition()
    return await answer if inspect.isawaitable(answer) else answer


def _message(condition: object, what: str, seen: Callable[[], object] | None) -> str:
    return f"did not happen: {what or condition}" + (f"; there is: {seen()}" if seen is not None else "")
