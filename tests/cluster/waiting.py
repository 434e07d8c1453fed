"""Waiting for what the API server does by and by: it follows policies, configurations and objects by watches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PATIENCE_SECONDS = 60.0


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    """Asks again and again until it holds."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await condition():  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"did not happen: {what}") from None
