"""What a pod is charged, from its final spec, and whether its record of what it asked is believed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gpuslice.admission.context import Context
from gpuslice.admission.quota_charges import asked_resources
from gpuslice.admission.quota_charges.asked_proof import UnprovenError, check_proven
from gpuslice.admission.quota_charges.charging import (
    ChargedPod,
    Terms,
    UnsizedError,
    charge,
    check_sized,
    is_charged,
    prune,
)
from gpuslice.model.settings import DEFAULT_SETTINGS
from gpuslice.quotas.stored_quotas import StoredResourceQuota, of_resource_quota
from tests.unit.admission.making import admitted, container, pod, under

Object = dict[str, Any]

GIB = 2**30
TERMS = Terms(DEFAULT_SETTINGS, 40 * GIB, frozenset({"nvidia.com/gpu-shared"}))
CONTEXT = Context(gpu_sizes=(40 * GIB,))
SIDECAR = {"restartPolicy": "Always"}


def unknown(_claim: object) -> int | None:
    """What a claim of others is for."""
    return None


def read(document: Object) -> ChargedPod:
    return msgspec.json.decode(json.dumps(document), type=ChargedPod)


def charged(document: Object) -> dict[str, int]:
    amounts = charge(read(document), TERMS).amounts
    return {name: amount for name, amount in amounts.items() if not name.startswith("requests.")}


def asked(document: Object) -> dict[str, int]:
    amounts = charge(read(document), TERMS).amounts
    return {name.removeprefix("requests."): amount for name, amount in amounts.items() if name.startswith("requests.")}


@pytest.mark.parametrize(
    ("limits", "annotations", "amounts"),
    [
        ({"gpuslice.io/memory": "4Gi", "gpuslice.io/cores": "30"}, {}, (4 * GIB, 30, 1)),
        ({"gpuslice.io/memory": "4Gi"}, {}, (4 * GIB, 100, 1)),
        ({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "1024", "nvidia.com/gpucores": "10"}, {}, (2 * GIB, 20, 2)),
        ({"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "8"}, {}, (2 * GIB, 50, 1)),
        ({"tencent.com/vcuda-core": "200"}, {}, (80 * GIB, 200, 2)),
        (None, {"gpu-fraction": "0.5"}, (20 * GIB, 100, 1)),
        (None, {"gpuslice.io/fraction": "1/4"}, (10 * GIB, 25, 1)),
    ],
)
def test_every_dialect_is_charged_for_what_it_gives(
    limits: Object | None, annotations: Object, amounts: tuple[int, int, int]
) -> None:
    made = admitted(pod(container(limits=limits), annotations=annotations), CONTEXT)
    memory, cores, devices = amounts
    assert charged(made) == {"memory": memory, "cores": cores, "devices": devices}


@pytest.mark.parametrize(
    ("limits", "amounts"),
    [
        ({"nvidia.com/gpu": "2"}, (80 * GIB, 200, 2)),
        ({"nvidia.com/gpu-shared": "5"}, (20 * GIB, 50, 1)),
        ({"nvidia.com/gpu-shared": "12"}, (48 * GIB, 120, 2)),
        ({"deviceclass.resource.kubernetes.io/gpu.gpuslice.io": "1"}, (40 * GIB, 100, 1)),
        # What admission has left to another program is read as its dialect has it.
        ({"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "4"}, (GIB, 30, 1)),
        ({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "1024"}, (2 * GIB, 200, 2)),
    ],
)
def test_what_a_pod_asks_for_by_itself_is_charged_alike(limits: Object, amounts: tuple[int, int, int]) -> None:
    memory, cores, devices = amounts
    assert charged(pod(container(limits=limits))) == {"memory": memory, "cores": cores, "devices": devices}


def test_containers_count_as_kubernetes_counts_them() -> None:
    made = pod(
        container("a", limits={"nvidia.com/gpu": "1"}),
        container("b", limits={"nvidia.com/gpu": "1"}),
        init=(
            container("sidecar", limits={"nvidia.com/gpu": "2"}, **SIDECAR),
            container("first", limits={"nvidia.com/gpu": "3"}),
            container("late", limits={"nvidia.com/gpu": "1"}, **SIDECAR),
        ),
    )
    # All that run for long are 1 + 1 + 2 + 1; the init container has but the first sidecar beside it: 3 + 2.
    assert asked(made) == {"nvidia.com/gpu": 5}
    assert charged(made)["devices"] == 5
    larger = pod(container("a", limits={"nvidia.com/gpu": "1"}), init=(container("i", limits={"nvidia.com/gpu": "4"}),))
    assert asked(larger) == {"nvidia.com/gpu": 4}


def test_a_claim_counts_once_however_many_containers_use_it() -> None:
    limits = {"gpuslice.io/memory": "4Gi"}
    together = pod(
        container("a", limits=limits), container("b", limits=limits), annotations={"gpuslice.io/sharing": "pod"}
    )
    assert charged(admitted(together, CONTEXT))["memory"] == 4 * GIB
    after = pod(container("a", limits=limits), init=(container("i", limits=limits),))
    assert charged(admitted(after, CONTEXT))["memory"] == 4 * GIB


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        ({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "1024"}, {}),
        ({"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "8"}, {}),
        ({"nvidia.com/mig-1g.5gb": "2"}, {}),
        ({"gpuslice.io/memory": str(GIB)}, {}),
        ({"nvidia.com/gpu": "1"}, {"castops.io/optimize": "true"}),
    ],
)
def test_quotas_of_names_count_what_was_asked_and_believe_it(limits: dict[str, str], annotations: Object) -> None:
    made = admitted(pod(container(limits=limits), annotations=annotations), CONTEXT)
    counted = asked(made)
    assert {name: counted.get(name) for name in limits} == {name: int(amount) for name, amount in limits.items()}
    prove(made)


def prove(document: Object, context: Context = CONTEXT) -> None:
    check_proven(msgspec.Raw(json.dumps(document).encode()), "team", context, None)


@pytest.mark.parametrize(
    "annotation", [None, "", "main:", "main: nvidia.com/gpumem=1", "other: nvidia.com/gpumem=2048", "nonsense"]
)
def test_a_forged_record_is_not_believed(annotation: str | None) -> None:
    made = admitted(pod(container(limits={"nvidia.com/gpumem": "2048"})), CONTEXT)
    del made["metadata"]["annotations"][asked_resources.ANNOTATION]
    if annotation is not None:
        made["metadata"]["annotations"][asked_resources.ANNOTATION] = annotation
    with pytest.raises(UnprovenError, match="ask in a dialect"):
        prove(made)


def test_no_claim_can_be_added_to_what_a_record_explains() -> None:
    made = admitted(pod(container(limits={"nvidia.com/gpumem": "2048"})), CONTEXT)
    made["spec"]["resourceClaims"].append(dict(made["spec"]["resourceClaims"][0], name="more"))
    made["spec"]["containers"][0]["resources"]["claims"].append({"name": "more"})
    with pytest.raises(UnprovenError):
        prove(made)


def test_a_policy_that_sees_the_pod_as_it_asked_decides_alike() -> None:
    expression = '"nvidia.com/gpumem" in object.spec.containers[0].resources.limits'
    rule = {"name": "r", "match": {"expression": expression}, "defaults": {"cores": 20}}
    context = under(rule, gpu_sizes=(40 * GIB,))
    made = admitted(pod(container(limits={"nvidia.com/gpumem": "2048"})), context)
    assert charged(made)["cores"] == 20
    prove(made, context)


def test_a_pod_without_slices_needs_no_record() -> None:
    prove(pod(container(limits={"nvidia.com/gpu": "1"})))
    prove(pod(container(resources={"claims": [{"name": "nic"}]}), resourceClaims=[_claim("nic", "net")]))


def _claim(name: str, template: str) -> Object:
    return {"name": name, "resourceClaimTemplateName": template}


@pytest.mark.parametrize(
    "claim",
    [
        {"name": "x", "resourceClaimName": "existing"},
        _claim("x", "other"),
        _claim("x", "gpuslice-1x10mi"),
    ],
)
def test_what_does_not_say_how_much_it_is_cannot_be_sized(claim: Object) -> None:
    for gpus_of in (unknown, lambda _claim: 1):
        with pytest.raises(UnsizedError, match=r"spec.resourceClaims\[0\].*dialect"):
            check_sized(read(pod(container(), resourceClaims=[claim])), TERMS, gpus_of)
    check_sized(read(admitted(pod(container(limits={"nvidia.com/gpumem": "2048"})), CONTEXT)), TERMS, unknown)


@pytest.mark.parametrize("claim", [{"name": "x", "resourceClaimName": "existing"}, _claim("x", "imex-channel")])
def test_a_claim_for_no_gpu_needs_no_size(claim: Object) -> None:
    check_sized(read(pod(container(), resourceClaims=[claim])), TERMS, lambda _claim: 0)
    both = [claim, _claim("y", "gpu-of-its-own")]
    with pytest.raises(UnsizedError, match=r"spec.resourceClaims\[1\]: the template 'gpu-of-its-own'"):
        check_sized(read(pod(container(), resourceClaims=both)), TERMS, lambda claim: int(claim.name == "y"))


def test_a_malformed_request_cannot_be_sized() -> None:
    with pytest.raises(UnsizedError, match=r"spec.containers\[0\]"):
        check_sized(read(pod(container(limits={"tencent.com/vcuda-core": "150"}))), TERMS, unknown)


def test_what_is_kept_of_a_pod_is_charged_as_the_pod_is() -> None:
    made = admitted(pod(container(limits={"nvidia.com/gpumem": "2048", "cpu": "1"}, env=[{"name": "A"}])), CONTEXT)
    kept = prune(read(made))
    assert kept is not None
    assert charge(kept, TERMS) == charge(read(made), TERMS)
    assert prune(read(pod(container(limits={"cpu": "1"})))) is None
    assert not is_charged(read(pod(container(limits={"hugepages-2Mi": "2Mi"}))))


def test_a_resource_quota_is_ours_to_count_where_it_names_a_dialect() -> None:
    def stored(hard: Object, **spec: object) -> StoredResourceQuota:
        document = {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}}
        return msgspec.convert(document, StoredResourceQuota)

    hard = {"requests.nvidia.com/gpumem": "8k", "requests.cpu": "4", "pods": "10", "requests.example.com/fpga": "1"}
    found = of_resource_quota(stored(hard, scopes=["NotTerminating"]), DEFAULT_SETTINGS)
    assert found is not None
    assert found.hard == {"requests.nvidia.com/gpumem": 8000}
    assert [scope.scope_name for scope in found.scopes] == ["NotTerminating"]
    assert of_resource_quota(stored({"requests.cpu": "4"}), DEFAULT_SETTINGS) is None
