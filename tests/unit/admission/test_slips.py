"""What people write almost right."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpuslice.admission import explanation
from gpuslice.admission.context import Context
from gpuslice.admission.review import decide_document
from gpuslice.cli.manifests.admitted import admit_file
from gpuslice.model.settings import DEFAULT_SETTINGS
from tests.unit.admission.making import Object, admit, container, denied, pod, response_of, under

WHOLE = {"nvidia.com/gpu": "1"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpuslice.io/mem", "you meant gpuslice.io/memory"),
        ("gpuslice.io/core", "you meant gpuslice.io/cores"),
        ("gpuslice.io/gpu", "you meant gpuslice.io/gpus"),
        ("gpuslice.io/zzzzzzzzzzzzzzzz", "there are gpuslice.io/cores, gpuslice.io/gpus, gpuslice.io/memory"),
    ],
)
def test_a_resource_of_ours_that_does_not_exist_is_refused_with_what_was_meant(name: str, meant: str) -> None:
    message = denied(pod(container("a"), container("b", {name: "4Gi"})))
    assert message == (
        f"spec.containers[1].resources.limits[{name}]: there is no such resource, and the pod would wait for ever; "
        f"{meant}"
    )


def test_an_annotation_written_as_a_resource_is_refused() -> None:
    message = denied(pod(container(limits={"gpuslice.io/fraction": "1"})))
    assert message.endswith("is an annotation of the pod, not a resource; write it into metadata.annotations")


@pytest.mark.parametrize("name", ["gpuslice.io/memory", "nvidia.com/gpumem", "tencent.com/vcuda-core"])
@pytest.mark.parametrize("limits", [None, WHOLE])
def test_a_resource_written_as_an_annotation_is_refused(name: str, limits: Object | None) -> None:
    message = denied(pod(container(limits=limits), annotations={name: "3000"}))
    assert message.startswith(f"metadata.annotations[{name}]: is a resource, and asks for nothing as an annotation")


def test_a_resource_that_the_operator_named_in_our_domain_is_known() -> None:
    settings = replace(DEFAULT_SETTINGS, shared_resource="gpuslice.io/slots")
    assert response_of(admit(pod(container(limits={"gpuslice.io/slots": 1})), Context(settings=settings)))["allowed"]
    context = under({"targetResource": "gpuslice.io/parts"})
    assert response_of(admit(pod(container(limits={"gpuslice.io/parts": 1})), context))["allowed"]
    assert "no such resource" in denied(pod(container(limits={"gpuslice.io/slots": 1})))
    assert response_of(admit(pod(container(limits={"gpuslice.io/mem": 0}))))["allowed"]


@pytest.mark.parametrize("said", ["True", "TRUE", "yes", "1", " true"])
def test_a_switch_that_is_almost_on_is_told_and_the_pod_runs(said: str) -> None:
    asked = pod(container(limits=WHOLE), annotations={"castops.io/optimize": said})
    response = response_of(admit(asked))
    assert response["allowed"]
    assert "patch" not in response
    (warning,) = response["warnings"]
    assert warning.endswith('switches nothing on, and the pod gets whole GPUs; you meant "true"')


@pytest.mark.parametrize("said", ["false", "no", ""])
def test_a_switch_that_is_off_is_not_worth_a_word(said: str) -> None:
    asked = pod(container(limits=WHOLE), annotations={"castops.io/optimize": said})
    assert "warnings" not in response_of(admit(asked))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("nvidia.com/use-gputype", "add nvidia.com/gpumem-percentage: 100 to the container's limits"),
        ("hami.io/node-scheduler-policy", "write affinity or topologySpreadConstraints instead"),
        ("hami.io/gpu-scheduler-policy", "leave it out, because whole GPUs are shared with no other pod"),
        ("nvidia.com/vgpu-mode", "leave it out, because whole GPUs are shared with no other pod"),
        ("nvidia.com/nouse-gpuuuid", "add nvidia.com/gpumem-percentage: 100 to the container's limits"),
        ("gpuslice.io/gpu-model", "ask by gpuslice.io/gpus instead"),
    ],
)
def test_a_choice_that_whole_gpus_do_not_keep_is_told(name: str, remedy: str) -> None:
    plain = response_of(admit(pod(container(limits=WHOLE))))
    assert "warnings" not in plain
    response = response_of(admit(pod(container(limits=WHOLE), annotations={name: "A100-40GB"})))
    assert response["allowed"]
    assert "patch" not in response
    assert response["warnings"] == [
        f"gpuslice: metadata.annotations[{name}]: gpuslice does not read it beside nvidia.com/gpu alone; {remedy}"
    ]


def test_the_remedies_of_choices_keep_them_and_choices_that_choose_nothing_are_not_worth_a_word() -> None:
    model = {"gpuslice.io/gpu-model": "A100-40GB"}
    by_type = {"nvidia.com/use-gputype": "A100"}
    hami = {**WHOLE, "nvidia.com/gpumem-percentage": "100"}
    for limits, chosen in (({"gpuslice.io/gpus": "1"}, model), (hami, by_type)):
        response = response_of(admit(pod(container(limits=limits), annotations=chosen)))
        assert "patch" in response
        assert "does not read it" not in str(response.get("warnings"))
    unbound = pod(container(limits=WHOLE), annotations={"nvidia.com/numa-bind": "false"})
    assert "warnings" not in response_of(admit(unbound))
    assert "warnings" not in response_of(admit(pod(container(), annotations=by_type)))


def test_annotations_of_a_deployment_that_are_for_its_pods_are_told() -> None:
    template = {"metadata": {}, "spec": {"containers": [container(limits=WHOLE)]}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "annotations": {"castops.io/optimize": "true", "example.com/else": "x"}},
        "spec": {"template": template},
    }
    (document,) = admit_file(json.dumps(deployment), "file", "default", Context()).documents
    ((warning,),) = [each.warnings for each in document.objects]
    assert warning == (
        "Deployment default/web: metadata.annotations[castops.io/optimize]: is read on pods, and the pods do not have "
        "it; write it into spec.template.metadata.annotations"
    )
    (document,) = admit_file(
        json.dumps(pod(container(), annotations={"example.com/else": "x"})), "f", "d", Context()
    ).documents
    assert not document.objects[0].warnings


def test_an_explanation_of_a_pod_without_a_request_says_how_to_ask() -> None:
    def notes(asked: Object) -> list[str]:
        decision, subject = decide_document(json.dumps(asked).encode(), "team", Context())
        found: list[str] = explanation.explain(decision, Context().policies.verdicts(subject), asked)["notes"]
        return found

    assert ", castslice, " in notes(pod(container()))[0]
    assert "participation: OptIn" in notes(pod(container(limits=WHOLE)))[0]
    assert not notes(pod(container(limits={"gpuslice.io/memory": "4Gi"})))
    asked = pod(container("a"), container("b", {"example.com/gpu-memory": 1024, "cpu": 1}))
    field = "spec.containers[1].resources.limits[example.com/gpu-memory]"
    assert notes(asked)[1:] == [f"{field}: no dialect reads it; another device plugin must offer it"]
    claiming = pod({"name": "a", "resources": {"claims": [{"name": "gpu"}]}})
    claiming["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "single-gpu"}]
    kept = "spec.resourceClaims: claims that the author wrote stay as they are"
    assert notes(claiming) == [kept]
    claiming["spec"]["containers"].append(container("b", WHOLE))
    assert [note == kept for note in notes(claiming)] == [True, False]


def test_advice_can_be_followed() -> None:
    context = under({"maximum": {"cores": 50}})
    assert denied(pod(container(), annotations={"gpu-fraction": "0.5"}), context).endswith(
        "so ask in another dialect than kai, which cannot say them, or have the policy say defaults.cores "
        "(policy test/rule-0)"
    )
    assert "so say how many" in denied(pod(container(limits={"gpuslice.io/memory": "4Gi"})), context)
