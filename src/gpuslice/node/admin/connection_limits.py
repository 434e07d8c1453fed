"""How many connections a user may have at the admin socket, which every user of the machine can reach.

One user cannot take all of them from the others, and all other users together leave room for root and the agent's own.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL: Final = 256
#: What users other than root and the agent's own have together, and what one of them has.
OTHERS: Final = 192
ONE_USER: Final = 64


class ConnectionLimits:
    """Counts the connections that are open."""

    def __init__(self) -> None:
        self._open: Counter[int] = Counter()
        self._trusted = {0, os.geteuid()}

    def has_room(self, uid: int) -> bool:
        total = self._open.total()
        if uid in self._trusted:
            return total < ALL
        others = total - sum(self._open[trusted] for trusted in self._trusted)
        return total < ALL and others < OTHERS and self._open[uid] < ONE_USER

    @contextmanager
    def counted(self, uid: int) -> Iterator[None]:
        """Counts a connection of that user, for as long as it is open."""
        self._open[uid] += 1
        try:
            yield
        finally:
            self._open[uid] -= 1
            if not self._open[uid]:
                del self._open[uid]
