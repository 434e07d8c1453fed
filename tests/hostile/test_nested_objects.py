"""An object that its author nested as deep as the API server takes it ends no process and passes no review.

The API server keeps `metadata.managedFields` as a user wrote them, some 10,000 levels deep; Python's limit is 1,000.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuslice.admission.context import Context
from gpuslice.admission.webhook.cluster_view import StaticCluster
from gpuslice.controller.reconcilers.pods_with_claims import PodWithClaims, needed_templates
from gpuslice.kube.decoding import decoder
from gpuslice.kube.informers import Informers
from gpuslice.kube.resources import PODS
from gpuslice.model.policies import Match, Maximum, Rule
from gpuslice.policies.rule_set import PolicySet
from tests.cluster.conftest import cluster, namespace  # noqa: F401 - fixtures
from tests.cluster.kube.support import Told, reach, running
from tests.unit.admission.making import container, pod, review_of
from tests.waiting import PATIENCE_SECONDS
from tests.webhook.conftest import authority, serve  # noqa: F401 - fixtures
from tests.webhook.support import HAMI, JSON, NO_GPU, UID

if TYPE_CHECKING:
    from gpuslice_cluster.clusters import Cluster
    from tests.webhook.conftest import StartServer

#: What the API server stores of a pod; its limit is 10,000 for the whole object.
_DEPTH = 9_000
_TEMPLATE = "gpuslice-1x1000mi-0c-0123456789abcdef"


def _managed_fields(depth: int) -> bytes:
    nested = b'{"f:spec":' * depth + b"{}" + b"}" * depth
    return (
        b'[{"manager":"x","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1",'
        b'"time":"2026-01-01T00:00:00Z","fieldsV1":%b}]' % nested
    )


def _nested(name: str, depth: int) -> dict[str, Any]:
    claims = [{"name": "gpu", "resourceClaimTemplateName": _TEMPLATE}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "managedFields": msgspec.Raw(_managed_fields(depth))},
        "spec": {"containers": [{"name": "main", "image": "none"}], "resourceClaims": claims},
    }


async def test_a_nested_pod_is_read_from_lists_and_watches(cluster: Cluster, namespace: str) -> None:  # noqa: F811
    async with reach(cluster) as api:
        informers = Informers(api)
        pods = informers.informer(PODS, PodWithClaims, needed_templates)
        async with running(informers.run()):
            await asyncio.wait_for(informers.wait_for_sync(), PATIENCE_SECONDS)
            told = Told(pods.store)
            await api.create(PODS, _nested("deep", _DEPTH), namespace=namespace)
            await told.until(lambda store: store.get(namespace, "deep"))
        # A controller that starts now has the pod in its list.
        later = Informers(api)
        known = later.informer(PODS, PodWithClaims, needed_templates)
        async with running(later.run()):
            await asyncio.wait_for(later.wait_for_sync(), PATIENCE_SECONDS)
            found = known.store.get(namespace, "deep")
            assert found is not None
            assert found.recipes == ((_TEMPLATE, ""),)


def test_in_another_thread_a_nested_object_is_an_error_that_callers_expect() -> None:
    document = msgspec.json.encode(_nested("deep", _DEPTH))
    found: list[BaseException] = []

    def decode() -> None:
        try:
            decoder(PodWithClaims)(document)
        except BaseException as error:  # noqa: BLE001 - looked at below
            found.append(error)

    thread = threading.Thread(target=decode)
    thread.start()
    thread.join()
    assert isinstance(found[0], msgspec.DecodeError)
    assert decoder(PodWithClaims)(document).metadata.name == "deep"


@pytest.mark.parametrize("path", ["/mutate", "/validate", "/validate-policy"])
@pytest.mark.parametrize("depth", [1_100, _DEPTH, 30_000])
def test_a_nested_review_is_denied(serve: StartServer, path: str, depth: int) -> None:  # noqa: F811
    """With any other answer the failurePolicy decides. The deepest is read in the thread for large reviews."""
    server = serve()
    with server.connect() as client:
        response = client.ask("POST", path, _review(HAMI, depth), JSON).response
        assert (response["uid"], response["allowed"], response["status"]["code"]) == (UID, False, 422)
        assert "cannot be read" in response["status"]["message"]
        assert client.review(NO_GPU).response["allowed"]
        assert server.metrics()['gpuslice_admission_refusals_total{reason="unreadable"}'] == 1


def test_a_pod_that_is_almost_too_deep_does_not_pass_by_an_expression(serve: StartServer) -> None:  # noqa: F811
    """Expressions see the whole pod, which is decoded deeper in the stack than the review was."""
    rule = Rule(
        policy="p", name="r", match=Match(expression="object.metadata.name != ''"), maximum=Maximum(memory=1024**3)
    )
    server = serve(cluster=StaticCluster(Context(policies=PolicySet([rule]))))
    large = pod(container(limits={"nvidia.com/gpumem": 100_000}))
    with server.connect() as client:
        for depth in range(900, 1_000, 4):
            answer = client.ask("POST", "/mutate", _review(large, depth), JSON)
            assert not answer.response["allowed"], depth


def _review(asked: dict[str, Any], depth: int) -> bytes:
    document = json.loads(review_of(asked))
    document["request"]["object"].setdefault("metadata", {})["managedFields"] = "here"
    return json.dumps(document).encode().replace(b'"here"', _managed_fields(depth))
