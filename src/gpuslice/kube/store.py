"""The objects of a watch as they are now, each reduced to what its user needs of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

V = TypeVar("V")

#: Namespace (empty for objects of the cluster) and name.
Key = tuple[str, str]


class Store(Generic[V]):
    """By namespace and name. Whoever listens hears of each change once, with the value before and after it.

    With a limit, what comes when it is full is not kept: for users that can do with less than all.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._values: dict[Key, V] = {}
        self._limit = limit
        self._listeners: list[Callable[[Key, V | None, V | None], None]] = []

    def listen(self, listener: Callable[[Key, V | None, V | None], None]) -> None:
        """Calls it with key, old value and new value; None is an object that is not there."""
        self._listeners.append(listener)

    def get(self, namespace: str, name: str) -> V | None:
        return self._values.get((namespace, name))

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._values)

    def values(self) -> list[V]:
        return list(self._values.values())

    def items(self) -> list[tuple[Key, V]]:
        """A copy: it may be walked through while the cluster changes."""
        return list(self._values.items())

    def put(self, key: Key, value: V | None) -> None:
        """The object is so now, or is gone."""
        old = self._values.get(key)
        if value is None:
            self._values.pop(key, None)
        elif old is None and self._limit is not None and len(self._values) >= self._limit:
            return
        else:
            self._values[key] = value
        if old is not value and old != value:
            for listener in self._listeners:
                listener(key, old, value)

    def replace(self, values: Mapping[Key, V]) -> None:
        """These are all objects there are."""
        for key in [key for key in self._values if key not in values]:
            self.put(key, None)
        for key, value in values.items():
            self.put(key, value)
