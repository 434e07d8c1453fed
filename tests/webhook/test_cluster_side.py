"""What the server does beside answering: namespaces it has to learn, readiness."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpuslice.admission.claims.claim_templates import templates_in
from gpuslice.admission.context import Context, UnknownError, UnknownNamespaceError
from gpuslice.admission.webhook import endpoints
from gpuslice.admission.webhook.endpoints import LARGE_REVIEW
from gpuslice.http.connection import Limits
from gpuslice.model.errors import GpusliceError
from tests.unit.admission.making import review_of
from tests.webhook.support import CASTSLICE, HAMI, JSON, NO_GPU, eventually, request

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

    from gpuslice.admission.cluster.quota_reservations import Wanted
    from tests.webhook.conftest import StartServer


@dataclass
class Cluster:
    """A cluster that a test holds in its hands."""

    error: Exception | None = None
    ready: bool = True
    waiting: asyncio.Event | None = None
    unknown: set[str] = field(default_factory=set)
    unreachable: bool = False
    cancelled: int = 0

    def context(self) -> Context:
        return Context(namespace_labels=self._labels)

    def _labels(self, namespace: str) -> Mapping[str, str]:
        if namespace in self.unknown:
            raise UnknownNamespaceError(namespace)
        return MappingProxyType({})

    async def learn(self, unknown: UnknownError) -> None:
        if self.unreachable:
            raise GpusliceError("the API server cannot be reached")
        if self.waiting is not None:
            try:
                await self.waiting.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.error is not None:
            raise self.error
        self.unknown.discard(unknown.namespace)

    async def reserve(self, namespace: str, wanted: Wanted) -> None:
        """No quotas here."""

    def synced(self) -> bool:
        return self.ready


def test_a_pod_leaves_with_what_the_controller_needs_to_make_its_template(serve: StartServer) -> None:
    patch = json.loads(base64.b64decode(serve(cluster=Cluster()).review(HAMI).response["patch"]))
    (claims,) = (each["value"] for each in patch if each["path"] == "/spec/resourceClaims")
    (annotations,) = (each["value"] for each in patch if each["path"] == "/metadata/annotations")
    found = templates_in(annotations["gpuslice.io/claim-templates"])
    assert list(found) == [claims[0]["resourceClaimTemplateName"]]


def test_a_failure_of_ours_is_an_error_that_the_failure_policy_decides_on(serve: StartServer) -> None:
    server = serve(cluster=Cluster(unknown={"team"}, error=RuntimeError("a fault of ours")))
    with server.connect() as client:
        answer = client.review(HAMI)
        assert answer.status == 500
        assert "a fault of ours" not in answer.text
        assert client.review(NO_GPU).response["allowed"]
    assert server.metrics()["castslice_errors_total"] == 1


def test_a_pod_whose_policy_cannot_be_found_is_denied_and_does_not_pass_by_it(serve: StartServer) -> None:
    cluster = Cluster(unknown={"team"}, unreachable=True)
    server = serve(cluster=cluster)
    status = server.review(HAMI).response["status"]
    assert status["code"] == 503
    assert status["message"] == "gpuslice: the labels of namespace team: the API server cannot be reached"
    assert server.metrics()["castslice_errors_total"] == 1
    cluster.unreachable = False
    assert server.review(HAMI).response["allowed"]


def test_no_pod_gets_past_a_policy_that_was_not_seen_yet(serve: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(ready=False)
    server = serve(cluster=cluster)
    with server.connect() as client:
        client.send(request("POST", "/mutate", review_of(CASTSLICE), JSON))
        eventually(lambda: server.metrics()["gpuslice_webhook_requests_in_flight"] == 1, "it waits")
        # What asks for no GPU has no policy.
        assert server.review(NO_GPU).response["allowed"]
        cluster.ready = True
        assert client.receive().response["allowed"]
    cluster.ready = False
    monkeypatch.setattr(endpoints, "_SECONDS_TO_SYNC", 0.0)
    status = server.review(CASTSLICE).response["status"]
    assert (status["code"], status["message"]) == (
        503,
        "gpuslice: the policies of the cluster are not known yet; try again",
    )


def test_others_are_served_while_one_waits_for_its_namespace(serve: StartServer) -> None:
    cluster = Cluster(unknown={"team"}, waiting=asyncio.Event())
    server = serve(cluster=cluster)
    with server.connect() as waiting:
        # Sent ahead on the same connection: it has to wait for its turn.
        waiting.send(request("POST", "/mutate", review_of(HAMI, uid="first"), JSON))
        waiting.send(request("POST", "/mutate", review_of(NO_GPU, uid="second"), JSON))
        eventually(lambda: server.metrics()["gpuslice_webhook_requests_in_flight"] == 1, "it waits")
        assert server.review(CASTSLICE, namespace="other").response["allowed"]
        assert cluster.waiting is not None
        server.call(cluster.waiting.set)
        assert [waiting.receive().response["uid"] for _ in range(2)] == ["first", "second"]


def test_a_client_that_gives_up_ends_its_review(serve: StartServer) -> None:
    cluster = Cluster(unknown={"team"}, waiting=asyncio.Event())
    server = serve(cluster=cluster)
    with server.connect() as client:
        client.send(request("POST", "/mutate", review_of(HAMI), JSON))
        eventually(lambda: server.metrics()["gpuslice_webhook_requests_in_flight"] == 1, "it waits")
    eventually(lambda: cluster.cancelled == 1, "the review is over")


def test_a_review_that_takes_too_long_is_answered_with_an_error(serve: StartServer) -> None:
    cluster = Cluster(unknown={"team"}, waiting=asyncio.Event())
    server = serve(cluster=cluster, limits=Limits(answer=0.2))
    with server.connect() as client:
        answer = client.review(HAMI)
        assert answer.status == 500
        assert "too long" in answer.text
        assert client.review(NO_GPU).response["allowed"]


def test_a_namespace_that_is_not_known_yet_is_learned(serve: StartServer) -> None:
    for path in ("/mutate", "/validate"):
        cluster = Cluster(unknown={"team", "other"})
        assert serve(cluster=cluster).review(HAMI, path).response["allowed"]
        assert cluster.unknown == {"other"}


def test_a_large_review_is_answered_like_a_small_one(serve: StartServer) -> None:
    cluster = Cluster(unknown={"team"})
    server = serve(cluster=cluster)
    large = HAMI | {"status": {"message": "x" * LARGE_REVIEW}}
    assert server.review(large).response == server.review(HAMI).response


def test_it_is_ready_when_the_cluster_was_seen(serve: StartServer) -> None:
    cluster = Cluster(ready=False)
    server = serve(cluster=cluster)
    assert (server.get("/readyz").status, server.get("/healthz").status) == (503, 200)
    cluster.ready = True
    assert server.get("/readyz").status == 200
