"""Pods made to be too much for admission, through the real API server: a pod that asks for a GPU never gets past it.

The webhook that rewrites may be missing (`Ignore`), so whatever makes it fail, or makes the API server leave it out,
lets a pod pass as it was written, with no policy applied. A tenant must not be able to bring that about.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.admission import pod_annotations
from gpuslice_cluster.clusters import Cluster, ClusterError
from tests.cluster.served import Served, serving
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

Object = dict[str, Any]

_ASKS = {"tencent.com/vcuda-core": "10", "tencent.com/vcuda-memory": "10"}


@pytest.fixture(scope="module")
def webhook(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(cluster, tmp_path_factory.mktemp("webhook")) as served:
        # The API server follows configurations by a watch.
        eventually(lambda: _is_rewritten(served, _pod(_container("main", _ASKS))), "the webhook is called")
        yield served


def _container(name: str, limits: Object | None = None, **more: Any) -> Object:  # noqa: ANN401 - fields of the API
    return {"name": name, "image": "none", **({"resources": {"limits": limits}} if limits else {}), **more}


def _pod(*containers: Object, asks: bool = False, **spec: Any) -> Object:  # noqa: ANN401 - fields of the API
    """A pod in which a sidecar asks for a GPU, if it `asks`: conditions come to it last, but it is started first."""
    sidecar = [_container("sidecar", _ASKS, restartPolicy="Always")] if asks else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        # The label says that admission served the pod: conditions look at it once, and that look must not miss it.
        "metadata": {"generateName": "hostile-", "labels": {pod_annotations.SLICED: "true"}},
        # The token's volume would be mounted in each container, and leave less room for what the test is about.
        "spec": {
            "containers": list(containers),
            "initContainers": sidecar,
            "automountServiceAccountToken": False,
            **spec,
        },
    }


def _names(count: int) -> Object:
    """Resources that no node has; none of them keeps a pod from any node."""
    return {f"a/{number:x}": "0" for number in range(count)}


def _is_rewritten(webhook: Served, pod: Object) -> bool:
    # Raw: kubectl would write the pod anew, in other characters.
    pods = f"/api/v1/namespaces/{webhook.namespace}/pods?dryRun=All"
    made = json.loads(webhook.cluster.kubectl("create", "--raw", pods, "-f", "-", input=json.dumps(pod)))
    return "gpuslice.io/dialect" in made["metadata"].get("annotations", {})


@pytest.mark.parametrize(("containers", "names"), [(26, 1200), (800, 36), (1, 20_000), (100, 100)], ids=str)
def test_no_number_of_resources_hides_a_request(webhook: Served, containers: int, names: int) -> None:
    # What the API server stores; evaluating a condition over more of them takes more than it gives a condition.
    full = [_container(f"c{number}", _names(names)) for number in range(containers)]
    if containers + 1 > 512:
        with pytest.raises(ClusterError, match="gpuslice: spec: the pod asks for a GPU and has 801 containers"):
            _is_rewritten(webhook, _pod(*full, asks=True))
    else:
        assert _is_rewritten(webhook, _pod(*full, asks=True))
    # Without a request the same containers pass untouched.
    assert not _is_rewritten(webhook, _pod(*full))


@pytest.mark.parametrize("count", [600, 10_000])
def test_no_number_of_containers_hides_a_request(webhook: Served, count: int) -> None:
    crowd = [_container(f"c{number:x}") for number in range(count)]
    with pytest.raises(ClusterError, match="gpuslice: "):
        _is_rewritten(webhook, _pod(*crowd, asks=True))
    assert not _is_rewritten(webhook, _pod(*crowd))


def test_no_length_hides_a_request(webhook: Served) -> None:
    # Six times as long in a review as in the request, and as it is stored.
    long = _container("long", env=[{"name": "TEXT", "value": "<" * 1_400_000}])
    with pytest.raises(ClusterError, match="gpuslice: the body is longer"):
        _is_rewritten(webhook, _pod(long, asks=True))
    assert not _is_rewritten(webhook, _pod(long))
    assert _is_rewritten(webhook, _pod(_container("long", env=[{"name": "TEXT", "value": "<" * 400_000}]), asks=True))


@pytest.mark.parametrize(
    "odd",
    [
        {"spec": {"initContainers": None}},
        {"container": {"resources": {"limits": _ASKS, "requests": None, "claims": None}}},
        {"beside": {"resources": None}},
        {"beside": {"resources": {"limits": None, "requests": None}}},
        {"beside": {"resources": {"limits": {}, "claims": []}}},
        {"metadata": {"annotations": None, "labels": None}},
        {"metadata": {"annotations": {f"a/{number}": "" for number in range(10_000)}}},
        {"metadata": {"annotations": {"note": "<" * 250_000}}},
    ],
    ids=lambda odd: next(iter(odd)),
)
def test_odd_pods_are_read(webhook: Served, odd: Object) -> None:
    pod = _pod(
        _container("beside") | odd.get("beside", {}),
        _container("main", _ASKS) | odd.get("container", {}),
        **odd.get("spec", {}),
    )
    pod["metadata"] |= odd.get("metadata", {})
    assert _is_rewritten(webhook, pod)
