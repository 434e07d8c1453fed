"""No pod that gets a slice waits for a scheduler that does not understand it."""

from __future__ import annotations

import pytest

from gpuslice.admission.context import Context
from gpuslice.admission.decision import Outcome
from gpuslice.dialects import registry
from gpuslice.model.policies import Backend
from tests.unit.admission.making import Object, admit, admitted, container, denied, pod, under

GIB = 1024**3
KAI = {"gpu-fraction": "0.5"}
HAMI = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}
LEAVE = {"otherSchedulers": "LeaveAlone"}


def kai_pod() -> Object:
    return pod(container(), annotations=dict(KAI), schedulerName="kai-scheduler")


def test_the_schedulers_of_peers_are_known() -> None:
    assert {"kai-scheduler", "hami-scheduler"} <= {*registry.SCHEDULERS}


@pytest.mark.parametrize("name", sorted(registry.SCHEDULERS))
@pytest.mark.parametrize("backend", ["dra", "extended"])
def test_a_rewritten_pod_is_placed_by_kubernetes_own_scheduler(name: str, backend: str) -> None:
    context = under({"backend": backend})
    for asked in (
        pod(container(limits=HAMI), schedulerName=name),
        pod(container(limits={"gpuslice.io/memory": "1Gi"}), schedulerName=name),
    ):
        reviewed = admit(asked, context)
        assert admitted(asked, context)["spec"]["schedulerName"] == "default-scheduler"
        (warning,) = reviewed.decision.warnings
        assert warning.startswith(f"spec.schedulerName: {name} does not understand")
        assert registry.SCHEDULERS[name].knows in warning
        assert len(f"gpuslice: {warning}") <= 256
        again = admitted(asked, context)
        assert admitted(again, context) == again


def test_a_pod_that_has_its_slice_is_taken_over_when_another_webhook_names_its_scheduler() -> None:
    once = admitted(pod(container(limits=HAMI)))
    once["spec"]["schedulerName"] = "hami-scheduler"
    reviewed = admit(once)
    assert admitted(once)["spec"]["schedulerName"] == "default-scheduler"
    assert reviewed.decision.warnings


@pytest.mark.parametrize("name", ["my-scheduler", "default-scheduler", ""])
def test_a_scheduler_of_the_users_own_stays(name: str) -> None:
    asked = pod(container(limits=HAMI), schedulerName=name)
    assert admitted(asked)["spec"]["schedulerName"] == name
    told = [warning for warning in admit(asked).decision.warnings if "schedulerName" in warning]
    assert len(told) == (name == "my-scheduler")


def test_a_pod_that_gets_no_slice_keeps_its_scheduler() -> None:
    for limits in ({"nvidia.com/gpu": 1}, {"nvidia.com/gpu-shared": 1}):
        asked = pod(container(limits=limits), schedulerName="kai-scheduler")
        assert admit(asked).decision.outcome is Outcome.UNTOUCHED


def test_a_pod_that_gpu_manager_serves_keeps_its_scheduler() -> None:
    vcuda = {"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 4}
    asked = pod(container(limits=vcuda), schedulerName="kai-scheduler")
    assert admitted(asked, under({"backend": "gpu-manager"}))["spec"]["schedulerName"] == "kai-scheduler"


# ---- by policy, left alone ----


def test_a_policy_leaves_pods_to_the_scheduler_that_serves_them() -> None:
    reviewed = admit(kai_pod(), under(LEAVE))
    assert reviewed.decision.outcome is Outcome.UNTOUCHED
    assert reviewed.decision.reason == "its scheduler serves it"
    placed = admitted(kai_pod(), under(LEAVE | {"nodeSelector": {"pool": "gpu"}}))
    assert placed["spec"] == kai_pod()["spec"] | {"nodeSelector": {"pool": "gpu"}}


def test_a_pod_is_left_to_no_scheduler_that_does_not_read_its_dialect() -> None:
    for limits in (HAMI, {"gpuslice.io/memory": "1Gi"}):
        asked = pod(container(limits=limits), schedulerName="kai-scheduler")
        assert admitted(asked, under(LEAVE))["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize("rule", [{"dialects": ["native"]}, {"maximum": {"cores": 10}}, {"gpuModel": "T4"}])
def test_a_pod_that_is_left_alone_is_within_its_limits(rule: dict[str, object]) -> None:
    denied(kai_pod(), under(LEAVE | rule))


def test_a_part_of_a_gpu_that_is_left_alone_can_be_of_the_largest() -> None:
    sizes = (16 * GIB, 80 * GIB)
    rule = {"maximum": {"memory": "20Gi"}}
    admitted(kai_pod(), under(rule, gpu_sizes=sizes))  # a claim is for GPUs on which half is within the maximum
    assert "40Gi of GPU memory" in denied(kai_pod(), under(LEAVE | rule, gpu_sizes=sizes))


def test_slots_beside_what_is_left_alone_add_up() -> None:
    asked = pod(container(limits={"nvidia.com/gpu-shared": 3}), annotations=dict(KAI), schedulerName="kai-scheduler")
    context = under(LEAVE | {"maximum": {"memory": "20Gi"}}, gpu_sizes=(40 * GIB,))
    assert "can be 32Gi of GPU memory" in denied(asked, context)


# ---- whole GPUs, and gates ----


def test_whole_gpus_that_only_kubernetes_own_scheduler_counts_are_placed_by_it() -> None:
    asked = pod(container(limits={"nvidia.com/gpu": 1}), schedulerName="kai-scheduler")
    by_claims = Context(node_backends=frozenset((Backend.DRA,)), offered=frozenset())
    assert admitted(asked, by_claims)["spec"]["schedulerName"] == "default-scheduler"
    (warning,) = admit(asked, by_claims).decision.warnings
    assert "kai-scheduler could count" in warning
    for context in (
        Context(),
        Context(node_backends=frozenset((Backend.DRA,)), offered=frozenset(("nvidia.com/gpu",))),
    ):
        reviewed = admit(asked, context)
        assert reviewed.decision.outcome is Outcome.UNTOUCHED
        (warning,) = reviewed.decision.warnings
        assert warning.startswith("spec.schedulerName: kai-scheduler places this pod")


def gated(*gates: str) -> Object:
    made = pod(
        container(limits={"nvidia.com/mig-1g.5gb": 1}), schedulingGates=[{"name": name} for name in ("mine", *gates)]
    )
    made["metadata"]["finalizers"] = [*gates, "mine"]
    return made


@pytest.mark.parametrize("gate", sorted(registry.GATES))
def test_a_gate_that_only_another_projects_controller_opens_is_taken_off(gate: str) -> None:
    once = admitted(gated(gate))
    assert once["spec"]["schedulingGates"] == [{"name": "mine"}]
    assert once["metadata"]["finalizers"] == ["mine"]
    (warning,) = admit(gated(gate)).decision.warnings
    assert warning.startswith(f"spec.schedulingGates[1]: {gate} waits for InstaSlice")
    assert admitted(gated())["metadata"]["finalizers"] == ["mine"]
    assert admit(gated(gate), under(LEAVE)).decision.outcome is Outcome.UNTOUCHED
    again = dict(once, spec=once["spec"] | {"schedulingGates": [{"name": gate}]})
    assert admitted(again)["spec"]["schedulingGates"] == []
