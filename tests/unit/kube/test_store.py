"""A store tells each change once: a listener that applies every change has what the store has."""

from __future__ import annotations

from typing import Never

import structlog
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.kube.store import Key, Store, by_namespace

_KEYS = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y", "z"]))
_VALUES = st.integers(0, 2)
_STEPS = st.one_of(st.tuples(_KEYS, st.none() | _VALUES), st.dictionaries(_KEYS, _VALUES))


class _Mirror:
    """Applies every change that the store tells, and refuses what makes no sense."""

    def __init__(self) -> None:
        self.values: dict[Key, int] = {}

    def hear(self, key: Key, old: int | None, new: int | None) -> None:
        assert old != new
        assert self.values.get(key) == old
        if new is None:
            del self.values[key]
        else:
            self.values[key] = new


@given(st.lists(_STEPS, max_size=20))
def test_a_listener_always_knows_what_the_store_holds(
    steps: list[tuple[Key, int | None] | dict[Key, int]],
) -> None:
    store: Store[int] = Store()
    mirror = _Mirror()
    store.listen(mirror.hear)
    for step in steps:
        if isinstance(step, dict):
            store.replace(step)
            assert dict(store.items()) == step
        else:
            store.put(*step)
            assert store.get(*step[0]) == step[1]
        assert dict(store.items()) == mirror.values


@given(st.lists(_STEPS, max_size=20), st.integers(0, 3))
def test_a_store_with_a_limit_never_holds_more(
    steps: list[tuple[Key, int | None] | dict[Key, int]], limit: int
) -> None:
    store: Store[int] = Store(limit)
    mirror = _Mirror()
    store.listen(mirror.hear)
    for step in steps:
        if isinstance(step, dict):
            store.replace(step)
        else:
            store.put(*step)
        assert len(store) <= limit
        assert dict(store.items()) == mirror.values


def _letters(key: Key, value: int) -> tuple[str, ...]:
    """Index keys that change with the value, of which an object may have several, and some none."""
    return (key[0], key[1])[:value]


@given(st.lists(_STEPS, max_size=20), st.integers(0, 20))
def test_an_index_has_what_the_store_has_whenever_it_is_made(
    steps: list[tuple[Key, int | None] | dict[Key, int]], made: int
) -> None:
    store: Store[int] = Store()
    early = store.index(_letters)
    late = None
    namespaces = store.index(by_namespace)
    seen: list[dict[str, list[Key]]] = []
    store.listen(lambda *_: seen.append({letter: sorted(early.keys(letter)) for letter in early}))
    for number, step in enumerate(steps):
        if number == made:
            late = store.index(_letters)
        store.replace(step) if isinstance(step, dict) else store.put(*step)
        expected: dict[str, list[Key]] = {}
        for key, value in sorted(store.items()):
            for letter in dict.fromkeys(_letters(key, value)):
                expected.setdefault(letter, []).append(key)
        for index in (early, late or early):
            assert {letter: sorted(index.keys(letter)) for letter in index} == expected
            assert all(letter in index and index.count(letter) == len(keys) for letter, keys in expected.items())
            for letter in "abxyz":
                assert index.get(letter) == [store.get(*key) for key in index.keys(letter)]
        for namespace in "ab":
            assert sorted(namespaces.keys(namespace)) == sorted(key for key in store if key[0] == namespace)
        if seen:
            assert seen[-1] == expected, "the index is up to date when a listener hears of a change"


def test_what_fails_is_counted_and_stops_no_other() -> None:
    store: Store[int] = Store()

    def fail(*_: object) -> Never:
        raise ValueError("broken")

    told: list[Key] = []
    store.index(fail)
    good = store.index(by_namespace)
    store.listen(fail)
    store.listen(lambda key, _old, _new: told.append(key))
    with structlog.testing.capture_logs() as logged:
        store.replace({("a", "x"): 1, ("a", "y"): 2})
        store.put(("a", "x"), None)
    assert [entry["name"] for entry in logged] == ["x", "x"]
    assert told == [("a", "x"), ("a", "y"), ("a", "x")]
    assert good.keys("a") == [("a", "y")]
    assert store.failures == 5, "the index works nothing out for an object that is gone"
    assert len(logged) == 2, "each tells of it once"
    assert store.failing
    assert (logged[0]["namespace"], logged[0]["name"], logged[0]["log_level"]) == ("a", "x", "error")


def test_a_listener_that_works_again_is_not_held_to_fail() -> None:
    store: Store[int] = Store()

    def refuse_odd(_key: Key, _old: int | None, new: int | None) -> None:
        if new is not None and new % 2:
            raise ValueError("odd")

    store.listen(refuse_odd)
    with structlog.testing.capture_logs() as logged:
        for value in (1, 3, 2, 5):
            store.put(("a", "x"), value)
            assert store.failing == bool(value % 2)
    assert (store.failures, len(logged)) == (3, 2)
