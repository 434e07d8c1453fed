"""CastSlice's rewrite by the API server alone gives the pods that the webhook gives."""

from __future__ import annotations

import base64
import copy
import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.admission import patching
from gpuslice.admission.context import Context
from gpuslice.admission.registration import mutating_policy
from gpuslice.admission.review import review
from gpuslice.kube.client import api as calls
from gpuslice.kube.errors import ApiError
from gpuslice.kube.resources import PODS
from tests.cluster.castslice_corpus import pods
from tests.unit.admission.making import container, pod, review_of
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice_cluster.clusters import Cluster

Object = dict[str, Any]

GPU = {"nvidia.com/gpu": "1"}
OPTIMIZE = {"castops.io/optimize": "true"}
CORPUS = 500


@pytest.fixture
def governed(cluster: Cluster, namespace: str) -> Iterator[str]:
    """A namespace in which the policies hold, and nowhere else: others use the cluster at the same time."""
    only_here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    documents = copy.deepcopy(mutating_policy.documents())
    for document in documents:
        document["metadata"]["name"] = namespace
        if "policyName" in document["spec"]:
            document["spec"]["policyName"] = namespace
        else:
            document["spec"]["matchConstraints"]["namespaceSelector"] = only_here
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
    cluster.kubectl("create", "-f", "-", input=listed)
    yield namespace
    cluster.kubectl("delete", "-f", "-", input=listed)


async def test_it_gives_the_pods_that_the_webhook_gives(cluster: Cluster, governed: str) -> None:
    async with calls.connect(cluster.kubeconfig, {}, "test") as api:
        await _in_force(api, governed)
        outcomes: Counter[str] = Counter()
        for asked in pods(random.Random(36), CORPUS):  # noqa: S311 - the same each time
            denial, rewritten = _by_webhook(asked)
            expected = "denied" if denial else await _created(api, "default", rewritten)
            found = await _created(api, governed, asked)
            if isinstance(found, str) or isinstance(expected, str):
                assert isinstance(found, str), (asked, denial, expected)
                assert isinstance(expected, str), (asked, found)
                if "metadata.annotations" in found:
                    assert denial, asked
                    assert denial in found, (asked, found)
            else:
                assert found == expected, asked
            outcomes["refused" if isinstance(found, str) else "passed" if rewritten == asked else "rewritten"] += 1
    # The corpus says something: there is enough of everything.
    assert min(outcomes[kind] for kind in ("refused", "passed", "rewritten")) > CORPUS / 12, outcomes


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        (
            {"castops.io/slice-ratio": "two"},
            """[castops.io/slice-ratio]: 'two' is not a positive whole number; write for example "2\"""",
        ),
        (
            {"castops.io/workload-type": "gaming"},
            "[castops.io/workload-type]: 'gaming' is not a workload type; the known ones are batch, dev, inference, ",
        ),
    ],
)
async def test_a_bad_annotation_is_refused_in_the_words_of_the_webhook(
    cluster: Cluster, governed: str, annotations: dict[str, str], message: str
) -> None:
    async with calls.connect(cluster.kubeconfig, {}, "test") as api:
        await _in_force(api, governed)
        asked = pod(container(limits=GPU), annotations=OPTIMIZE | annotations)

        found = await _created(api, governed, asked)

    assert isinstance(found, str)
    assert f"denied request: gpuslice: metadata.annotations{message}" in found


async def test_a_claim_beside_it_is_refused_because_a_policy_cannot_find_out_what_it_is_for(
    cluster: Cluster, governed: str
) -> None:
    asked = pod(container(limits=GPU), annotations=OPTIMIZE)
    asked["spec"]["resourceClaims"] = [{"name": "nic", "resourceClaimTemplateName": "network-card"}]
    asked["spec"]["containers"][0]["resources"]["claims"] = [{"name": "nic"}]
    async with calls.connect(cluster.kubeconfig, {}, "test") as api:
        await _in_force(api, governed)

        found = await _created(api, governed, asked)

    assert "another dialect or a claim" in str(found)


async def test_a_pod_that_was_to_be_rewritten_and_was_not_is_refused(cluster: Cluster, governed: str) -> None:
    asked = pod(container(limits=GPU), annotations=OPTIMIZE)
    async with calls.connect(cluster.kubeconfig, {}, "test") as api:
        await _in_force(api, governed)
        cluster.kubectl("delete", "mutatingadmissionpolicybinding", governed)

        async def refused() -> bool:
            return "the pod was not rewritten" in str(await _created(api, governed, asked))

        await until(refused, "a refusal")
    cluster.kubectl("create", "-f", "-", input=json.dumps(_binding(governed)))  # for the fixture to delete


def _binding(name: str) -> Object:
    binding = next(each for each in mutating_policy.documents() if each["kind"] == "MutatingAdmissionPolicyBinding")
    return binding | {"metadata": {"name": name}, "spec": {"policyName": name}}


async def _in_force(api: calls.Api, namespace: str) -> None:
    """Both policies are there when they are seen to work."""
    good, bad = (
        pod(container(limits=GPU), annotations=OPTIMIZE | {"castops.io/slice-ratio": ratio}) for ratio in ("2", "bad")
    )

    async def work() -> bool:
        rewritten, refused = await _created(api, namespace, good), await _created(api, namespace, bad)
        return "nvidia.com/gpu-shared" in str(rewritten) and isinstance(refused, str)

    await until(work, "that the policies are in force")


async def _created(api: calls.Api, namespace: str, asked: Object) -> Object | str:
    """The pod as it would be stored, or why it is refused."""
    asked = asked | {"metadata": {key: value for key, value in asked["metadata"].items() if key != "namespace"}}
    try:
        answer = await api.call("POST", PODS.path(namespace), parameters={"dryRun": "All"}, body=asked)
    except ApiError as error:
        return str(error)
    made: Object = json.loads(answer)
    for name in ("uid", "creationTimestamp", "managedFields", "namespace", "resourceVersion"):
        made["metadata"].pop(name, None)
    return made


def _by_webhook(asked: Object) -> tuple[str, Object]:
    """Why the core refuses the pod, and what it makes of it."""
    response = json.loads(review(review_of(asked), Context()))["response"]
    if not response["allowed"]:
        return response["status"]["message"], asked
    if "patch" not in response:
        return "", asked
    return "", patching.apply(asked, json.loads(base64.b64decode(response["patch"])))
