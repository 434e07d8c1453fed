"""Slots: their names, what they are worth, and which of them a container gets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.node.slots import slot_choice

A, B, C = (f"GPU-{letter * 8}-0000-4000-8000-000000000000" for letter in "abc")


def test_a_slot_names_its_gpu_within_kubernetes_limit() -> None:
    names = slot_choice.names(A, 1000)
    assert len(set(names)) == 1000
    assert {slot_choice.gpu_of(name) for name in names} == {A}
    assert max(len(name) for name in names) <= 63


def test_all_slots_of_a_gpu_are_all_of_its_memory() -> None:
    odd = (40 << 30) + 12345
    assert slot_choice.memory(10, 10, odd) == odd
    assert slot_choice.memory(1, 10, 40 << 30) == 4 << 30
    assert slot_choice.memory(1, 3, 1 << 30) == 341 << 20


@given(st.integers(1, 100), st.integers(1 << 30, 200 << 30), st.data())
def test_slots_never_add_up_to_more_than_the_gpu(per_gpu: int, memory: int, data: st.DataObject) -> None:
    taken, left = [], per_gpu
    while left:
        taken.append(data.draw(st.integers(1, left)))
        left -= taken[-1]
    assert sum(slot_choice.memory(count, per_gpu, memory) for count in taken) <= memory


def test_a_container_fits_on_the_fullest_gpu_that_has_room() -> None:
    available = [*slot_choice.names(A, 10), *slot_choice.names(B, 10)[:4], *slot_choice.names(C, 10)[:2]]
    assert slot_choice.prefer(available, [], 3) == slot_choice.names(B, 3)
    assert slot_choice.prefer(available, [], 5) == slot_choice.names(A, 5)
    assert slot_choice.prefer(available, [], 2) == slot_choice.names(C, 2)


def test_slots_that_it_must_have_decide_the_gpu() -> None:
    available = [*slot_choice.names(A, 10), *slot_choice.names(B, 10)[:4]]
    must = [f"{A}-7"]
    assert slot_choice.prefer(available, must, 3) == [f"{A}-7", f"{A}-0", f"{A}-1"]


def test_what_fits_on_no_gpu_is_on_as_few_as_possible() -> None:
    available = [*slot_choice.names(A, 3), *slot_choice.names(B, 8), *slot_choice.names(C, 10)]
    chosen = slot_choice.prefer(available, [], 12)
    assert {gpu: len(part) for gpu, part in slot_choice.by_gpu(chosen).items()} == {C: 10, A: 2}


@given(
    st.lists(
        st.sampled_from([*slot_choice.names(A, 9), *slot_choice.names(B, 9), *slot_choice.names(C, 9)]), unique=True
    ),
    st.data(),
)
def test_as_many_as_asked_from_what_is_there(available: list[str], data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(available)))
    must = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=size)) if available else []
    chosen = slot_choice.prefer(available, must, size)
    assert len(chosen) == len(set(chosen)) == size
    assert set(must) <= set(chosen) <= set(available)
    groups = slot_choice.by_gpu(available)
    if not must and any(len(group) >= size for group in groups.values()):
        assert len(slot_choice.by_gpu(chosen)) <= 1


def test_the_same_slots_have_the_same_identity_and_others_do_not() -> None:
    assert slot_choice.identity("r", [f"{A}-0", f"{A}-1"]) == slot_choice.identity("r", [f"{A}-1", f"{A}-0"])
    assert slot_choice.identity("r", [f"{A}-0"]) != slot_choice.identity("other", [f"{A}-0"])
    assert slot_choice.identity("r", [f"{A}-0"]) != slot_choice.identity("r", [f"{A}-1"])
