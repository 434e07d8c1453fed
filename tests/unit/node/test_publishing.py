"""The plan that brings the API server's slices to what they should be."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.kube.resources import Metadata
from gpuslice.node.dra.publishing import Plan, StoredSlice, plan
from gpuslice.node.dra.resource_slices import SliceContent, build
from gpuslice.node.gpus.gpu_state import GpuState
from gpuslice.node.gpus.health import Illness
from gpuslice.node.gpus.policies import GpuPolicies
from tests.unit.node.making import gpu


def carry_out(found: Plan, stored: list[StoredSlice]) -> list[StoredSlice]:
    """What an API server would have afterwards."""
    there = {each.metadata.name: each for each in stored}
    for each in found.delete:
        del there[each.metadata.name]
    for each, spec in found.replace:
        there[each.metadata.name] = StoredSlice(each.metadata, spec)
    for name, spec in found.create:
        assert name not in there
        there[name] = StoredSlice(Metadata(name=name), spec)
    return list(there.values())


def content(count: int, text: str = "x") -> list[SliceContent]:
    return [SliceContent(f"{number}", {"devices": [{"name": f"{text}-{number}"}]}) for number in range(count)]


def assert_complete(stored: list[StoredSlice], wanted: list[SliceContent]) -> None:
    assert sorted((each.content["devices"] for each in stored), key=str) == sorted(
        (each.content["devices"] for each in wanted), key=str
    )
    assert {each.spec["pool"]["resourceSliceCount"] for each in stored} <= {len(wanted)}
    assert len({each.generation for each in stored}) <= 1


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.lists(st.sampled_from("ab"), max_size=4), st.sets(st.integers(0, 3))),
        min_size=1,
        max_size=6,
    )
)
def test_whatever_was_there_ends_as_wanted_and_a_second_look_does_nothing(
    steps: list[tuple[int, list[str], set[int]]],
) -> None:
    stored: list[StoredSlice] = []
    for count, texts, lost in steps:
        stored = [each for number, each in enumerate(stored) if number not in lost]  # as a user deletes them
        generation = max((each.generation for each in stored), default=0)
        wanted = content(count)
        for number, text in enumerate(texts[:count]):
            wanted[number] = content(number + 1, text)[number]
        stored = carry_out(plan("node", stored, wanted), stored)
        assert_complete(stored, wanted)
        assert plan("node", stored, wanted).empty
        assert all(each.generation >= generation for each in stored)


def test_one_change_keeps_the_generation_and_touches_nothing_else() -> None:
    stored = carry_out(plan("node", [], content(3)), [])
    changed = content(3)
    changed[1] = SliceContent("1", {"devices": [{"name": "other"}]})
    found = plan("node", stored, changed)
    assert [each.metadata.name for each, _ in found.replace] == ["node-gpu.gpuslice.io-1"]
    assert found.replace[0][1]["pool"]["generation"] == stored[0].generation


def test_several_changes_are_a_new_generation_of_all() -> None:
    stored = carry_out(plan("node", [], content(3)), [])
    found = plan("node", stored, [*content(2, "y"), content(3)[2]])
    assert len(found.replace) == 3
    assert {spec["pool"]["generation"] for _, spec in found.replace} == {stored[0].generation + 1}


def test_a_deleted_slice_comes_back_as_it_was() -> None:
    stored = carry_out(plan("node", [], content(3)), [])
    found = plan("node", stored[1:], content(3))
    assert (found.delete, found.replace) == ((), ())
    assert found.create == ((stored[0].metadata.name, stored[0].spec),)


def test_a_taint_keeps_the_time_that_the_server_gave_it() -> None:
    def slices(load: int) -> list[SliceContent]:
        states = [GpuState(gpu=gpu(0, "L4"), illness=Illness(79)), GpuState(gpu=gpu(1, "L4", memory_bytes=load))]
        return build(states, GpuPolicies())

    def with_time(device: dict[str, Any]) -> dict[str, Any]:
        return device | {"taints": [taint | {"timeAdded": "2026-01-01T00:00:00Z"} for taint in device["taints"]]}

    stored = carry_out(plan("node", [], slices(2**30)), [])
    timed = [with_time(device) if "taints" in device else device for device in stored[0].spec["devices"]]
    stored = [StoredSlice(stored[0].metadata, stored[0].spec | {"devices": timed})]
    assert plan("node", stored, slices(2**30)).empty
    ((_, spec),) = plan("node", stored, slices(2**31)).replace
    assert spec["devices"][0]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"
