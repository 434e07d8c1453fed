"""A container that names claims which it did not ask for holds no more than its rule allows, all of them together."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.admission import pod_annotations
from gpuslice.admission.claims import claim_templates
from gpuslice.admission.decision import Outcome
from gpuslice.admission.registration import claim_policy
from gpuslice.model.devices import GPU_CLASSES
from gpuslice.model.slices import Slice
from gpuslice_cluster.clusters import Cluster, ClusterError
from tests.cluster.conftest import cluster  # noqa: F401 - a fixture
from tests.cluster.kube.support import install_quotas, policy
from tests.cluster.served import Served, created, serving
from tests.unit.admission.making import Object, admit, admitted, container, denied, pod, under
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.admission.context import Context

_MIB = 1024**2
_GIB = 1024**3
_LIMIT = {"memory": "4Gi", "devices": 1}


def _asking(name: str, memory: str = "3800Mi") -> Object:
    return container(name, {"gpuslice.io/memory": memory})


def _naming(name: str, *claims: str, **more: Any) -> Object:  # noqa: ANN401 - fields of the API
    return {"name": name, "image": "none", "resources": {"claims": [{"name": claim} for claim in claims]}} | more


def _template(memory: int | None = 3800 * _MIB, **more: Any) -> str:  # noqa: ANN401 - fields of a slice
    given = Slice(**more) if memory is None else Slice(memory=memory, **more)
    return claim_templates.template_for(given, None).name


def _by_hand(template: str, *claims: str) -> list[Object]:
    return [{"name": claim, "resourceClaimTemplateName": template} for claim in claims]


# ---- claims that the webhook makes in the same call ----


def test_a_container_does_not_hold_the_slices_of_two_others() -> None:
    asked = pod(_asking("a"), _asking("b"), _naming("greedy", "gpuslice-0", "gpuslice-1"))
    message = denied(asked, under({"maximum": _LIMIT}))
    assert message.startswith("spec.containers[2].resources.claims: what the container holds comes to 2 devices")
    message = denied(asked, under({"maximum": {"memory": "4Gi"}}))
    assert "comes to 7600Mi of GPU memory (gpuslice-0, gpuslice-1); the maximum is 4Gi of GPU memory" in message
    cores = [container(name, {"gpuslice.io/memory": "1Gi", "gpuslice.io/cores": 30}) for name in ("a", "b")]
    message = denied(pod(*cores, _naming("greedy", "gpuslice-0", "gpuslice-1")), under({"maximum": {"cores": 50}}))
    assert "comes to 60% of a GPU's cores" in message


@pytest.mark.parametrize("more", [{}, {"restartPolicy": "Always"}], ids=["init container", "sidecar"])
def test_nor_does_one_that_starts_before_them(more: Object) -> None:
    greedy = _naming("greedy", "gpuslice-0", "gpuslice-1", **more)
    assert "spec.initContainers[0].resources.claims" in denied(
        pod(_asking("a"), _asking("b"), init=(greedy,)), under({"maximum": _LIMIT})
    )


def test_naming_a_request_of_a_claim_changes_nothing() -> None:
    greedy = _naming("greedy")
    greedy["resources"]["claims"] = [{"name": f"gpuslice-{number}", "request": "gpu"} for number in range(2)]
    denied(pod(_asking("a"), _asking("b"), greedy), under({"maximum": _LIMIT}))


def test_slices_that_were_asked_for_in_several_dialects_are_added_up() -> None:
    asked = pod(
        container("a", {"nvidia.com/gpumem": 3000}),
        container("b", {"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 12}),
        container("c"),
        _naming("greedy", "gpuslice-0", "gpuslice-1", "gpuslice-2"),
        annotations={"gpu-memory": "3000", "gpu-fraction-container-name": "c"},
    )
    context = under({"maximum": {"memory": "4Gi"}})
    assert "spec.containers[3].resources.claims: what the container holds comes to 9072Mi" in denied(asked, context)
    asked["spec"]["containers"].pop()
    assert len(admitted(asked, context)["spec"]["resourceClaims"]) == 3


def test_one_claim_of_another_container_is_within_the_maximum() -> None:
    asked = pod(_asking("a"), _naming("helper", "gpuslice-0"))
    made = admitted(asked, under({"maximum": _LIMIT}))
    assert [each["resources"].get("claims") for each in made["spec"]["containers"]] == [[{"name": "gpuslice-0"}]] * 2


def test_slots_and_claims_are_added_up() -> None:
    greedy = _naming("greedy", "gpuslice-0")
    greedy["resources"]["limits"] = {"nvidia.com/gpu-shared": 1}
    context = under({"maximum": {"memory": "10Gi"}}, gpu_sizes=(80 * _GIB,))
    assert "comes to 11896Mi" in denied(pod(_asking("a", "3704Mi"), greedy), context)
    greedy["resources"].pop("claims")
    admitted(pod(_asking("a", "3704Mi"), greedy), context)


def test_partitions_of_one_container_are_added_up_by_either_backend() -> None:
    asked = pod(container(limits={"nvidia.com/mig-1g.5gb": 2}))
    for backend in ("dra", "extended"):
        assert "of GPU memory; at most 6Gi is allowed" in denied(
            asked, under({"maximum": {"memory": "6Gi"}, "backend": backend})
        )
        assert "asks for 28% of a GPU's cores; at most 20%" in denied(
            asked, under({"maximum": {"cores": 20}, "backend": backend})
        )
        admitted(asked, under({"maximum": {"memory": "10Gi", "cores": 28, "devices": 2}, "backend": backend}))


# ---- templates that the namespace has because of other pods ----


def test_claims_of_templates_named_by_hand_are_added_up() -> None:
    claims = _by_hand(_template(), "x", "y")
    asked = pod(_naming("greedy", "x", "y"), resourceClaims=claims)
    assert "comes to 7600Mi of GPU memory (x, y)" in denied(asked, under({"maximum": {"memory": "4Gi"}}))
    assert admit(asked, under({"maximum": {"memory": "8Gi"}})).decision.outcome is Outcome.UNTOUCHED
    assert admit(asked).decision.outcome is Outcome.UNTOUCHED


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (_template(5 * _GIB), "comes to 5Gi of GPU memory"),
        (_template(None), "comes to 80Gi of GPU memory"),
        (_template(_GIB, devices=2), "comes to 2 devices"),
        (_template(None, mig_profile="3g.40gb"), "of GPU memory"),
        ("gpuslice-0123456789abcdef", "whose name does not say what it gives"),
        ("gpuslice-1x1mi-1c-", "whose name does not say what it gives"),
        ("gpuslice-1x٣mi-1c-0123456789abcdef", "whose name does not say what it gives"),
    ],
)
def test_a_template_named_by_hand_is_held_to_the_maximum(template: str, reason: str) -> None:
    asked = pod(_naming("greedy", "x"), resourceClaims=_by_hand(template, "x"))
    assert reason in denied(asked, under({"maximum": _LIMIT}, gpu_sizes=(80 * _GIB,)))
    assert admit(asked).decision.outcome is Outcome.UNTOUCHED


def test_no_cores_at_all_are_no_limit_of_cores() -> None:
    asked = pod(_naming("greedy", "x"), resourceClaims=_by_hand(_template(), "x"))
    assert "no limit of cores" in denied(asked, under({"maximum": {"cores": 50}}))


def test_claims_that_are_for_no_gpu_are_left_alone() -> None:
    claims = [{"name": "fpga", "resourceClaimTemplateName": "fpga"}]
    asked = pod(_asking("a"), _naming("beside", "fpga"), resourceClaims=claims)
    admitted(asked, _asking_for(0, under({"maximum": _LIMIT})))


def _asking_for(gpus: int, context: Context) -> Context:
    """A cluster whose claims that are not ours ask for so many GPUs each."""
    return replace(context, claimed_gpus=lambda _namespace, claims: dict.fromkeys(claims, gpus))


@pytest.mark.parametrize("maximum", [{"memory": "4Gi"}, {"cores": 50}, {"devices": 1}])
def test_claims_that_exist_are_refused_under_a_maximum(maximum: Object) -> None:
    """They can have been made for pods that never start, and this pod would be the first to use them."""
    claims = [{"name": f"x{number}", "resourceClaimName": f"pending-{number}"} for number in range(4)]
    asked = pod(_naming("greedy", "x0", "x1", "x2", "x3"), resourceClaims=claims)
    message = denied(asked, _asking_for(1, under({"maximum": maximum})))
    assert message.startswith("spec.containers[0].resources.claims: the claim 'x0' is the existing ResourceClaim")
    assert "resourceClaimTemplateName" in message
    first = pod(container("a"), init=(_naming("greedy", "x3"),), resourceClaims=claims)
    assert denied(first, under({"maximum": maximum})).startswith("spec.initContainers[0].resources.claims")
    # A container that does not name the claim does not hold it.
    assert admit(pod(container("a"), resourceClaims=claims), under({"maximum": maximum})).decision.denial is None
    # Where nothing is limited, and where claims are not what is limited.
    for context in (
        under({}),
        under({"maximum": {"slots": 2}}),
        under({"participation": "OptOut", "maximum": maximum}),
    ):
        assert admit(asked, context).decision.outcome is Outcome.UNTOUCHED


def test_what_was_admitted_is_admitted_when_it_comes_again() -> None:
    """Another webhook changed the pod, so the API server asks once more."""
    context = under({"maximum": {"memory": "4G", "cores": 30, "devices": 2}})
    limits = {"gpuslice.io/memory": "4G", "gpuslice.io/cores": 30}  # not a whole number of steps
    once = admitted(pod(container("a", limits), container("b", limits), init=(container("first", limits),)), context)
    assert admitted(once, context) == once
    parts = under({"maximum": {"memory": "16Gi", "cores": 20}}, gpu_sizes=(24 * _GIB, 40 * _GIB, 80 * _GIB))
    once = admitted(pod(container(), annotations={"gpuslice.io/fraction": "0.2"}), parts)
    assert admitted(once, parts) == once


# ---- through the real API server ----


@pytest.fixture(scope="module")
def webhook(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:  # noqa: F811 - see above
    with serving(cluster, tmp_path_factory.mktemp("webhook")) as served:
        rule = {"name": "limit", "match": {"namespaces": [served.namespace]}, "maximum": _LIMIT}
        cluster.kubectl("apply", "-f", "-", input=json.dumps(policy(served.namespace, rule)))
        try:
            eventually(lambda: _is_refused(served, pod(_asking("big", "5Gi"))), "the policy is in force")
            yield served
        finally:
            cluster.kubectl("delete", "slicepolicy", served.namespace)


def _is_refused(webhook: Served, asked: Object, reason: str = "gpuslice:") -> bool:
    try:
        _create(webhook, asked, "--dry-run=server")
    except ClusterError as error:
        return reason in str(error)
    return False


def _create(webhook: Served, asked: Object, *options: str) -> Object:
    asked["metadata"] = {"generateName": "hostile-"}
    return created(webhook.cluster, webhook.namespace, asked, *options)


def test_the_api_server_has_every_pod_with_our_claims_looked_at(webhook: Served) -> None:
    with pytest.raises(ClusterError, match="comes to 2 devices"):
        _create(webhook, pod(_asking("a"), _asking("b"), _naming("greedy", "gpuslice-0", "gpuslice-1")))
    # The template is there because of a pod that may have it.
    made = _create(webhook, pod(_asking("a")))
    template = made["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    assert made["metadata"]["labels"][pod_annotations.SLICED] == "true"
    asked = pod(_naming("greedy", "x", "y"), resourceClaims=_by_hand(template, "x", "y"))
    with pytest.raises(ClusterError, match="comes to 2 devices"):
        _create(webhook, asked)
    _create(webhook, pod(_naming("modest", "x"), resourceClaims=_by_hand(template, "x")))
    # However many claims stand before it.
    many = [{"name": f"c{number}", "resourceClaimName": "none"} for number in range(400)]
    with pytest.raises(ClusterError, match="comes to 2 devices"):
        _create(webhook, pod(_naming("greedy", "x", "y"), resourceClaims=many + _by_hand(template, "x", "y")))


def test_the_api_server_has_every_pod_with_claims_that_exist_looked_at(webhook: Served) -> None:
    claims = [{"name": f"x{number}", "resourceClaimName": f"pending-{number}"} for number in range(2)]
    with pytest.raises(
        ClusterError, match="the ResourceClaim 'pending-0', of which gpuslice cannot know what it gives"
    ):
        _create(webhook, pod(_naming("greedy", "x0", "x1"), resourceClaims=claims))
    _made(webhook, "ResourceClaim", "pending-0", "gpu.nvidia.com")
    later = pod(_naming("greedy", "x0"), resourceClaims=claims)
    reason = "the existing ResourceClaim 'pending-0', which can be a GPU of another pod"
    eventually(lambda: _is_refused(webhook, later, reason), "the claim that is there now is known")


def test_what_claims_of_others_are_for_is_known_from_the_api_server(webhook: Served) -> None:
    _made(webhook, "ResourceClaim", "card", "nic.example.com")
    _made(webhook, "ResourceClaimTemplate", "cards", "nic.example.com")
    _made(webhook, "ResourceClaimTemplate", "gpus", "gpu.nvidia.com", count=2)
    cards = [{"name": "x", "resourceClaimName": "card"}, {"name": "y", "resourceClaimTemplateName": "cards"}]
    both = _asking("a", "1Gi")
    both["resources"]["claims"] = [{"name": "x"}, {"name": "y"}]
    made = _create(webhook, pod(both, resourceClaims=cards))
    assert [claim["name"] for claim in made["spec"]["containers"][0]["resources"]["claims"]] == ["x", "y", "gpuslice-0"]
    gpus = [{"name": "x", "resourceClaimTemplateName": "gpus"}]
    with pytest.raises(ClusterError, match="comes to 2 devices"):
        _create(webhook, pod(_naming("greedy", "x"), resourceClaims=gpus))
    both["resources"]["claims"] = [{"name": "x"}]
    with pytest.raises(ClusterError, match="asks for a GPU in two ways"):
        _create(webhook, pod(both, resourceClaims=gpus))


@pytest.mark.parametrize("kind_of_limit", ["SlicePolicy", "GpuQuota"])
def test_a_tenant_puts_no_gpu_into_the_place_of_a_claim_that_was_reviewed(webhook: Served, kind_of_limit: str) -> None:
    """Specs of claims never change, but a claim can be deleted, and another made in its place."""
    namespace, name = webhook.namespace, kind_of_limit.lower()
    rights: list[Object] = [
        {"kind": "Role", "rules": [{"apiGroups": ["resource.k8s.io"], "resources": ["*"], "verbs": ["*"]}]},
        {
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}],
        },
    ]
    for right in rights:
        document = right | {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
        created(webhook.cluster, namespace, document)
    objects = claim_policy.objects("gpuslice-system", GPU_CLASSES, ())
    guard, binding = objects[:2] if kind_of_limit == "SlicePolicy" else objects[2:]
    if kind_of_limit == "GpuQuota":
        install_quotas(webhook.cluster)
        quota = {"apiVersion": "gpuslice.io/v1alpha1", "kind": "GpuQuota", "metadata": {"name": "all"}}
        created(webhook.cluster, namespace, quota | {"spec": {"hard": {"memory": "400Gi"}}})
    for each in (guard, binding):
        each["metadata"]["name"] = namespace
    binding["spec"] |= {"policyName": namespace, "matchResources": {"namespaceSelector": _only(namespace)}}
    kinds = ("ResourceClaim", "ResourceClaimTemplate")
    try:
        for each in (guard, binding):
            webhook.cluster.kubectl("create", "-f", "-", input=json.dumps(each))
        eventually(lambda: _is_denied(webhook, kinds[0], "--dry-run=server"), "the API server refuses claims of GPUs")
        for kind in kinds:
            _made(webhook, kind, "swapped", "nic.example.com", "--as=tenant")
            replaced = _claim(kind, "swapped", "gpu.nvidia.com")
            with pytest.raises(ClusterError, match="immutable"):
                webhook.cluster.kubectl(
                    "replace", "-n", namespace, "-f", "-", "--as=tenant", input=json.dumps(replaced)
                )
            webhook.cluster.kubectl("delete", kind, "swapped", "-n", namespace, "--as=tenant")
            assert _is_denied(webhook, kind)
            # One of several alternatives, and under a name as ours.
            assert _is_denied(webhook, kind, alternatives=True)
            assert _is_denied(webhook, kind, name=_template())
        # Those who write policies may, and a pod that asks in a dialect still gets its template.
        _made(webhook, kinds[1], f"by-an-administrator-{name}", "gpu.nvidia.com")
        _create(webhook, pod(_asking("a", "1234Mi")))
    finally:
        if kind_of_limit == "GpuQuota":
            webhook.cluster.kubectl("delete", "gpuquota", "all", "-n", namespace)
        for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
            webhook.cluster.kubectl("delete", kind, namespace, "--ignore-not-found")


def _only(namespace: str) -> Object:
    return {"matchLabels": {"kubernetes.io/metadata.name": namespace}}


def _is_denied(webhook: Served, kind: str, *options: str, name: str = "swapped", alternatives: bool = False) -> bool:
    try:
        _made(webhook, kind, name, "mig.nvidia.com", "--as=tenant", *options, alternatives=alternatives)
    except ClusterError as error:
        return "this asks for GPUs by a device class, and a " in str(error)
    return False


def _made(
    webhook: Served, kind: str, name: str, device_class: str, *options: str, count: int = 1, alternatives: bool = False
) -> Object:
    document = _claim(kind, name, device_class, count, alternatives=alternatives)
    return created(webhook.cluster, webhook.namespace, document, *options)


def _claim(kind: str, name: str, device_class: str, count: int = 1, *, alternatives: bool = False) -> Object:
    asked: Object = {"deviceClassName": device_class, "count": count}
    request = {"firstAvailable": [{"name": "a", **asked}]} if alternatives else {"exactly": asked}
    spec: Object = {"devices": {"requests": [{"name": "r", **request}]}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec if kind == "ResourceClaim" else {"spec": spec},
    }


def test_no_other_part_of_a_pod_can_hold_a_claim(webhook: Served) -> None:
    """Kubernetes keeps claims to containers, and extended resources out of what a pod has as a whole."""
    made = _create(webhook, pod(_asking("a")))
    name = made["metadata"]["name"]
    ephemeral = _naming("greedy", made["spec"]["resourceClaims"][0]["name"])
    change = json.dumps({"spec": {"ephemeralContainers": [ephemeral]}})
    with pytest.raises(ClusterError, match="resources"):
        webhook.cluster.kubectl(
            "patch", "pod", name, "-n", webhook.namespace, "--subresource=ephemeralcontainers", "-p", change
        )
    claims = _by_hand(_template(), "x", "y")
    whole: Object
    for whole in ({"claims": [{"name": "x"}, {"name": "y"}]}, {"limits": {"nvidia.com/gpu-shared": "8"}}):
        with pytest.raises(ClusterError, match=r"spec\.resource"):
            _create(webhook, pod(container("a"), resourceClaims=claims, resources=whole))
    with pytest.raises(ClusterError, match="Overhead"):
        _create(webhook, pod(container("a"), overhead={"nvidia.com/gpu-shared": "8"}))


def test_a_container_that_is_added_later_has_no_more_than_the_others(webhook: Served) -> None:
    made = _create(webhook, pod(_asking("a")))

    def add(name: str, **more: Any) -> None:  # noqa: ANN401 - fields of the API
        added = {"name": name, "image": "none", "targetContainerName": "a"} | more
        change = json.dumps({"spec": {"ephemeralContainers": [added]}})
        subresource = ("-n", webhook.namespace, "--subresource=ephemeralcontainers", "-p", change)
        webhook.cluster.kubectl("patch", "pod", made["metadata"]["name"], *subresource)

    add("harmless", securityContext={"capabilities": {"add": ["SYS_PTRACE"]}})
    with pytest.raises(ClusterError, match=r"gpuslice: spec\.ephemeralContainers\[.\]\.securityContext\.privileged"):
        add("privileged", securityContext={"privileged": True})
    with pytest.raises(ClusterError, match=r"spec\.ephemeralContainers\[.\]\.env\[NVIDIA_VISIBLE_DEVICES\]"):
        add("seeing", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
