"""What is published of a node's GPUs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.model.gpus import PRESETS
from gpuslice.model.mig import MigPlacement
from gpuslice.node.dra.resource_slices import build
from gpuslice.node.gpus import published_devices
from gpuslice.node.gpus.gpu_state import GpuState
from gpuslice.node.gpus.hardware import GpuInstance
from gpuslice.node.gpus.health import Illness
from gpuslice.node.gpus.policies import GpuPolicies, MigMode, Mode, Placement, TaintEffect
from tests.unit.node.making import counter_sets, devices, gpu

SHARE = GpuPolicies()
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def names_of(states: list[GpuState], policies: GpuPolicies = SHARE, kind: str = "gpu") -> list[str]:
    found = devices(build(states, policies)).items()
    return [name for name, device in found if device["attributes"]["type"]["string"] == kind]


def states(count: int, model: str = "A100-40GB") -> list[GpuState]:
    return [GpuState(gpu=gpu(index, model)) for index in range(count)]


def test_a_gpu_is_one_device_to_share_and_all_of_its_partitions() -> None:
    found = devices(build(states(1), SHARE))
    shared = found.pop("gpu-00000000")
    assert shared["allowMultipleAllocations"] is True
    assert shared["capacity"]["memory"] == {
        "value": "40Gi",
        "requestPolicy": {"default": "40Gi", "validRange": {"min": "1Mi", "step": "1Mi"}},
    }
    assert shared["capacity"]["cores"]["requestPolicy"]["default"] == "0"
    assert shared["attributes"]["model"] == {"string": "A100-40GB"}
    assert shared["attributes"]["driverVersion"] == {"version": "610.43.2"}
    assert len(found) == sum(len(profile.placements) for profile in PRESETS["A100-40GB"].mig_profiles)
    small = found["gpu-00000000-mig-1g-5gb-me-6"]
    assert small["attributes"]["profile"] == {"string": "1g.5gb+me"}
    assert small["attributes"]["placement"] == {"int": 6}
    assert small["attributes"]["parentUUID"] == shared["attributes"]["uuid"]
    assert "allowMultipleAllocations" not in small


def test_memory_that_is_not_a_whole_number_of_steps_is_rounded_down() -> None:
    state = GpuState(gpu=gpu(memory_bytes=40 * 1024**3 + 1024**2 - 1))
    assert devices(build([state], SHARE))["gpu-00000000"]["capacity"]["memory"]["value"] == "40Gi"


def test_a_gpu_without_mig_needs_no_counters() -> None:
    slices = build(states(2, "L4"), SHARE)
    assert [each.suffix for each in slices] == ["0-gpus-00"]
    assert all("consumesCounters" not in device for device in devices(slices).values())


def test_sixteen_gpus_with_all_their_partitions_stay_within_the_limits_of_the_api() -> None:
    slices = build(states(16), SHARE)
    assert len(devices(slices)) == 16 * 26
    for each in slices:
        assert len(each.content.get("devices", ())) <= 64
        assert len(each.content.get("sharedCounters", ())) <= 8
    for counters in counter_sets(slices).values():
        assert len(counters) <= 32
    for name, device in devices(slices).items():
        assert _LABEL.fullmatch(name)
        assert len(device["attributes"]) + len(device["capacity"]) <= 32


def test_every_device_takes_from_counters_that_are_there() -> None:
    slices = build([*states(3), GpuState(gpu=gpu(3, "H100-80GB"))], SHARE)
    sets = counter_sets(slices)
    for device in devices(slices).values():
        (taken,) = device["consumesCounters"]
        for name, counter in taken["counters"].items():
            assert 0 < int(counter["value"]) <= sets[taken["counterSet"]][name]


def test_shares_fill_the_first_gpu_and_partitions_the_last() -> None:
    assert names_of(states(3)) == ["gpu-00000000", "gpu-00000001", "gpu-00000002"]
    assert names_of(states(3), kind="mig")[0].startswith("gpu-00000002-")


def test_gpus_that_can_do_nothing_else_are_shared_first_and_those_in_mig_mode_last() -> None:
    mixed = [
        GpuState(gpu=gpu(0, mig_enabled=True)),
        GpuState(gpu=gpu(1)),
        GpuState(gpu=gpu(2, "L4", mig_profiles=())),
    ]
    assert names_of(mixed) == ["gpu-00000002", "gpu-00000001", "gpu-00000000"]
    assert names_of(mixed, kind="mig")[0].startswith("gpu-00000000-")


def test_spreading_puts_the_least_loaded_gpu_first() -> None:
    loaded = [GpuState(gpu=gpu(index), load=load) for index, load in enumerate((20, 0, 10))]
    spread = GpuPolicies(placement=Placement.SPREAD)
    assert names_of(loaded, spread) == ["gpu-00000001", "gpu-00000002", "gpu-00000000"]
    assert names_of(loaded) == ["gpu-00000000", "gpu-00000001", "gpu-00000002"]


@pytest.mark.parametrize(
    ("mode", "whole", "partitions"),
    [(Mode.SHARE, True, True), (Mode.MIG, False, True), (Mode.WHOLE, True, False), (Mode.RESERVE, False, False)],
)
def test_the_policy_says_what_a_gpu_is_published_as(mode: Mode, *, whole: bool, partitions: bool) -> None:
    policies = GpuPolicies(default=mode)
    assert bool(names_of(states(1), policies)) == whole
    assert bool(names_of(states(1), policies, "mig")) == partitions


def test_each_gpu_has_a_policy_of_its_own() -> None:
    policies = GpuPolicies(default=Mode.WHOLE, gpus={"1": Mode.SHARE, gpu(2).uuid: Mode.RESERVE, "H100-80GB": Mode.MIG})
    mixed = [*states(3), GpuState(gpu=gpu(3, "H100-80GB"))]
    found = devices(build(mixed, policies))
    assert "allowMultipleAllocations" not in found["gpu-00000000"]
    assert found["gpu-00000001"]["allowMultipleAllocations"] is True
    assert not any(name.startswith("gpu-00000002") for name in found)
    assert "gpu-00000003" not in found
    assert "gpu-00000003-mig-7g-80gb-0" in found


def test_a_whole_gpu_has_a_size_that_selectors_find_and_requests_for_a_part_do_not() -> None:
    whole = devices(build(states(1), GpuPolicies(default=Mode.WHOLE)))["gpu-00000000"]
    assert whole["capacity"]["gpu.gpuslice.io/memory"] == {"value": "40Gi"}
    assert "memory" not in whole["capacity"]


@pytest.mark.parametrize("enabled", [True, False])
def test_where_the_mig_mode_is_kept_only_what_it_allows_is_published(*, enabled: bool) -> None:
    state = GpuState(gpu=gpu(mig_enabled=enabled))
    stuck = GpuState(gpu=gpu(mig_enabled=enabled), switchable=False)
    for found, policies in ((state, GpuPolicies(mig_mode=MigMode.KEEP)), (stuck, SHARE)):
        assert bool(names_of([found], policies)) != enabled
        assert bool(names_of([found], policies, "mig")) == enabled


def test_what_another_program_made_is_withheld_with_all_that_overlaps_it() -> None:
    foreign = GpuInstance("3g.20gb", MigPlacement(4, 4), ("MIG-x",))
    state = GpuState(gpu=gpu(mig_enabled=True, instances=(foreign,)), foreign=(foreign,))
    slices = build([state], SHARE)
    assert names_of([state]) == []
    starts = {
        (device["attributes"]["profile"]["string"], device["attributes"]["placement"]["int"])
        for device in devices(slices).values()
    }
    assert ("4g.20gb", 0) in starts
    assert {start for profile, start in starts if profile == "1g.5gb"} == {0, 1, 2, 3}
    (counters,) = counter_sets(slices).values()
    assert counters["memory-slice-3"] == 1
    assert counters["memory-slice-4"] == 0


@pytest.mark.parametrize(
    ("illness", "effect", "value"),
    [(Illness(79), TaintEffect.NO_SCHEDULE, "xid-79"), (Illness(), TaintEffect.NO_EXECUTE, "lost")],
)
def test_every_device_of_an_unhealthy_gpu_is_tainted(illness: Illness, effect: TaintEffect, value: str) -> None:
    mixed = [GpuState(gpu=gpu(0), illness=illness), GpuState(gpu=gpu(1))]
    for name, device in devices(build(mixed, GpuPolicies(unhealthy=effect))).items():
        taint = {"key": "gpuslice.io/unhealthy", "value": value, "effect": str(effect)}
        assert device.get("taints") == ([taint] if name.startswith("gpu-00000000") else None)


def test_gpus_whose_uuids_begin_alike_go_by_the_whole_of_it() -> None:
    twins = [gpu(0, uuid="GPU-aaaaaaaa-1"), gpu(1, uuid="GPU-aaaaaaaa-2"), gpu(2)]
    assert list(published_devices.gpu_names(twins).values()) == ["gpu-aaaaaaaa-1", "gpu-aaaaaaaa-2", "gpu-00000002"]


@given(st.lists(st.sampled_from(["A100-40GB", "H100-80GB", "T4"]), min_size=1, max_size=4))
def test_every_published_name_is_found_again(models: list[str]) -> None:
    gpus = [gpu(index, model) for index, model in enumerate(models)]
    for name, device in devices(build([GpuState(gpu=each) for each in gpus], SHARE)).items():
        found = published_devices.device_named(name, gpus)
        assert found is not None
        attributes = device["attributes"]
        if isinstance(found, published_devices.PartitionDevice):
            assert found.gpu.uuid == attributes["parentUUID"]["string"]
            assert found.profile.name == attributes["profile"]["string"]
            assert found.placement.start == attributes["placement"]["int"]
        else:
            assert found.gpu.uuid == attributes["uuid"]["string"]


@pytest.mark.parametrize("name", ["gpu-99999999", "gpu-00000000-mig-9g-1gb-0", "", "gpu-00000000-mig-"])
def test_a_name_of_nothing_is_nothing(name: str) -> None:
    assert published_devices.device_named(name, [gpu()]) is None
