"""Ends of tasks that are easily got wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Returns when it has ended, however it did. What it raised is for the caller to look at."""
    task.cancel()
    await asyncio.wait((task,))


def cancelled_from_within() -> bool:
    """In a handler of CancelledError: whether something that this task waited for was cancelled, and not the task.

    A TaskGroup takes a child that ends so for one that ended well, and the work would end in silence.
    """
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


async def run_to_completion(work: Coroutine[Any, Any, _T]) -> _T:
    """The caller may be cancelled; work that was begun is finished all the same, and nothing is left half done."""
    return await asyncio.shield(asyncio.ensure_future(work))
