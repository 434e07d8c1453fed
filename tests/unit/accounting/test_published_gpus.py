"""What is held of GPUs, read from objects as agents publish them and the scheduler writes them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gpuslice.accounting import published_gpus as reading
from gpuslice.accounting.charges import GPU_PARTS, ChargeBy
from gpuslice.accounting.published_gpus import (
    AllocatedClaim,
    PublishedDevice,
    SlotParts,
    StoredClaim,
    StoredNode,
    StoredPod,
    StoredSlice,
)
from gpuslice.node.dra.resource_slices import build
from gpuslice.node.gpus.gpu_state import GpuState
from gpuslice.node.gpus.health import Illness
from gpuslice.node.gpus.policies import GpuPolicies, Mode
from tests.unit.node.making import gpu

_POOL = "node/gpuslice"


def _devices(state: GpuState, mode: Mode = Mode.SHARE) -> list[PublishedDevice]:
    """Of one GPU, as its agent publishes it."""
    found: list[PublishedDevice] = []
    for each in build([state], GpuPolicies(default=mode)):
        document = {
            "metadata": {"name": each.suffix},
            "spec": {"nodeName": "node", "pool": {"name": _POOL}, **each.content},
        }
        stored = msgspec.json.decode(json.dumps(document), type=StoredSlice)
        found += reading.published(stored) or ()
    return found


def _claim(*results: dict[str, Any], pods: tuple[str, ...] = ("p",)) -> AllocatedClaim:
    document = {
        "metadata": {"name": "c", "namespace": "team", "uid": "c-uid"},
        "status": {
            "allocation": {
                "devices": {
                    "results": [{"driver": "gpu.gpuslice.io", "pool": _POOL, "request": "r", **r} for r in results]
                },
                "allocationTimestamp": "2027-01-01T00:00:00Z",
            },
            "reservedFor": [{"resource": "pods", "name": each, "uid": f"{each}-uid"} for each in pods],
        },
    }
    found = reading.allocated(msgspec.json.decode(json.dumps(document), type=StoredClaim))
    assert found is not None
    return found


def _share(memory: str, cores: int = 0) -> dict[str, Any]:
    return {"device": "gpu-0", "consumedCapacity": {"memory": memory, "cores": str(cores)}}


def _weight(claim: AllocatedClaim, devices: list[PublishedDevice], by: ChargeBy = ChargeBy.MAXIMUM) -> int:
    return reading.holding(claim, devices, by).weight


def test_a_share_weighs_its_larger_part() -> None:
    devices = _devices(GpuState(gpu=gpu(0, "A100-40GB")))
    name = next(each.name for each in devices if not each.partition)
    whole = next(each.memory for each in devices if not each.partition)
    quarter = {"device": name, "consumedCapacity": {"memory": str(whole // 4), "cores": "0"}}
    busy = {"device": name, "consumedCapacity": {"memory": str(whole // 4), "cores": "60"}}
    assert _weight(_claim(quarter), devices) == 250_000
    assert _weight(_claim(busy), devices) == 600_000
    assert _weight(_claim(busy), devices, ChargeBy.MEMORY) == 250_000
    assert _weight(_claim(quarter), devices, ChargeBy.CORES) == GPU_PARTS
    assert _weight(_claim(quarter, quarter), devices) == 500_000, "two shares of one claim"
    assert _weight(_claim(busy, busy), devices) == GPU_PARTS, "never more than the GPU"
    holding = reading.holding(_claim(quarter, pods=("b", "a")), devices, ChargeBy.MAXIMUM)
    assert holding.pods == (("a-uid", "a"), ("b-uid", "b"))
    assert holding.since == 1_798_761_600_000


@pytest.mark.parametrize(
    ("model", "profile", "parts"),
    [
        ("A100-40GB", "1g.5gb", 142_858),
        ("A100-40GB", "3g.20gb", 500_000),
        ("A100-40GB", "7g.40gb", GPU_PARTS),
        ("A30", "1g.6gb", 250_000),
        ("A30", "2g.12gb", 500_000),
    ],
)
def test_a_partition_weighs_its_slices(model: str, profile: str, parts: int) -> None:
    devices = _devices(GpuState(gpu=gpu(0, model)))
    label = profile.replace(".", "-")
    name = next(each.name for each in devices if each.partition and label in each.name)
    assert _weight(_claim({"device": name}), devices) == parts
    assert {each.gpu for each in devices} == {gpu(0, model).uuid}


def test_a_gpu_that_is_given_whole_weighs_all_of_it() -> None:
    devices = _devices(GpuState(gpu=gpu(0, "A100-40GB")), Mode.WHOLE)
    (name,) = [each.name for each in devices]
    assert _weight(_claim({"device": name}), devices) == GPU_PARTS


def test_who_only_looks_or_has_devices_of_others_holds_nothing() -> None:
    looking = {"driver": "gpu.gpuslice.io", "pool": _POOL, "device": "gpu-0", "adminAccess": True}
    card = {"driver": "dra.net", "pool": "p", "device": "eth0"}
    for results in ([looking], [card], []):
        status = {"allocation": {"devices": {"results": results}}}
        document = {"metadata": {"name": "c", "uid": "u", "namespace": "n"}, "status": status}
        assert reading.allocated(msgspec.convert(document, StoredClaim)) is None
    assert reading.allocated(msgspec.convert({"metadata": {"name": "c"}}, StoredClaim)) is None


def test_a_gpu_that_is_ill_or_whose_node_is_lost_is_of_no_use() -> None:
    well, ill = (_devices(GpuState(gpu=gpu(0, "A100-40GB"), illness=illness)) for illness in (None, Illness(xid=79)))
    assert reading.gpu_of(well, 5, node_ready=True).usable
    assert not reading.gpu_of(well, 5, node_ready=False).usable
    assert not reading.gpu_of(ill, 5, node_ready=True).usable
    assert reading.gpu_of(well, 5, node_ready=True).model == "A100-40GB"


def test_the_slots_of_a_node_are_one_account() -> None:
    slots = SlotParts()
    status = {
        "capacity": {"cpu": "8", "nvidia.com/gpu-shared": "20", "nvidia.com/gpu": "1", "nvidia.com/mig-1g.5gb": "7"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    metadata = {"name": "n", "labels": {"nvidia.com/gpu.product": "Tesla-T4"}}
    found = reading.node(msgspec.convert({"metadata": metadata, "status": status}, StoredNode), slots)
    assert (found.parts, found.model, found.ready) == (3 * GPU_PARTS + 7 * 142_858, "Tesla-T4", True)


def test_a_pod_holds_slots_from_when_it_is_bound_until_it_ends() -> None:
    def pod(phase: str, node: str = "n", **init: Any) -> dict[str, Any]:  # noqa: ANN401
        limits = {"resources": {"limits": {"nvidia.com/gpu-shared": "3", "cpu": "1"}}}
        return {
            "metadata": {"name": "p", "namespace": "team", "uid": "u"},
            "spec": {"nodeName": node, "containers": [limits, limits], "initContainers": [limits | init]},
            "status": {"phase": phase},
        }

    def parts(document: dict[str, Any]) -> int | None:
        found = reading.slot_pod(msgspec.convert(document, StoredPod), SlotParts())
        return None if found is None else found.parts

    assert parts(pod("Pending")) == 600_000
    assert parts(pod("Running", restartPolicy="Always")) == 900_000
    assert parts(pod("Pending", node="")) is None
    assert parts(pod("Succeeded")) is None
