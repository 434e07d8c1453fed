"""A store tells each change once: whoever applies what it tells has what it has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.kube.store import Key, Store

_KEYS = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y", "z"]))
_VALUES = st.integers(0, 2)
_STEPS = st.one_of(st.tuples(_KEYS, st.none() | _VALUES), st.dictionaries(_KEYS, _VALUES))


class _Mirror:
    """Applies what it is told, and refuses what makes no sense."""

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
