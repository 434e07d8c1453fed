"""A pod with a slice has nothing beside it that gives it more, unless its policy allows that."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.admission.context import Context
from gpuslice.admission.decision import Outcome
from gpuslice.admission.pod_annotations import NAMES
from gpuslice.admission.review import Reviewed, examine
from gpuslice.model.policies import Exemption
from tests.unit.admission.making import Object, admit, admitted, container, denied, pod, response_of, review_of, under

SLICE = {"gpuslice.io/memory": "1Gi"}


def having(limits: Object | None = None, spec: Object | None = None, **more: Any) -> Object:  # noqa: ANN401 - the API's
    """A pod whose container has a slice, and another container that has `more`."""
    return pod(container(limits=SLICE if limits is None else limits), container("other", **more), **(spec or {}))


def host_path(path: str) -> Object:
    return having(spec={"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": {"path": path}}]})


def annotated(name: str) -> Object:
    asked = having()
    asked["metadata"]["annotations"] = {"note": "none", name: "nvidia.com/gpu=all"}
    return asked


VALUES: list[Object] = [{"value": "all"}, {"value": "void"}, {"value": "GPU-1"}, {"valueFrom": {"fieldRef": {}}}, {}]
CASES = [
    (Exemption.PRIVILEGED, having(securityContext={"privileged": True}), "containers[1].securityContext.privileged"),
    (
        Exemption.CAPABILITIES,
        having(securityContext={"capabilities": {"add": ["IPC_LOCK", "SYS_ADMIN"]}}),
        "containers[1].securityContext.capabilities.add: 'SYS_ADMIN'",
    ),
    (Exemption.CAPABILITIES, having(securityContext={"capabilities": {"add": ["CAP_SYS_RAWIO"]}}), "CAP_SYS_RAWIO"),
    (Exemption.CAPABILITIES, having(securityContext={"capabilities": {"add": ["all"]}}), "'all'"),
    *(
        (Exemption.VISIBLE_DEVICES, having(env=[{"name": name} | value]), f"containers[1].env[{name}]")
        for name in ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_MIG_CONFIG_DEVICES")
        for value in VALUES
    ),
    (
        Exemption.VISIBLE_DEVICES,
        having(volumeMounts=[{"name": "a", "mountPath": "/run//nvidia-container-devices/all"}]),
        "containers[1].volumeMounts[/run//nvidia-container-devices/all]",
    ),
    *(
        (Exemption.VISIBLE_DEVICES, annotated(name), f"metadata.annotations[{name}]")
        for name in (
            "cdi.k8s.io/mine",
            "io.kubernetes.cri-o.Devices",
            "devices.nri.io/container.main",
            "cdi.nri.io/pod",
        )
    ),
    (Exemption.HOST_PID, having(spec={"hostPID": True}), "spec.hostPID"),
    (Exemption.HOST_PATH, host_path("/dev/nvidia0"), "spec.volumes[1].hostPath.path: '/dev/nvidia0'"),
    (Exemption.NODE_NAME, having(spec={"nodeName": "node-a"}), "spec.nodeName: passes the scheduler by"),
]


@pytest.mark.parametrize(("what", "asked", "told"), CASES)
def test_it_is_refused_by_default_and_allowed_by_a_rule(what: Exemption, asked: Object, told: str) -> None:
    message = denied(asked)
    assert told in message
    assert f"have a policy allow it (allow: [{what}])" in message
    others = [str(each) for each in Exemption if each is not what]
    assert told in denied(asked, under({"allow": others}))
    assert admit(asked, under({"allow": [str(what)]})).decision.outcome is Outcome.REWRITTEN
    assert admit(asked, under({"participation": "OptOut"})).decision.outcome is Outcome.UNTOUCHED


@pytest.mark.parametrize(("what", "asked", "told"), CASES)
def test_it_is_refused_of_a_pod_that_has_its_slice(what: Exemption, asked: Object, told: str) -> None:
    assert told in denied(admitted(asked, under({"allow": [str(what)]})))


@pytest.mark.parametrize(("_what", "asked", "told"), [case for case in CASES if case[0] is not Exemption.NODE_NAME])
def test_whole_gpus_are_left_alone_but_under_a_maximum(_what: Exemption, asked: Object, told: str) -> None:
    asked["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": 1}
    assert admit(asked).decision.outcome is Outcome.UNTOUCHED
    assert told in denied(asked, under({"maximum": {"devices": 1}}))
    asked["spec"]["containers"][0]["resources"]["limits"] = SLICE


def test_a_pod_without_a_gpu_is_nothing_of_ours() -> None:
    assert admit(having({}, securityContext={"privileged": True}), under({"maximum": {"devices": 1}})).decision.outcome
    asked = pod(container(securityContext={"privileged": True}))
    assert admit(asked, under({"maximum": {"devices": 1}})).decision.outcome is Outcome.UNTOUCHED


def test_a_node_may_be_named_where_there_is_no_claim() -> None:
    asked = having(spec={"nodeName": "node-a"})
    assert admit(asked, under({"backend": "extended"})).decision.outcome is Outcome.REWRITTEN


def test_what_honest_pods_have_is_allowed() -> None:
    asked = having(
        env=[{"name": name, "value": "x"} for name in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "LD_PRELOAD")],
        securityContext={"privileged": False, "capabilities": {"add": ["IPC_LOCK", "SYS_PTRACE"], "drop": ["ALL"]}},
        volumeMounts=[{"name": "a", "mountPath": "/data"}],
        spec={
            "shareProcessNamespace": True,
            "hostPID": False,
            "volumes": [{"name": "a", "hostPath": {"path": "/mnt/data"}}, {"name": "b", "emptyDir": {}}],
        },
    )
    assert admit(asked).decision.outcome is Outcome.REWRITTEN


def test_a_variable_is_found_however_it_is_written() -> None:
    env = [{"name": f"SETTING_{number}", "value": 'a "text"'} for number in range(50)]
    asked = review_of(having(env=[*env, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]))
    for written in (b"NVIDIA_VISIBLE_DEVICES", b"NVIDIA\\u005fVISIBLE_DEVICES", b"\\u004eVIDIA_VISIBLE_DEVICES"):
        review = examine(asked.replace(b"NVIDIA_VISIBLE_DEVICES", written), Context())
        assert review.decision.denial is not None
        assert "containers[1].env[NVIDIA_VISIBLE_DEVICES]" in review.decision.denial.message


def test_pods_that_differ_in_other_variables_are_alike() -> None:
    context = Context()
    for number in range(3):
        asked = having(env=[{"name": f"SETTING_{number}", "value": "NVIDIA_VISIBLE_DEVICES \\ of no meaning"}])
        assert admit(asked, context).decision.outcome is Outcome.REWRITTEN
    assert len(context.answers) == 1


@pytest.mark.parametrize("others", [0, 1000])
def test_an_annotation_for_devices_is_found_beside_any_number_and_after_a_pod_without(others: int) -> None:
    context, asked = Context(), having()
    asked["metadata"]["annotations"] = {f"example.com/{number}": "x" for number in range(others)}
    assert admit(asked, context).decision.outcome is Outcome.REWRITTEN
    asked["metadata"]["annotations"]["cdi.k8s.io/late"] = "nvidia.com/gpu=all"
    assert "metadata.annotations[cdi.k8s.io/late]" in denied(asked, context)


@pytest.mark.parametrize("left_out", [["gpuslice.io/dialect"], [*NAMES]])
def test_it_is_refused_of_a_pod_with_a_slice_that_says_nothing_of_it(left_out: list[str]) -> None:
    for rule in ({}, {"backend": "extended"}):
        asked = admitted(having(), under(rule))
        for name in left_out:
            asked["metadata"]["annotations"].pop(name, None)
        assert admit(asked).decision.outcome is Outcome.UNTOUCHED
        asked["spec"]["containers"][1]["securityContext"] = {"privileged": True}
        assert "containers[1].securityContext.privileged" in denied(asked)


def added(asked: Object, context: Context | None = None, *before: Object, **more: Any) -> Reviewed:  # noqa: ANN401 - the API's
    """The review of a container that is added to a pod which has some already."""

    def having_added(*containers: Object) -> Object:
        return asked | {"spec": asked["spec"] | {"ephemeralContainers": list(containers)}}

    return admit(
        having_added(*before, container("debugger", **more)),
        context,
        operation="UPDATE",
        subResource="ephemeralcontainers",
        oldObject=having_added(*before),
    )


ADDED = [
    (Exemption.PRIVILEGED, {"securityContext": {"privileged": True}}, "securityContext.privileged"),
    (
        Exemption.CAPABILITIES,
        {"securityContext": {"capabilities": {"add": ["CAP_sys_admin"]}}},
        "securityContext.capabilities.add: 'CAP_sys_admin'",
    ),
    (Exemption.VISIBLE_DEVICES, {"env": [{"name": "NVIDIA_VISIBLE_DEVICES"}]}, "env[NVIDIA_VISIBLE_DEVICES]"),
    (
        Exemption.VISIBLE_DEVICES,
        {"volumeMounts": [{"name": "a", "mountPath": "/var/run/nvidia-container-devices/all"}]},
        "volumeMounts[/var/run/nvidia-container-devices/all]",
    ),
]


@pytest.mark.parametrize("rule", [{}, {"backend": "extended"}])
@pytest.mark.parametrize(("what", "more", "told"), ADDED)
def test_it_is_refused_of_a_container_that_is_added_later(
    what: Exemption, more: Object, told: str, rule: Object
) -> None:
    asked = admitted(having(), under(rule))
    denial = added(asked, under(rule), container("earlier", **more), **more).decision.denial
    assert denial is not None
    assert f"spec.ephemeralContainers[1].{told}" in denial.message
    assert f"(allow: [{what}])" in denial.message
    allowing = under(rule | {"allow": [str(what)]})
    assert added(asked, allowing, **more).decision.outcome is Outcome.UNTOUCHED
    assert added(asked, under({"participation": "OptOut"}), **more).decision.outcome is Outcome.UNTOUCHED
    assert added(asked, under({"warnOnly": True}), **more).decision.outcome is Outcome.WARNED
    assert response_of(added(asked, under(rule), container("earlier", **more)))["allowed"]


def test_what_is_added_to_pods_without_a_slice_is_nothing_of_ours() -> None:
    privileged: Object = {"securityContext": {"privileged": True}}
    whole = pod(container(limits={"nvidia.com/gpu": 1}))
    assert added(pod(container()), **privileged).decision.outcome is Outcome.UNTOUCHED
    assert added(whole, **privileged).decision.outcome is Outcome.UNTOUCHED
    assert added(whole, under({"maximum": {"devices": 1}}), **privileged).decision.outcome is Outcome.DENIED


def test_what_is_added_is_refused_where_other_software_serves_the_pod() -> None:
    serving = under({"backend": "gpu-manager"})
    asked = admitted(pod(container(limits={"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 4})), serving)
    assert "tencent.com/vcuda-core" in asked["spec"]["containers"][0]["resources"]["limits"]
    assert added(asked, serving, securityContext={"privileged": True}).decision.outcome is Outcome.DENIED
    assert added(asked, serving).decision.outcome is Outcome.UNTOUCHED
