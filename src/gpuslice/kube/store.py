"""The objects of a watch as they are now, each reduced to what its user needs of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

V = TypeVar("V")
I = TypeVar("I", bound="Hashable")  # noqa: E741 - of an index

#: Namespace (empty for objects of the cluster) and name.
Key = tuple[str, str]


class Store(Generic[V]):
    """By namespace and name. Each listener hears of each change once, with the value before and after it. Listeners do
    not depend on each other: one that fails is logged and counted, and the others hear of the change all the same.

    With a limit, what comes when it is full is not kept: for users that can do with less than all.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._values: dict[Key, V] = {}
        self._limit = limit
        self._indexes: list[Index[Any, V]] = []
        self._listeners: list[Callable[[Key, V | None, V | None], None]] = []
        #: How often a listener or an index failed.
        self.failures = 0
        self._failing: set[int] = set()

    @property
    def failing(self) -> bool:
        """Whether a listener failed when it was last told something: what it knows may be wrong."""
        return bool(self._failing)

    def listen(self, listener: Callable[[Key, V | None, V | None], None]) -> None:
        """Calls it with key, old value and new value; None is an object that is not there."""
        self._listeners.append(listener)

    def index(self, keys: Callable[[Key, V], Iterable[I]]) -> Index[I, V]:
        """The objects by other keys than their names. It is up to date before any listener hears of a change."""
        index: Index[I, V] = Index(self._values, keys)
        for key, value in self._values.items():
            self._call(index, key, None, value)
        self._indexes.append(index)
        return index

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
            for index in self._indexes:
                self._call(index, key, old, value)
            for listener in self._listeners:
                self._call(listener, key, old, value)

    def replace(self, values: Mapping[Key, V]) -> None:
        """These are all objects there are."""
        for key in [key for key in self._values if key not in values]:
            self.put(key, None)
        for key, value in values.items():
            self.put(key, value)

    def _call(
        self, listener: Callable[[Key, V | None, V | None], None], key: Key, old: V | None, new: V | None
    ) -> None:
        """Tells of a failure once, until the listener works again: there may be ten thousand objects."""
        try:
            listener(key, old, new)
        except Exception:  # noqa: BLE001 - one that fails must neither stop the watch nor the other listeners
            self.failures += 1
            if id(listener) not in self._failing:
                self._failing.add(id(listener))
                structlog.get_logger().exception("a listener of a watch failed", namespace=key[0], name=key[1])
        else:
            if self._failing:
                self._failing.discard(id(listener))


class Index(Generic[I, V]):
    """The objects of a store by keys that are worked out of each. The store keeps it up to date."""

    def __init__(self, values: Mapping[Key, V], keys: Callable[[Key, V], Iterable[I]]) -> None:
        self._values = values
        self._work_out = keys
        #: Of each index key the objects that have it, in the order in which they came; and of each object its keys.
        self._objects: dict[I, dict[Key, None]] = {}
        self._keys: dict[Key, tuple[I, ...]] = {}

    def __iter__(self) -> Iterator[I]:
        return iter(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def __len__(self) -> int:
        return len(self._objects)

    def keys(self, key: I) -> list[Key]:
        """The names of the objects that have this key."""
        return list(self._objects.get(key, ()))

    def get(self, key: I) -> list[V]:
        """The objects that have this key."""
        return [self._values[name] for name in self._objects.get(key, ())]

    def iterate(self, key: I) -> Iterator[tuple[Key, V]]:
        """The same one by one, with their names, for those who need but the first. The store must not change
        meanwhile.
        """
        return ((name, self._values[name]) for name in self._objects.get(key, ()))

    def count(self, key: I) -> int:
        return len(self._objects.get(key, ()))

    def __call__(self, name: Key, _old: V | None, new: V | None) -> None:
        """An object changed. If its keys cannot be worked out, it has none."""
        for key in self._keys.pop(name, ()):
            names = self._objects[key]
            del names[name]
            if not names:
                del self._objects[key]
        if new is None:
            return
        keys = tuple(dict.fromkeys(self._work_out(name, new)))
        if keys:
            self._keys[name] = keys
        for key in keys:
            self._objects.setdefault(key, {})[name] = None


def by_namespace(key: Key, _value: object) -> tuple[str]:
    """For an index: the objects of a namespace."""
    return (key[0],)
