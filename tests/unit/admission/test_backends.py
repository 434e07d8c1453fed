"""What a slice becomes in each backend."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuslice.admission.context import Context
from gpuslice.model.policies import Backend
from tests.unit.admission.making import Object, admit, admitted, container, denied, patched, pod, response_of, under

GIB = 2**30
TWO_SIZES = (40 * GIB, 80 * GIB)
DRA = Context(backend=Backend.DRA, gpu_sizes=TWO_SIZES)
EXTENDED = Context(backend=Backend.EXTENDED, gpu_sizes=TWO_SIZES)


def claim_of(asked: Object, context: Context = DRA) -> dict[str, Any]:
    """What the one template of a pod asks."""
    (template,) = admit(asked, context).decision.templates
    document = template.document("team")
    assert document["apiVersion"] == "resource.k8s.io/v1"
    assert document["metadata"]["namespace"] == "team"
    spec: dict[str, Any] = document["spec"]["spec"]["devices"]
    return spec


def exactly(**more: object) -> dict[str, Any]:
    base = {"deviceClassName": "gpu.gpuslice.io", "allocationMode": "ExactCount", "count": 1}
    return {"requests": [{"name": "gpu", "exactly": base | more}]}


def test_memory_and_cores_are_asked_as_capacity() -> None:
    asked = pod(container(limits={"gpuslice.io/memory": "4Gi", "gpuslice.io/cores": 30}))
    assert claim_of(asked) == exactly(capacity={"requests": {"memory": "4Gi", "cores": "30"}})


def test_odd_bytes_are_rounded_up_to_the_step() -> None:
    asked = pod(container(limits={"gpuslice.io/memory": "100000000"}))
    assert claim_of(asked) == exactly(capacity={"requests": {"memory": "96Mi"}})


def test_whole_gpus_take_all_cores_and_by_default_all_memory() -> None:
    assert claim_of(pod(container(limits={"tencent.com/vcuda-core": 200}))) == exactly(
        count=2, capacity={"requests": {"cores": "100"}}
    )


def test_a_mig_profile_is_selected_and_each_partition_is_a_claim() -> None:
    asked = pod(container(limits={"nvidia.com/mig-1g.5gb.me": 3}))
    reviewed = admit(asked, DRA)
    assert claim_of(asked) == exactly(
        deviceClassName="mig.gpuslice.io",
        selectors=[{"cel": {"expression": 'device.attributes["gpu.gpuslice.io"].profile == "1g.5gb+me"'}}],
    )
    result = patched(asked, reviewed)
    template = reviewed.decision.templates[0].name
    names = ["gpuslice-0", "gpuslice-1", "gpuslice-2"]
    assert result["spec"]["resourceClaims"] == [{"name": name, "resourceClaimTemplateName": template} for name in names]
    assert result["spec"]["containers"][0]["resources"] == {
        "limits": {},
        "claims": [{"name": name} for name in names],
    }


def test_a_fraction_has_an_alternative_for_each_size_the_smallest_first() -> None:
    (request,) = claim_of(pod(container(), annotations={"gpuslice.io/fraction": "1/3"}))["requests"]
    small, large = request["firstAvailable"]
    assert (small["name"], large["name"]) == ("of-40gi", "of-80gi")
    assert small["capacity"] == {"requests": {"memory": "13653Mi", "cores": "33"}}
    assert large["capacity"] == {"requests": {"memory": "27306Mi", "cores": "33"}}
    assert small["selectors"] == [
        {"cel": {"expression": 'device.capacity["gpu.gpuslice.io"].memory.compareTo(quantity("40Gi")) == 0'}}
    ]


def test_a_model_narrows_the_sizes_to_its_own() -> None:
    annotations = {"gpuslice.io/fraction": "1/4", "gpuslice.io/gpu-model": "t4"}
    (request,) = claim_of(pod(container(), annotations=annotations))["requests"]
    assert request["exactly"]["capacity"]["requests"]["memory"] == "3840Mi"
    assert request["exactly"]["selectors"][0] == {
        "cel": {"expression": 'device.attributes["gpu.gpuslice.io"].model == "T4"'}
    }


def test_at_most_eight_sizes_are_named_and_the_user_hears_of_it() -> None:
    context = Context(gpu_sizes=tuple(size * GIB for size in range(20, 8, -1)))
    asked = pod(container(), annotations={"gpu-fraction": "0.5"})
    (request,) = claim_of(asked, context)["requests"]
    names = [alternative["name"] for alternative in request["firstAvailable"]]
    assert names == [f"of-{size}gi" for size in range(13, 21)]
    assert "12 sizes" in response_of(admit(asked, context))["warnings"][0]


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        ({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1000}, {}),
        ({"gpuslice.io/gpus": 2, "gpuslice.io/memory": "1000Mi"}, {}),
        ({"gpuslice.io/gpus": 2}, {"gpuslice.io/fraction": "1/4"}),
        ({}, {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}),
        ({"nvidia.com/gpu": 2}, {"castops.io/optimize": "true"}),
    ],
    ids=["hami", "native", "native-fraction", "kai", "castslice"],
)
def test_two_shares_are_of_two_gpus(limits: Object, annotations: Object) -> None:
    claim = claim_of(pod(container(limits=limits), annotations=annotations))
    (request,) = claim["requests"]
    alternatives = request.get("firstAvailable") or [request["exactly"]]
    assert {alternative["count"] for alternative in alternatives} == {2}
    assert claim["constraints"] == [{"requests": ["gpu"], "distinctAttribute": "gpu.gpuslice.io/uuid"}]


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        ({"gpuslice.io/gpus": 2}, {}),
        ({"tencent.com/vcuda-core": 200}, {}),
        ({"nvidia.com/gpu": 2}, {"castops.io/optimize": "true", "castops.io/slice-ratio": "10"}),
    ],
    ids=["native", "vcuda", "castslice"],
)
def test_whole_gpus_are_asked_whole(limits: Object, annotations: Object) -> None:
    claim = claim_of(pod(container(limits=limits), annotations=annotations))
    assert claim == exactly(count=2, capacity={"requests": {"cores": "100"}})


def test_slots_of_several_gpus_are_counted_together_and_fit_on_each() -> None:
    annotations = {"castops.io/optimize": "true", "castops.io/slice-ratio": "20"}
    asked = pod(container(limits={"nvidia.com/gpu": 2}), annotations=annotations)
    message = denied(asked, DRA)
    assert message == (
        "spec.containers[0].resources.limits[nvidia.com/gpu]: asks for 2 GPUs with 20 slots of each, and a GPU has 10"
    )
    assert "asks for 40 slots; at most 30 are allowed" in denied(asked, under({"maximum": {"slots": 30}}))


def test_equal_slices_have_one_template_in_every_dialect() -> None:
    native = admit(pod(container(limits={"gpuslice.io/memory": "1Gi", "gpuslice.io/cores": 10})), DRA)
    vcuda = admit(pod(container(limits={"tencent.com/vcuda-core": 10, "tencent.com/vcuda-memory": 4})), DRA)
    other = admit(pod(container(limits={"tencent.com/vcuda-core": 11, "tencent.com/vcuda-memory": 4})), DRA)
    assert native.decision.templates == vcuda.decision.templates
    assert native.decision.templates[0].name != other.decision.templates[0].name
    assert len(native.decision.templates[0].name) <= 63


def claims_by_container(asked: Object, context: Context = DRA) -> dict[str, list[str]]:
    spec = admitted(asked, context)["spec"]
    return {
        each["name"]: [claim["name"] for claim in each.get("resources", {}).get("claims", [])]
        for each in spec.get("initContainers", []) + spec["containers"]
    }


MEMORY = {"gpuslice.io/memory": "1Gi"}


def test_containers_have_slices_of_their_own() -> None:
    asked = pod(container("a", MEMORY), container("b", MEMORY))
    assert claims_by_container(asked) == {"a": ["gpuslice-0"], "b": ["gpuslice-1"]}


def test_containers_that_say_so_share_one() -> None:
    asked = pod(container("a", MEMORY), container("b", MEMORY), annotations={"gpuslice.io/sharing": "pod"})
    assert claims_by_container(asked) == {"a": ["gpuslice-0"], "b": ["gpuslice-0"]}
    assert len(admitted(asked, DRA)["spec"]["resourceClaims"]) == 1


def test_containers_that_share_must_ask_for_the_same() -> None:
    asked = pod(
        container("a", MEMORY),
        container("b", {"gpuslice.io/memory": "2Gi"}),
        annotations={"gpuslice.io/sharing": "pod"},
    )
    assert "'b' asks for 2Gi memory, but 'a' for 1Gi memory" in denied(asked, DRA)


def test_init_containers_use_the_slice_of_containers_that_start_later() -> None:
    init = (container("i", MEMORY), container("j", MEMORY), container("k", {"gpuslice.io/memory": "2Gi"}))
    asked = pod(container("a", MEMORY), container("b", MEMORY), init=init)
    assert claims_by_container(asked) == {
        "i": ["gpuslice-0"],
        "j": ["gpuslice-0"],
        "k": ["gpuslice-2"],
        "a": ["gpuslice-0"],
        "b": ["gpuslice-1"],
    }


def test_a_sidecar_has_a_slice_of_its_own() -> None:
    sidecar = container("s", MEMORY, restartPolicy="Always")
    asked = pod(container("a", MEMORY), init=(sidecar, container("i", MEMORY)))
    assert claims_by_container(asked) == {"s": ["gpuslice-0"], "i": ["gpuslice-1"], "a": ["gpuslice-1"]}


def test_claims_that_the_pod_has_are_kept_and_names_do_not_collide() -> None:
    mine = {"name": "gpuslice-0", "resourceClaimName": "mine"}
    asked = pod(
        container("a", MEMORY), container("b", resources={"claims": [{"name": "gpuslice-0"}]}), resourceClaims=[mine]
    )
    result = admitted(asked, DRA)["spec"]
    assert [claim["name"] for claim in result["resourceClaims"]] == ["gpuslice-0", "gpuslice-1"]
    assert result["resourceClaims"][0] == mine
    assert result["containers"][0]["resources"]["claims"] == [{"name": "gpuslice-1"}]


@pytest.mark.parametrize(
    ("asked", "limits"),
    [
        (pod(container(limits={"gpuslice.io/memory": "4Gi"})), {"nvidia.com/gpu-shared": "1"}),
        (pod(container(limits={"gpuslice.io/memory": "5Gi"})), {"nvidia.com/gpu-shared": "2"}),
        (pod(container(limits={"gpuslice.io/memory": "41Gi"})), {"nvidia.com/gpu-shared": "6"}),
        (
            pod(container(limits={"gpuslice.io/memory": "4Gi", "gpuslice.io/cores": 55})),
            {"nvidia.com/gpu-shared": "6"},
        ),
        (pod(container(), annotations={"gpu-fraction": "0.25"}), {"nvidia.com/gpu-shared": "3"}),
        (pod(container(limits={"tencent.com/vcuda-core": 300})), {"nvidia.com/gpu": "3"}),
        (pod(container(limits={"nvidia.com/mig-1g.5gb": "2"})), {"nvidia.com/mig-1g.5gb": "2"}),
        (pod(container(limits={"cpu": "1", "gpuslice.io/cores": 5})), {"cpu": "1", "nvidia.com/gpu-shared": "10"}),
    ],
)
def test_extended_gives_slots_that_hold_at_least_what_was_asked(asked: Object, limits: Object) -> None:
    assert admitted(asked, EXTENDED)["spec"]["containers"][0]["resources"]["limits"] == limits


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (pod(container(limits={"nvidia.com/gpu": 2, "nvidia.com/gpumem": 999})), "cannot be spread over several GPUs"),
        (
            pod(container(limits={"nvidia.com/gpu": 8}), annotations={"castops.io/optimize": "true"}),
            "cannot give 8 x 1 slot: slots cannot be spread over several GPUs",
        ),
        (
            pod(container(limits={"gpuslice.io/memory": "1Gi"}), annotations={"gpuslice.io/sharing": "pod"}),
            "cannot be shared",
        ),
        (
            pod(container(limits={"gpuslice.io/memory": "1Gi"}), annotations={"gpuslice.io/gpu-model": "T4"}),
            "not of a T4",
        ),
    ],
)
def test_extended_says_what_it_cannot_do(asked: Object, reason: str) -> None:
    message = denied(asked, EXTENDED)
    assert reason in message
    assert message.endswith("use the backend dra")


def test_extended_warns_of_gpus_that_are_too_small() -> None:
    reviewed = admit(pod(container(limits={"gpuslice.io/memory": "50Gi"})), EXTENDED)
    assert "some GPUs of the cluster have less memory" in response_of(reviewed)["warnings"][0]


def test_castslice_puts_slots_where_the_gpu_was_and_nothing_else() -> None:
    resources = {"limits": {"nvidia.com/gpu": "1", "cpu": "1"}, "requests": {"nvidia.com/gpu": "1", "cpu": "1"}}
    asked = pod(
        container(resources=resources),
        container("limits-only", {"nvidia.com/gpu": "1"}),
        init=(container("prepare", {"nvidia.com/gpu": "1"}),),
        annotations={"castops.io/optimize": "true", "castops.io/slice-ratio": "3"},
    )
    spec = admitted(asked)["spec"]
    shared = {"nvidia.com/gpu-shared": "3"}
    assert spec["containers"][0]["resources"] == {
        "limits": {"cpu": "1"} | shared,
        "requests": {"cpu": "1"} | shared,
    }
    assert spec["containers"][1]["resources"] == {"limits": shared}
    assert spec["initContainers"][0]["resources"] == {"limits": shared}
    assert "resourceClaims" not in spec


@pytest.mark.parametrize(
    ("slots", "request_"),
    [
        ("3", {"memory": "12Gi", "cores": "30"}),
        ("10", {"cores": "100"}),
    ],
)
def test_slots_as_claims_are_parts_of_a_gpu(slots: str, request_: dict[str, str]) -> None:
    annotations = {"castops.io/optimize": "true", "castops.io/slice-ratio": slots}
    asked = pod(container(limits={"nvidia.com/gpu": 1}), annotations=annotations)
    context = Context(backend=Backend.DRA, gpu_sizes=(40 * GIB,))
    assert claim_of(asked, context)["requests"][0]["exactly"]["capacity"]["requests"] == request_


def test_slots_that_are_no_whole_number_of_gpus_are_denied_as_claims() -> None:
    annotations = {"castops.io/optimize": "true", "castops.io/slice-ratio": "15"}
    asked = pod(container(limits={"nvidia.com/gpu": 1}), annotations=annotations)
    assert "15 slots are more than a GPU and no whole number" in denied(asked, DRA)


def test_the_default_is_extended_for_castslice_and_claims_for_the_others_where_they_are_served() -> None:
    castslice = pod(container(limits={"nvidia.com/gpu": 1}), annotations={"castops.io/optimize": "true"})
    native = pod(container(limits=MEMORY))
    backends = {
        (served, each["metadata"].get("annotations") is not None): admitted(each, Context(serves_dra=served))[
            "metadata"
        ]["annotations"]["gpuslice.io/backend"]
        for served in (True, False)
        for each in (castslice, native)
    }
    assert backends == {
        (True, True): "extended",
        (True, False): "dra",
        (False, True): "extended",
        (False, False): "extended",
    }


def test_claims_that_are_ordered_but_not_served_are_denied() -> None:
    context = under({"backend": "dra"}, serves_dra=False)
    assert "does not serve resource.k8s.io/v1" in denied(pod(container(limits=MEMORY)), context)


def test_gpu_manager_keeps_vcuda_and_gets_its_annotation() -> None:
    limits = {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "4"}
    context = under({"backend": "gpu-manager"})
    result = admitted(pod(container(limits=limits)), context)
    assert result["spec"]["containers"][0]["resources"] == {"limits": limits}
    assert result["metadata"]["annotations"]["tencent.com/vcuda-core-limit"] == "30"
    assert "does not understand native" in denied(pod(container(limits=MEMORY)), context)


def test_gpu_manager_s_annotation_is_the_user_s_if_there_is_one() -> None:
    limits = {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "4"}
    asked = pod(container(limits=limits), annotations={"tencent.com/vcuda-core-limit": "80"})
    result = admitted(asked, under({"backend": "gpu-manager"}))
    assert result["metadata"]["annotations"]["tencent.com/vcuda-core-limit"] == "80"


def test_a_template_is_json_that_kubernetes_takes() -> None:
    (template,) = admit(pod(container(limits=MEMORY)), DRA).decision.templates
    assert json.loads(json.dumps(template.document("team")))["kind"] == "ResourceClaimTemplate"
