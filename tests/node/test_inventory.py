"""What the agent reads of a node's GPUs, on the simulated NVML."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.model.gpus import PRESETS
from gpuslice.model.mig import MigPlacement
from gpuslice.node.gpus import counters, inventory, mig
from gpuslice.node.gpus.gpu_watcher import GpuStates
from gpuslice.node.gpus.hardware import GpuInstance
from gpuslice.node.gpus.health import APPLICATION_XIDS, Health, Illness, XidEvents
from gpuslice.node.gpus.nvml import NvmlUnavailableError
from gpuslice.node.gpus.partitions import Partitions
from gpuslice.node.gpus.policies import GpuPolicies
from tests.native import nvml
from tests.native.inside import on_machine

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpuslice-test.") as name:
        yield Path(name)


def inject(gpu: int, xid: int) -> None:
    assert nvml.call("gpusliceSimInjectXid", gpu, xid) == 0


@on_machine("1xA100-40GB,1xT4")
def test_the_inventory_is_what_the_machine_was_made_of() -> None:
    first, second = inventory.read()
    preset = PRESETS["A100-40GB"]
    assert (first.index, first.product, first.memory_bytes) == (0, preset.product, preset.memory_bytes)
    assert (first.architecture, second.architecture) == ("Ampere", "Turing")
    assert (first.driver_version, first.cuda_version) == ("610.43.2", "13.4.0")
    assert (first.pci_bus_id, second.pci_bus_id) == ("0000:07:00.0", "0000:08:00.0")
    assert set(first.mig_profiles) == set(preset.mig_profiles)
    assert not first.mig_enabled
    assert second.mig_profiles == ()


@on_machine("1xH100-80GB,1xA100-80GB")
def test_profiles_and_placements_are_those_of_the_model() -> None:
    for gpu, model in zip(inventory.read(), ("H100-80GB", "A100-80GB"), strict=True):
        assert set(gpu.mig_profiles) == set(PRESETS[model].mig_profiles)


@on_machine("1xT4")
def test_the_kernel_tells_root_complex_and_numa_node() -> None:
    (gpu,) = inventory.read()
    assert (gpu.pcie_root, gpu.numa_node) == (None, None)
    with folder() as sysfs:
        device = sysfs / "devices" / "pci0000:05" / "0000:05:01.0" / gpu.pci_bus_id
        device.mkdir(parents=True)
        (device / "numa_node").write_text("1\n")
        (sysfs / "bus" / "pci" / "devices").mkdir(parents=True)
        (sysfs / "bus" / "pci" / "devices" / gpu.pci_bus_id).symlink_to(device)
        (gpu,) = inventory.read(sysfs)
        assert (gpu.pcie_root, gpu.numa_node) == ("pci0000:05", 1)
        (device / "numa_node").write_text("-1\n")
        assert inventory.read(sysfs)[0].numa_node is None


@on_machine()
def test_instances_are_seen_with_their_places_and_devices() -> None:
    device = nvml.gpu()
    nvml.enable_mig(device)
    made = nvml.create_mig_device(device, 9)
    nvml.create_instance(device, 19, 0, 1)  # with nothing in it
    (gpu,) = inventory.read()
    assert gpu.mig_enabled
    assert gpu.instances == (
        GpuInstance("1g.5gb", MigPlacement(0, 1)),
        GpuInstance("3g.20gb", MigPlacement(4, 4), (pynvml.nvmlDeviceGetUUID(made),)),
    )


@pytest.mark.parametrize("model", ["A100-40GB", "H100-80GB"])
@on_machine("1xA100-40GB,1xH100-80GB")
def test_the_counters_allow_a_partition_if_and_only_if_the_driver_makes_it(model: str) -> None:
    device = nvml.gpu(["A100-40GB", "H100-80GB"].index(model))
    nvml.enable_mig(device)
    profiles = mig.profiles(device)
    partitions = [(profile, place) for profile in profiles for place in profile.placements]

    @settings(max_examples=150, database=None)
    @given(st.lists(st.sampled_from(partitions), max_size=16))
    def in_any_order(wanted: list[tuple[nvml.Handle, MigPlacement]]) -> None:
        left, made = counters.whole(profiles), []
        try:
            for profile, place in wanted:
                taken = counters.taken(profile, place)
                try:
                    made.append(mig.create(device, profile, place))
                except pynvml.NVMLError_InsufficientResources:
                    assert not counters.fits(taken, left), (profile.name, place)
                else:
                    assert counters.fits(taken, left), (profile.name, place)
                    left -= taken
        finally:
            for instance in made:
                mig.destroy(instance)

    in_any_order()


@on_machine("2xT4")
def test_errors_of_programs_leave_a_gpu_healthy_and_its_own_do_not() -> None:
    first, second = inventory.read()
    with folder() as state:
        health, events = Health(state), XidEvents([first, second])
        for xid in (*sorted(APPLICATION_XIDS), 48):
            inject(1, xid)
            event = events.wait(10_000)
            assert event is not None
            assert (event.gpu_uuid, event.xid) == (second.uuid, xid)
            assert health.report(event.gpu_uuid, Illness(event.xid)) == (xid == 48)
        assert events.wait(0) is None
        assert health.illnesses() == {second.uuid: Illness(48)}
        assert not health.report(second.uuid, Illness(63)), "the first word stands"
        assert Health(state).illnesses() == {second.uuid: Illness(48)}, "another agent on the same state knows it too"
        (state / second.uuid).unlink()
        assert health.illnesses() == {}
        events.close()


@on_machine("2xT4")
def test_a_gpu_off_the_bus_is_told_apart_though_nvml_answers_nothing_about_it() -> None:
    first, second = inventory.read()
    events = XidEvents([first, second])
    inject(0, 79)
    event = events.wait(10_000)
    assert event is not None
    assert event.gpu_uuid == first.uuid
    events.close()


@on_machine("2xT4")
def test_a_lost_gpu_is_still_known_and_ill() -> None:
    with folder() as state:
        gpus = GpuStates(GpuPolicies(), Partitions(state / "partitions"), Health(state / "health"))
        assert [each.illness for each in gpus.refresh()] == [None, None]
        inject(0, 79)
        lost, well = gpus.refresh()
        assert (lost.illness, well.illness) == (Illness(), None)
        assert lost.gpu.memory_bytes == well.gpu.memory_bytes


@on_machine()
def test_our_partitions_are_told_from_those_of_others() -> None:
    with folder() as state:
        partitions = Partitions(state / "partitions")
        gpus = GpuStates(GpuPolicies(), partitions, Health(state / "health"))
        (before,) = gpus.refresh()
        partitions.make(before.gpu.uuid, "2g.10gb", 4)
        nvml.create_instance(nvml.gpu(), 19, 6, 1)
        (after,) = gpus.refresh()
        assert after.gpu.mig_enabled
        assert [(one.profile, one.placement.start) for one in after.foreign] == [("1g.5gb", 6)]


def test_without_nvml_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSLICE_SIM", "/nonexistent")
    with pytest.raises(NvmlUnavailableError):
        inventory.read()
