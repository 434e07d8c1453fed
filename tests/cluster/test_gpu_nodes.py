"""GPUs as the agent publishes them, on the real API server, allocated by the real scheduler."""

from __future__ import annotations

import asyncio
import itertools
import json
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from gpuslice.kube.client import api
from gpuslice.model.gpus import PRESETS
from gpuslice.model.mig import MigPlacement
from gpuslice.model.slices import Slice
from gpuslice.node.dra.publishing import Publisher
from gpuslice.node.dra.resource_slices import build
from gpuslice.node.gpus import published_devices
from gpuslice.node.gpus.gpu_state import GpuState
from gpuslice.node.gpus.hardware import GpuInstance
from gpuslice.node.gpus.health import Illness
from gpuslice.node.gpus.policies import GpuPolicies, Mode, Placement
from tests.cluster.gpu_nodes import GpuNode, gpu_node
from tests.unit.node.making import gpu
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice_cluster.clusters import Cluster

GIB = 1024**3
WHOLE = Slice(cores=100)


@pytest.fixture
def node(cluster: Cluster, namespace: str) -> Iterator[GpuNode]:
    with gpu_node(cluster, namespace) as made:
        yield made


def states(count: int, model: str = "A100-40GB") -> list[GpuState]:
    return [GpuState(gpu=gpu(index, model)) for index in range(count)]


def share(gibibytes: int, cores: int = 0) -> Slice:
    return Slice(memory=gibibytes * GIB, cores=cores)


def partition(profile: str) -> Slice:
    return Slice(mig_profile=profile)


# ---- publishing ----


def test_sixteen_gpus_with_all_their_partitions_are_accepted_and_a_second_look_changes_nothing(node: GpuNode) -> None:
    node.publish(states(16))
    first = node.slices()
    assert sum(len(each["spec"].get("devices", ())) for each in first) == 16 * 26
    assert {each["spec"]["pool"]["resourceSliceCount"] for each in first} == {len(first)}
    assert len({each["spec"]["pool"]["generation"] for each in first}) == 1
    assert {each["metadata"]["ownerReferences"][0]["name"] for each in first} == {node.name}
    node.publish(states(16))
    assert [each["metadata"]["resourceVersion"] for each in node.slices()] == [
        each["metadata"]["resourceVersion"] for each in first
    ]


def test_every_policy_and_state_makes_slices_that_the_api_server_accepts(node: GpuNode) -> None:
    foreign = GpuInstance("3g.20gb", MigPlacement(4, 4))
    mixed = [
        GpuState(gpu=gpu(0, "H100-80GB", pcie_root="pci0000:00", numa_node=1)),
        GpuState(gpu=gpu(1), illness=Illness(79)),
        GpuState(gpu=gpu(2, "L4")),
        GpuState(gpu=gpu(3, "T4"), illness=Illness()),
        GpuState(gpu=gpu(4, mig_enabled=True, instances=(foreign,)), foreign=(foreign,)),
    ]
    for mode in Mode:
        policies = GpuPolicies(default=mode, gpus={"2": Mode.WHOLE})
        node.publish(mixed, policies)
        before = [each["metadata"]["resourceVersion"] for each in node.slices()]
        node.publish(mixed, policies)
        assert [each["metadata"]["resourceVersion"] for each in node.slices()] == before, mode


def test_what_a_user_deletes_or_changes_is_repaired(node: GpuNode) -> None:
    wanted = build(states(4), GpuPolicies())

    def specs() -> list[dict[str, object]]:
        return [{key: value for key, value in each["spec"].items() if key != "pool"} for each in node.slices()]

    async def work() -> None:
        async with api.connect(node.cluster.kubeconfig, {}, "test") as connection:
            publisher = Publisher(connection, node.name)
            running = asyncio.create_task(publisher.run())
            publisher.publish(wanted)
            await publisher.published()
            before = specs()
            names = [each["metadata"]["name"] for each in node.slices()]
            node.cluster.kubectl("delete", "resourceslice", names[0], names[-1])
            await until(lambda: asyncio.to_thread(lambda: specs() == before), "the slices are back")
            change = json.dumps([{"op": "remove", "path": "/spec/devices/0"}])
            node.cluster.kubectl("patch", "resourceslice", names[1], "--type=json", "-p", change)
            await until(lambda: asyncio.to_thread(lambda: specs() == before), "the device is back")
            pools = [each["spec"]["pool"] for each in node.slices()]
            assert all(pool == pools[0] for pool in pools)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await publisher.remove()
            assert node.slices() == []

    asyncio.run(work())


# ---- what the scheduler makes of it ----


def test_shares_fill_one_gpu_before_the_next(node: GpuNode) -> None:
    node.publish(states(3))
    found = node.devices(*node.start(*[share(10)] * 9))
    assert sorted(found) == [["gpu-00000000"]] * 4 + [["gpu-00000001"]] * 4 + [["gpu-00000002"]]


def test_the_cores_of_shares_add_up_to_the_whole_and_no_more(node: GpuNode) -> None:
    node.publish(states(1))
    found = node.devices(*node.start(share(1, cores=60), share(1, cores=40), share(1)))
    assert found == [["gpu-00000000"]] * 3
    node.waits(*node.start(share(1, cores=1)))


def test_a_part_of_whichever_gpu_is_free_is_a_part_of_its_size(node: GpuNode) -> None:
    node.publish([GpuState(gpu=gpu(0, "T4")), GpuState(gpu=gpu(1))])
    sizes = tuple(PRESETS[model].memory_bytes for model in ("T4", "A100-40GB"))
    found = node.devices(*node.start(*[Slice(memory=Fraction(1, 2))] * 4, sizes=sizes))
    assert sorted(found) == [["gpu-00000000"]] * 2 + [["gpu-00000001"]] * 2
    node.waits(*node.start(Slice(memory=Fraction(1, 2)), sizes=sizes))


def test_the_model_is_known_by_the_name_that_users_write(node: GpuNode) -> None:
    node.publish([GpuState(gpu=gpu(0, "T4")), GpuState(gpu=gpu(1, "L4"))])
    (pod,) = node.start(Slice(memory=GIB, gpu_model="L4"))
    assert node.device(pod) == "gpu-00000001"


def test_two_shares_of_one_pod_are_of_two_gpus(node: GpuNode) -> None:
    node.publish(states(2))
    (pod,) = node.start(Slice(memory=GIB, devices=2))
    assert node.devices(pod) == [["gpu-00000000", "gpu-00000001"]]


@pytest.mark.parametrize(
    ("wanted", "sizes"),
    [
        (Slice(memory=GIB, cores=10, devices=2), None),
        (Slice(memory=Fraction(1, 10), cores=10, devices=2), (PRESETS["A100-40GB"].memory_bytes, 80 * GIB)),
        (Slice(cores=100, devices=2), None),
    ],
    ids=["memory", "fraction", "whole"],
)
def test_two_shares_never_come_of_one_gpu(node: GpuNode, wanted: Slice, sizes: tuple[int, ...] | None) -> None:
    node.publish(states(1))
    (pod,) = node.start(wanted, sizes=sizes)
    node.waits(pod)
    node.publish(states(2))
    assert node.devices(pod) == [["gpu-00000000", "gpu-00000001"]]


def test_sharing_and_mig_keep_to_different_gpus(node: GpuNode) -> None:
    node.publish(states(2))
    (sharing,) = node.start(share(1))
    (partitioned,) = node.start(partition("1g.5gb"))
    assert node.device(sharing) == "gpu-00000000"
    assert node.device(partitioned) == "gpu-00000001-mig-1g-5gb-6"
    node.waits(*node.start(WHOLE))
    node.waits(*node.start(partition("7g.40gb")))


def test_a_gpu_that_is_not_shared_any_more_can_be_partitioned(node: GpuNode) -> None:
    node.publish(states(1))
    (sharing,) = node.start(share(1))
    assert node.device(sharing) == "gpu-00000000"
    (largest,) = node.start(partition("7g.40gb"))
    node.waits(largest)
    node.end(sharing)
    assert node.device(largest) == "gpu-00000000-mig-7g-40gb-0"


def test_partitions_of_all_shapes_fill_a_gpu_as_the_hardware_can_place_them(node: GpuNode) -> None:
    gpus = [gpu(0)]
    node.publish([GpuState(gpu=gpus[0])])
    shapes = ["1g.5gb+me", "3g.20gb", "2g.10gb"]
    names = [name for pod in shapes for (name,) in node.devices(*node.start(partition(pod)))]
    found = [published_devices.device_named(name, gpus) for name in names]
    places = [one.placement for one in found if isinstance(one, published_devices.PartitionDevice)]
    assert len(places) == 3
    assert not any(one.overlaps(other) for one, other in itertools.combinations(places, 2))
    node.waits(*node.start(partition("1g.5gb")))
    node.waits(*node.start(share(1)))


def test_only_one_partition_of_a_gpu_has_the_media_engines(node: GpuNode) -> None:
    node.publish(states(1))
    first, second = (node.start(partition("1g.5gb+me"))[0] for _ in range(2))
    assert node.device(first) == "gpu-00000000-mig-1g-5gb-me-6"
    node.waits(second)


def test_a_gpu_to_be_had_whole_goes_to_no_pod_that_wants_a_part(node: GpuNode) -> None:
    node.publish(states(1), GpuPolicies(default=Mode.WHOLE))
    (part,) = node.start(share(4))
    (fraction,) = node.start(Slice(memory=Fraction(1, 2)), sizes=(PRESETS["A100-40GB"].memory_bytes,))
    node.waits(part)
    node.waits(fraction)
    first, second = (node.start(WHOLE)[0] for _ in range(2))
    assert node.device(first) == "gpu-00000000"
    node.waits(second)


def test_an_unhealthy_gpu_gets_no_new_pods(node: GpuNode) -> None:
    ill, well = states(2)
    node.publish([GpuState(gpu=ill.gpu, illness=Illness(79)), well])
    (pod,) = node.start(share(1))
    assert node.device(pod) == "gpu-00000001"
    node.publish([GpuState(gpu=ill.gpu, illness=Illness(79)), GpuState(gpu=well.gpu, illness=Illness())])
    (late,) = node.start(share(1))
    node.waits(late)
    node.publish([ill, well])
    assert node.device(late) == "gpu-00000000"


def test_spreading_puts_each_share_on_the_least_loaded_gpu(node: GpuNode) -> None:
    policies = GpuPolicies(placement=Placement.SPREAD)
    load = [0, 0, 0]
    found = []
    for _ in range(6):
        node.publish([GpuState(gpu=gpu(index), load=held) for index, held in enumerate(load)], policies)
        found.append(node.device(*node.start(share(2))))
        load[int(found[-1][-1])] += 2 * GIB
    assert found == ["gpu-00000000", "gpu-00000001", "gpu-00000002"] * 2
