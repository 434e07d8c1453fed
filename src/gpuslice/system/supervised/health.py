"""What is wrong with this process, by its parts: the answers of /healthz and /readyz.

/healthz asks whether a new process would do better: it names parts whose heartbeat is too old. /readyz asks whether the
process does its work now: it names parts that have not started or cannot work, too.

The answer is worked out on the event loop that does the work. A loop that is stuck cannot answer, so the probe fails;
a server in another thread asks the loop through `ask_loop`, and says so when no answer comes.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: A probe of the kubelet waits for at least one second; an answer that says what is wrong must come before that.
ANSWER_SECONDS: Final = 0.8
_STARTING: Final = "has not started"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a probe: `text` names each part that is ill, one in a line."""

    well: bool
    text: str

    @property
    def status(self) -> HTTPStatus:
        return HTTPStatus.OK if self.well else HTTPStatus.SERVICE_UNAVAILABLE


_WELL: Final = Answer(well=True, text="ok")


class Part:
    """One part of the process, as it tells of itself. Its methods are called on the loop that does its work."""

    def __init__(self, name: str, stale_seconds: float | None) -> None:
        self.name: Final = name
        self._stale_seconds = stale_seconds
        self._beat: float | None = None
        self._complaint = _STARTING

    def beat(self) -> None:
        """Reports that the work goes on. The part calls this more often than its bound."""
        self._beat = asyncio.get_running_loop().time()

    def ready(self) -> None:
        """Reports that the part works. That is no heartbeat: a part that starts and fails in turns must grow stale."""
        self._tell("")

    def ill(self, reason: str) -> None:
        """It does not work now; the process need not be replaced for that, unless the heartbeat grows too old."""
        self._tell(reason or "is ill")

    def _tell(self, complaint: str) -> None:
        self._complaint = complaint
        if self._beat is None:
            self.beat()

    def stale(self) -> str:
        """Why a new process would do better; empty if it would not. What never began has no heartbeat to miss."""
        if self._stale_seconds is None or self._beat is None:
            return ""
        silence = asyncio.get_running_loop().time() - self._beat
        if silence <= self._stale_seconds:
            return ""
        missed = f"no heartbeat for {silence:.0f} s, where {self._stale_seconds:g} s are allowed"
        return f"{missed}; {self._complaint}" if self._complaint else missed

    def complaint(self) -> str:
        """Why the part does no work now; empty if it works."""
        return self.stale() or self._complaint


class Health:
    """The parts of one process."""

    def __init__(self) -> None:
        self._parts: dict[str, Part] = {}
        self._checks: list[_Check] = []

    def part(self, name: str, *, stale_seconds: float | None = None) -> Part:
        """A new part, not ready yet. With `stale_seconds` it must beat at least that often."""
        if name in self._parts:
            raise ValueError(f"there is a part with the name {name!r}: choose another name")
        part = self._parts[name] = Part(name, stale_seconds)
        return part

    def remove(self, part: Part) -> None:
        """The part has done its work, and is no part of the process any more."""
        if self._parts.get(part.name) is part:
            del self._parts[part.name]

    def check(self, name: str, ask: Callable[[], str], *, liveness: bool) -> None:
        """Asks for each answer of /readyz what is wrong with the part (empty: nothing), and with `liveness` for each of
        /healthz, too: for what can be looked up instead of being reported.
        """
        self._checks.append(_Check(name, ask, liveness))

    def alive(self) -> Answer:
        """For /healthz."""
        complaints = [(name, part.stale()) for name, part in self._parts.items()]
        return _answer(complaints + [(each.name, each.complaint()) for each in self._checks if each.liveness])

    def ready(self) -> Answer:
        """For /readyz."""
        complaints = [(name, part.complaint()) for name, part in self._parts.items()]
        return _answer(complaints + [(each.name, each.complaint()) for each in self._checks])


@dataclass(frozen=True, slots=True)
class _Check:
    name: str
    ask: Callable[[], str]
    liveness: bool

    def complaint(self) -> str:
        try:
            return self.ask()
        except Exception as error:  # noqa: BLE001 - a check that fails is a complaint about its part, not about all
            return f"cannot be told: {describe(error)}"


def ask_loop(
    loop: asyncio.AbstractEventLoop, question: Callable[[], Answer], *, seconds: float = ANSWER_SECONDS
) -> Answer:
    """The answer that `question` gives on the loop, for a server in another thread. Never waits longer than that."""
    answered = threading.Event()
    found: list[Answer] = []

    def ask() -> None:
        try:
            found.append(question())
        except Exception as error:  # noqa: BLE001 - whatever a check does, the probe has an answer
            found.append(Answer(well=False, text=f"health: cannot be told: {describe(error)}"))
        answered.set()

    try:
        loop.call_soon_threadsafe(ask)
    except RuntimeError:
        return Answer(well=False, text="event loop: has ended")
    if not answered.wait(seconds):
        return Answer(well=False, text=f"event loop: gave no answer within {seconds:g} s, so it is stuck")
    return found[0]


def describe(error: BaseException) -> str:
    """The error in one line, with its kind: the text alone may be empty, or mean nothing. A group says only that there
    are errors, so its first one stands for it.
    """
    if isinstance(error, BaseExceptionGroup):
        others = f" (and {len(error.exceptions) - 1} others)" if len(error.exceptions) > 1 else ""
        return describe(error.exceptions[0]) + others
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def _answer(complaints: list[tuple[str, str]]) -> Answer:
    lines = [f"{name}: {complaint}" for name, complaint in complaints if complaint]
    return Answer(well=False, text="\n".join(lines)) if lines else _WELL
