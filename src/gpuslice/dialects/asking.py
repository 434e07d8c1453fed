"""What a dialect is to the rest: the signs by which it is known, and what it reads from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from gpuslice.model.settings import DEFAULT_SETTINGS, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuslice.model.pods import Place, Pod
    from gpuslice.model.requests import Request

_Value = TypeVar("_Value")


class Reader:
    """One pod on the table, and how to read it: the installation's settings, as the deciding policy changed them."""

    def __init__(self, pod: Pod, settings: Settings = DEFAULT_SETTINGS, *, opted_in: bool = False) -> None:
        self.pod = pod
        self.annotations: Mapping[str, str] = pod.annotations
        self.settings = settings
        #: Whether `nvidia.com/gpu` alone is read as castslice.
        self.opted_in = opted_in
        self.places: tuple[Place, ...] = tuple(pod.places())
        self._found: dict[object, object] = {}

    def forget(self, annotations: Iterable[str]) -> None:
        """They stay on the pod for people to see, but ask for nothing any more."""
        forgotten = frozenset(annotations)
        if forgotten:
            self.annotations = {name: text for name, text in self.annotations.items() if name not in forgotten}

    @property
    def names(self) -> tuple[str, ...]:
        """The containers' names, those that run for the pod's whole life first."""
        return tuple(place.name for place in sorted(self.places, key=lambda place: place.init))

    def once(self, find: Callable[[Reader], _Value]) -> _Value:
        """What holds for the whole pod is found once, not once per container: a pod may have thousands of them."""
        if find not in self._found:
            self._found[find] = find(self)
        return self._found[find]  # type: ignore[return-value]  # what `find` gave


class Asked(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a container asked for in one dialect."""

    requests: tuple[Request, ...]
    #: The resources that said it: what takes their place is the backend's to write.
    resources: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Dialect(Protocol):
    """One way of asking. Every module beside this one that is named after a dialect is one."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a constant of the module
        ...

    def signs(self, place: Place, reader: Reader) -> tuple[str, ...]:
        """The fields by which the container speaks this dialect; none if it does not."""
        ...

    def read(self, place: Place, reader: Reader) -> Asked:
        """What the container asks for. Called only where there are signs; complains with a RequestError."""
        ...
