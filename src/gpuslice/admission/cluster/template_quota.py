"""How many claim templates admission makes in one namespace.

A template is made before its pod is stored, and a pod can still be refused after that: its fields may be invalid, or a
quota used up. A user who may create pods could so have templates made without end. Hence a namespace has at most
MOST_UNUSED that no pod is known to use: those that the controller found unused, and those that are so young that the
controller has not looked at them yet. That is a limit of their rate as well. Templates that pods use do not count, so a
namespace may have hundreds of different slices; MOST holds in any case, also while no controller runs.

Each replica counts what its informer tells and what it is making itself. Replicas see each other's templates a moment
late, and can go over the limit by what they make in that moment.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpuslice.model.errors import GpusliceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice.kube.store import Key

MOST_UNUSED: Final = 100
MOST: Final = 2000
#: The controller looks at all templates twice a minute. What it has left unmarked for so long, pods use.
YOUNG_SECONDS: Final = 90.0


class QuotaError(GpusliceError):
    """Raised when a namespace has so many claim templates that no more are made."""


@dataclass(slots=True)
class _Tally:
    """The templates of one namespace."""

    known: int = 0
    marked: int = 0
    #: When each that is not marked was made or unmarked, the oldest first.
    young: dict[str, float] = field(default_factory=dict)

    def forget_older_than(self, moment: float) -> None:
        while self.young:
            name = next(iter(self.young))
            if self.young[name] > moment:
                return
            del self.young[name]


class TemplateQuota:
    """Counts the templates of each namespace."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tallies: dict[str, _Tally] = {}

    def reserve(self, key: Key) -> None:
        """Counts one that is about to be made. Raises QuotaError if the namespace has too many."""
        namespace, name = key
        tally = self._tallies.setdefault(namespace, _Tally())
        tally.forget_older_than(self._clock() - YOUNG_SECONDS)
        unused = tally.marked + len(tally.young)
        if unused >= MOST_UNUSED:
            raise QuotaError(
                f"namespace {namespace} has {unused} claim templates that no pod uses yet, and at most {MOST_UNUSED} "
                "are made ahead of their pods; unused ones are removed within minutes, so try again, or ask for slices "
                "of fewer different sizes"
            )
        if tally.known >= MOST:
            raise QuotaError(
                f"namespace {namespace} has {tally.known} claim templates, and at most {MOST} are made; remove pods "
                "that are not needed, or ask for slices of fewer different sizes"
            )
        self._add_young(tally, name)

    def release(self, key: Key) -> None:
        """It was not made after all."""
        namespace, name = key
        tally = self._tallies.get(namespace)
        if tally is not None:
            tally.young.pop(name, None)
            self._drop_if_empty(namespace, tally)

    def heard(self, key: Key, *, was: bool | None, marked: bool | None, fresh: bool) -> None:
        """The informer tells whether a template `was` marked as unused and whether it is; None if it is not there.

        `fresh` is whether that is news: what is listed at the start may have been there for long.
        """
        namespace, name = key
        tally = self._tallies.setdefault(namespace, _Tally())
        tally.known += (marked is not None) - (was is not None)
        tally.marked += (marked is True) - (was is True)
        if marked is not False:
            tally.young.pop(name, None)
        elif fresh and name not in tally.young:
            self._add_young(tally, name)
        self._drop_if_empty(namespace, tally)

    def _add_young(self, tally: _Tally, name: str) -> None:
        tally.young.pop(name, None)
        tally.young[name] = self._clock()

    def _drop_if_empty(self, namespace: str, tally: _Tally) -> None:
        if not tally.known and not tally.young:
            self._tallies.pop(namespace, None)
