"""The agent's writes to its folders, off the event loop.

An fsync takes as long as the disk wants: two seconds on one that is busy or failing. All writes of sessions and claims
are made by one thread, one after another in the order in which they were asked for, so that the order on the disk is
the order on the loop; heartbeats and attaches go on meanwhile. Each caller goes on when its write is on the disk.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

_CLOSE_SECONDS: Final = 10.0


class DiskThread:
    """The thread. It starts with the first write, and does not keep the process from ending."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[..., _T], *arguments: object, **named: object) -> _T:
        """What `work` returns or raises. It is done also if the caller is cancelled meanwhile."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def deliver(result: Any, error: BaseException | None) -> None:  # noqa: ANN401 - what `work` returned
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def job() -> None:
            result, failure = None, None
            try:
                result = work(*arguments, **named)
            except BaseException as error:  # noqa: BLE001 - raised where it is awaited
                failure = error
            with suppress(RuntimeError):  # the agent has ended meanwhile
                loop.call_soon_threadsafe(deliver, result, failure)

        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="disk", daemon=True)
            self._thread.start()
        self._jobs.put(job)
        return await future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def close(self) -> None:
        """Waits for what was asked for, but not for a disk that never answers."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(_CLOSE_SECONDS)
            self._thread = None
