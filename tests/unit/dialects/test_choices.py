"""Annotations that choose GPUs become selectors and constraints of the claim, or are refused: none is ignored."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gpuslice.model.choices import GpuChoice
from gpuslice.model.requests import RequestError
from tests.unit.admission.making import admit, admitted, container, denied, pod, read, under

GPU = "GPU-03f69c50-207a-2038-9b45-23cac89cb67d"
OTHER = "GPU-03f69c50-207a-2038-9b45-23cac89cb67e"
HAMI = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000}
VOLCANO = {"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 3000}
CASTSLICE = {"castops.io/optimize": "true"}
SPEAKERS = pytest.mark.parametrize("limits", [HAMI, VOLCANO], ids=["hami", "volcano"])
EXTENDED = under({"backend": "extended"})


def asking(limits: dict[str, Any], **annotations: str) -> dict[str, Any]:
    """`use_gputype="A100"` is the annotation nvidia.com/use-gputype."""
    said = {f"nvidia.com/{name.replace('_', '-')}": text for name, text in annotations.items()}
    return pod(container(limits=limits), annotations=said)


def claim(asked: dict[str, Any]) -> dict[str, Any]:
    (template,) = admit(asked).decision.templates
    found: dict[str, Any] = json.loads(template.spec)["devices"]
    return found


def selectors(asked: dict[str, Any]) -> list[str]:
    (request,) = claim(asked)["requests"]
    return [each["cel"]["expression"] for each in request["exactly"].get("selectors", [])]


@SPEAKERS
@pytest.mark.parametrize(
    ("annotations", "choice"),
    [
        ({"use_gputype": "A100,v100"}, GpuChoice(types=("A100", "V100"))),
        ({"use_gputype": " Tesla T4 , NVIDIA-L4"}, GpuChoice(types=("TESLA-T4", "NVIDIA-L4"))),
        ({"nouse_gputype": "1080,2080"}, GpuChoice(excluded_types=("1080", "2080"))),
        ({"use_gpuuuid": f"{GPU},{OTHER.upper()}"}, GpuChoice(uuids=(GPU, OTHER))),
        ({"nouse_gpuuuid": GPU}, GpuChoice(excluded_uuids=(GPU,))),
        ({"numa_bind": "True"}, GpuChoice(one_numa_node=True)),
        ({"numa_bind": "false"}, None),
        ({}, None),
    ],
)
def test_they_are_read(limits: dict[str, Any], annotations: dict[str, str], choice: GpuChoice | None) -> None:
    (reading,) = read(asking(limits, **annotations))
    (request,) = reading.asked.requests
    assert request.choice == choice
    assert not reading.asked.warnings


def test_types_and_uuids_become_selectors() -> None:
    chosen = selectors(asking(HAMI, use_gputype="A100", nouse_gputype="80GB", use_gpuuuid=GPU, nouse_gpuuuid=OTHER))
    attributes = 'device.attributes["gpu.gpuslice.io"]'
    names = f'("NVIDIA-" + {attributes}.product.replace(" ", "-") + " " + {attributes}.model).upperAscii()'
    assert chosen == [
        f'["A100"].exists(t, {names}.contains(t))',
        f'({attributes}.uuid in ["{GPU}"])',
        f'!["80GB"].exists(t, {names}.contains(t))',
        f'!({attributes}.uuid in ["{OTHER}"])',
    ]


def test_gpus_of_one_numa_node_are_a_constraint() -> None:
    constraints = claim(asking(HAMI, numa_bind="true"))["constraints"]
    assert {"requests": ["gpu"], "matchAttribute": "gpu.gpuslice.io/numaNode"} in constraints
    assert len(constraints) == 2
    assert "constraints" not in claim(asking(HAMI | {"nvidia.com/gpu": 1}, numa_bind="true"))


def test_people_see_the_choice_on_the_pod() -> None:
    made = admitted(asking(HAMI, use_gputype="A100", numa_bind="true"))
    assert made["metadata"]["annotations"]["gpuslice.io/slice"] == (
        "main: 2 x 3000Mi memory (of type A100, on one NUMA node)"
    )
    assert admitted(made) == made


@SPEAKERS
@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        ({"use_gputype": ""}, "'' is not a list of GPU types; write up to 8, with commas between them"),
        ({"use_gputype": "A100,,V100"}, "is not a list of GPU types"),
        ({"use_gputype": 'A100"])'}, "is not a list of GPU types"),
        ({"nouse_gputype": ",".join(["A"] * 9)}, "is not a list of GPU types"),
        ({"use_gpuuuid": "GPU-1"}, "is not a list of the UUIDs of GPUs; .* as nvidia-smi -L shows them"),
        ({"nouse_gpuuuid": GPU.replace("GPU", "MIG")}, "is not a list of the UUIDs of GPUs"),
        ({"numa_bind": "yes"}, "'yes' is neither true nor false"),
    ],
)
def test_what_makes_no_sense_is_refused(limits: dict[str, Any], annotations: dict[str, str], reason: str) -> None:
    (name,) = annotations
    with pytest.raises(RequestError, match=reason) as caught:
        read(asking(limits, **annotations))
    assert caught.value.field == f"metadata.annotations[nvidia.com/{name.replace('_', '-')}]"


@pytest.mark.parametrize(
    ("limits", "annotation", "text", "reason"),
    [
        (HAMI, "nvidia.com/vgpu-mode", "mig", "shares GPUs by limits.*nvidia.com/mig-<profile>"),
        (HAMI, "nvidia.com/vgpu-mode", "mps", "shares GPUs by limits"),
        (HAMI, "hami.io/gpu-scheduler-policy", "spread", "no claim says which GPU of a node is filled first"),
        (HAMI, "hami.io/gpu-scheduler-policy", "topology-aware", "no claim says which"),
        (HAMI, "hami.io/node-scheduler-policy", "spread", "scheduler chooses the node.*topologySpreadConstraints"),
        (VOLCANO, "volcano.sh/vgpu-mode", "mig", "shares GPUs by limits"),
        (VOLCANO, "volcano.sh/vgpu-podgroup-policy", "spread", "no claim knows of others"),
        (
            {"koordinator.sh/gpu": 50},
            "scheduling.koordinator.sh/device-allocate-hint",
            '{"gpu": {}}',
            "which devices to choose.*gpuslice.io/gpu-model chooses the model",
        ),
    ],
)
def test_what_a_claim_cannot_keep_is_refused(limits: dict[str, Any], annotation: str, text: str, reason: str) -> None:
    message = denied(pod(container(limits=limits), annotations={annotation: text}))
    assert message.startswith(f"metadata.annotations[{annotation}]: {text!r}: ")
    assert re.search(reason, message)
    # To a pod that asks otherwise they mean nothing.
    assert admitted(pod(container(limits={"gpuslice.io/memory": "1Gi"}), annotations={annotation: text}))


def test_a_pod_that_is_left_to_its_scheduler_keeps_what_that_one_knows() -> None:
    asked = pod(
        container(limits=HAMI),
        annotations={"hami.io/node-scheduler-policy": "spread"},
        schedulerName="hami-scheduler",
    )
    assert "scheduler chooses the node" in denied(asked)
    assert admitted(asked, under({"otherSchedulers": "LeaveAlone"})) == asked


@pytest.mark.parametrize(
    ("limits", "annotation", "text"),
    [
        (HAMI, "nvidia.com/vgpu-mode", "hami-core"),
        (HAMI, "nvidia.com/vgpu-mode", "hami-core,mig"),
        (HAMI, "hami.io/gpu-scheduler-policy", "binpack"),
        (VOLCANO, "volcano.sh/vgpu-mode", "hami-core"),
    ],
)
def test_what_happens_anyway_is_taken(limits: dict[str, Any], annotation: str, text: str) -> None:
    (reading,) = read(pod(container(limits=limits), annotations={annotation: text}))
    assert reading.asked.requests[0].choice is None


@pytest.mark.parametrize("label", ["kai.scheduler/node-pool", "runai/node-pool"])
def test_a_pool_of_nodes_is_refused(label: str) -> None:
    asked = pod(container(), annotations={"gpu-fraction": "0.5"})
    asked["metadata"]["labels"] = {label: "pool-a"}
    assert "spec.nodeSelector" in denied(asked)


@SPEAKERS
@pytest.mark.parametrize("annotations", [{"use_gputype": "A100"}, {"nouse_gpuuuid": GPU}])
def test_slots_are_of_any_gpu(limits: dict[str, Any], annotations: dict[str, str]) -> None:
    one = {name: 1 if name in ("nvidia.com/gpu", "volcano.sh/vgpu-number") else size for name, size in limits.items()}
    message = denied(asking(one, **annotations), EXTENDED)
    assert "the backend extended cannot give 3000Mi memory (" in message
    assert "slots are of any GPU; use the backend dra" in message


def test_one_gpu_is_on_one_numa_node_on_slots_too() -> None:
    assert admitted(asking(HAMI | {"nvidia.com/gpu": 1}, numa_bind="true"), EXTENDED)


def test_they_hold_beside_every_dialect() -> None:
    native = selectors(asking({"gpuslice.io/memory": "4Gi"}, use_gputype="A100"))
    assert native == selectors(asking(HAMI, use_gputype="A100"))
    (partition,) = selectors(asking({"nvidia.com/mig-1g.5gb": 1}, use_gpuuuid=GPU))[:1]
    assert partition == f'(device.attributes["gpu.gpuslice.io"].parentUUID in ["{GPU}"])'
    cast = asking({"nvidia.com/gpu": 1}, use_gputype="A100")
    cast["metadata"]["annotations"] |= CASTSLICE
    (template,) = admit(cast, under({"backend": "dra"})).decision.templates
    assert b"A100" in template.spec
    assert "slots" in denied(cast)


def test_partitions_are_not_held_on_one_numa_node() -> None:
    assert "each MIG partition is a claim of its own" in denied(asking({"nvidia.com/mig-1g.5gb": 2}, numa_bind="true"))
