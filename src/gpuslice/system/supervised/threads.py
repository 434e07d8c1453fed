"""Work that may take long or never end, off the agent's loop."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

_MOST_STUCK: Final = 16
_SECONDS: Final = 2.0


async def in_thread(work: Callable[[], _T], name: str) -> _T:
    """Runs it in a thread that does not keep the agent from ending, should it never return."""
    return await _start(work, name)[0]


def _start(work: Callable[[], _T], name: str) -> tuple[asyncio.Future[_T], threading.Thread]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def deliver(result: _T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            failure = error
        with suppress(RuntimeError):  # the agent has ended meanwhile
            loop.call_soon_threadsafe(deliver, result, failure)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return future, thread


class InspectionTimeoutError(Exception):
    """Raised when a read of /proc did not end in time, or was not begun because others of that tenant never did."""


class InspectionThread:
    """Reads of /proc, one at a time, each with a deadline.

    Some files there are read out of the process's own memory (cmdline, environ) or under the lock of its mappings
    (maps). A process whose memory is behind userfaultfd or FUSE makes such a read wait for as long as it likes: the
    thread is then left behind, and the next read has another. Whose reads hang is named by `tenant`, which gets no
    further read until that one ends; so one tenant costs one thread, and no tenant costs another its reads.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._stuck: dict[str, threading.Thread] = {}

    async def run(self, work: Callable[[], _T], *, tenant: str = "", seconds: float = _SECONDS) -> _T:
        """What `work` returns, or InspectionTimeoutError."""
        async with self._turn:
            self._stuck = {name: thread for name, thread in self._stuck.items() if thread.is_alive()}
            if tenant in self._stuck or len(self._stuck) >= _MOST_STUCK:
                raise InspectionTimeoutError("an earlier read of /proc has not ended")
            future, thread = _start(work, "inspection")
            try:
                async with asyncio.timeout(seconds):  # wait_for would forget that it was cancelled (CPython 86296)
                    return await future
            except TimeoutError:
                self._stuck[tenant] = thread
                raise InspectionTimeoutError("a read of /proc takes too long") from None
