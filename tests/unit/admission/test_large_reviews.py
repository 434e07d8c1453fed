"""Large reviews: one at a time, and of each address in turn."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gpuslice.admission.webhook.large_reviews import LargeReviews
from gpuslice.http.fair_share import caller
from tests.waiting import PATIENCE_SECONDS


class _Reviews:
    """Starts them, and knows in which order they were done."""

    def __init__(self) -> None:
        self.large = LargeReviews()
        self.done: list[str] = []
        self.may_go_on = threading.Event()

    def start(self, address: str, name: str) -> asyncio.Task[None]:
        async def review() -> None:
            caller.set(address)
            await self.large.run(lambda: self._work(name))

        return asyncio.create_task(review())

    def _work(self, name: str) -> None:
        assert self.may_go_on.wait(PATIENCE_SECONDS)
        self.done.append(name)


async def test_the_reviews_of_one_address_delay_another_by_one() -> None:
    reviews = _Reviews()
    tasks = [reviews.start("tenant", f"tenant {number}") for number in range(4)]
    tasks.append(reviews.start("server", "server"))
    await asyncio.sleep(0)
    reviews.may_go_on.set()
    await asyncio.gather(*tasks)
    assert reviews.done == ["tenant 0", "tenant 1", "server", "tenant 2", "tenant 3"]
    reviews.large.close()


async def test_a_review_that_was_given_up_takes_no_turn() -> None:
    reviews = _Reviews()
    tasks = [reviews.start("tenant", f"tenant {number}") for number in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    reviews.may_go_on.set()
    await asyncio.gather(tasks[0], tasks[2])
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    assert reviews.done == ["tenant 0", "tenant 2"]
    await reviews.start("tenant", "another")
    assert reviews.done[-1] == "another"
    reviews.large.close()


async def test_a_review_that_is_given_up_in_its_turn_passes_it_on() -> None:
    reviews = _Reviews()
    first, second, third = (reviews.start("tenant", f"tenant {number}") for number in range(3))
    first.add_done_callback(lambda _: second.cancel())  # between its turn and its work
    await asyncio.sleep(0)
    reviews.may_go_on.set()
    await asyncio.gather(first, third)
    assert reviews.done[0] == "tenant 0"
    assert reviews.done[-1] == "tenant 2"
    reviews.large.close()
