"""/validate-quota: what is reserved for a pod, and what the API server hears when it does not fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.admission.context import Context, UnknownClaimsError, UnknownError, UnknownNamespaceError
from gpuslice.admission.webhook.endpoints import LARGE_REVIEW
from gpuslice.kube.errors import UnreachableError
from gpuslice.quotas.tally import OverQuotaError
from tests.unit.admission.making import admitted, container, pod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.admission.cluster.quota_reservations import Wanted
    from gpuslice.model.pods import PodClaim
    from tests.webhook.conftest import StartServer
    from tests.webhook.support import Served

Object = dict[str, Any]

GIVEN = admitted(pod(container(limits={"nvidia.com/gpumem": "1024"})))
GIVEN["metadata"]["uid"] = "8f5b"
ASKED = "gpuslice.io/asked"


@dataclass
class Cluster:
    """A cluster whose quotas a test answers for."""

    error: Exception | None = None
    ready: bool = True
    #: Whether the checks that need to know what a pod asked are made, as with a ResourceQuota.
    by_name: bool = False
    unknown: set[str] = field(default_factory=set)
    reserved: list[tuple[str, Wanted]] = field(default_factory=list)
    #: For how many GPUs claims of others are, once that was asked.
    claimed: int | None = None
    learned: bool = False

    def context(self) -> Context:
        return Context(claimed_gpus=self._claimed_gpus)

    def _claimed_gpus(self, namespace: str, claims: tuple[PodClaim, ...]) -> Mapping[PodClaim, int | None]:
        if not self.learned:
            raise UnknownClaimsError(namespace, claims)
        return dict.fromkeys(claims, self.claimed)

    async def learn(self, unknown: UnknownError) -> None:
        self.unknown.discard(unknown.namespace)
        self.learned |= isinstance(unknown, UnknownClaimsError)

    async def reserve(self, namespace: str, wanted: Wanted) -> None:
        if namespace in self.unknown:
            raise UnknownNamespaceError(namespace)
        wanted.check_for_gpus()
        if self.by_name:
            wanted.check_for_names()
        if self.error is not None:
            raise self.error
        self.reserved.append((namespace, wanted))

    def synced(self) -> bool:
        return self.ready


def ask(server: Served, document: Object, **more: Any) -> Object:  # noqa: ANN401 - fields of the API
    response: Object = server.review(document, "/validate-quota", **more).response
    return response


@pytest.mark.parametrize("padding", [0, LARGE_REVIEW], ids=["small", "large"])
def test_a_pod_is_reserved_under_the_uid_that_the_api_server_gave_it(serve: StartServer, padding: int) -> None:
    cluster = Cluster(unknown={"team"}, by_name=True)
    document = GIVEN | {"metadata": GIVEN["metadata"] | {"finalizers": ["x" * padding]}}
    assert ask(serve(cluster=cluster), document, dryRun=True)["allowed"]
    ((namespace, wanted),) = cluster.reserved
    assert (namespace, wanted.uid, wanted.name, wanted.dry_run) == ("team", "8f5b", "test", True)
    assert wanted.charge.amounts == {
        "memory": 2**30,
        "cores": 100,
        "devices": 1,
        "requests.nvidia.com/gpumem": 1024,
    }


@pytest.mark.parametrize("padding", [0, LARGE_REVIEW], ids=["small", "large"])
@pytest.mark.parametrize(("gpus", "code"), [(0, None), (2, 403), (None, 403)])
def test_a_claim_is_asked_what_it_is_for(serve: StartServer, padding: int, gpus: int | None, code: int | None) -> None:
    claims = [*GIVEN["spec"]["resourceClaims"], {"name": "card", "resourceClaimTemplateName": "cards"}]
    document = {
        "metadata": GIVEN["metadata"] | {"finalizers": ["x" * padding]},
        "spec": GIVEN["spec"] | {"resourceClaims": claims},
    }
    cluster = Cluster(claimed=gpus, unknown={"team"})
    response = ask(serve(cluster=cluster), document)
    assert response.get("status", {}).get("code") == code
    assert [wanted.charge.amounts["devices"] for _, wanted in cluster.reserved] == ([] if code else [1])


def test_a_pod_that_holds_nothing_is_not_counted(serve: StartServer) -> None:
    cluster = Cluster()
    assert ask(serve(cluster=cluster), pod(container(limits={"cpu": "1"})))["allowed"]
    assert not cluster.reserved


@pytest.mark.parametrize(
    ("cluster", "code", "message"),
    [
        (Cluster(error=OverQuotaError("GpuQuota/all: nothing is left")), 403, "GpuQuota/all: nothing is left"),
        (Cluster(error=UnreachableError("no answer")), 503, "no answer"),
        (Cluster(ready=False), 503, "try again"),
    ],
    ids=["full", "unreachable", "not-synced"],
)
def test_a_pod_that_is_not_reserved_does_not_pass(
    serve: StartServer, cluster: Cluster, code: int, message: str
) -> None:
    server = serve(cluster=cluster)
    response = ask(server, GIVEN)
    assert not response["allowed"]
    assert response["status"]["code"] == code
    assert message in response["status"]["message"]
    denials = {
        name: value for name, value in server.metrics().items() if name.startswith("gpuslice_quota_denials_total")
    }
    assert denials == ({'gpuslice_quota_denials_total{namespace="team"}': 1} if code == 403 else {})


def test_a_large_pod_with_a_forged_record_is_refused_like_a_small_one(serve: StartServer) -> None:
    server = serve(cluster=Cluster(by_name=True))
    for padding in (0, LARGE_REVIEW):
        forged = {"annotations": {ASKED: "main: nvidia.com/gpumem=1"}, "finalizers": ["x" * padding], "uid": "1"}
        response = ask(server, GIVEN | {"metadata": {"name": "forged"} | forged})
        assert response["status"]["code"] == 403
        assert ASKED in response["status"]["message"]


def test_what_a_pod_asked_cannot_be_changed(serve: StartServer) -> None:
    server = serve(cluster=Cluster())
    other = GIVEN | {"metadata": GIVEN["metadata"] | {"annotations": {ASKED: "main:"}}}
    assert ask(server, GIVEN, operation="UPDATE", oldObject=GIVEN)["allowed"]
    for new, old in ((other, GIVEN), (GIVEN, other), (pod(container()), GIVEN)):
        response = ask(server, new, operation="UPDATE", oldObject=old)
        assert response["status"]["code"] == 403
        assert "leave it out of the change" in response["status"]["message"]


def test_what_is_no_pod_or_cannot_be_read_costs_no_other_review(serve: StartServer) -> None:
    cluster = Cluster()
    server = serve(cluster=cluster)
    assert ask(server, GIVEN, kind={"group": "", "kind": "Service"})["allowed"]
    assert ask(server, GIVEN, subResource="eviction")["allowed"]
    assert not ask(server, GIVEN | {"spec": {"containers": "none"}})["allowed"]
    assert ask(server, GIVEN)["allowed"]
    assert len(cluster.reserved) == 1
