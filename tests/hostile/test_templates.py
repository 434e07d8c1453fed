"""Claim templates are made for pods that come, where pods may have them, in bounded number, and with our content."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuslice.admission.backends import dra
from gpuslice.admission.cluster.claim_templates import TemplateError, Templates
from gpuslice.admission.cluster.template_quota import MOST_UNUSED
from gpuslice.kube.errors import ApiError
from gpuslice.kube.informers import Informers
from gpuslice.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES
from gpuslice.model.slices import Slice
from gpuslice_cluster.clusters import Cluster, ClusterError
from tests.cluster.conftest import cluster, namespace  # noqa: F401 - fixtures
from tests.cluster.kube.support import Told, reach, running
from tests.cluster.served import Served, created, serving
from tests.unit.admission.making import Object, container, pod, review_of
from tests.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.admission.backends.dra import Template

_GIB = 1024**3
#: Reviews of different slices; more than a namespace may have templates that no pod uses.
_REVIEWS = MOST_UNUSED + 60
#: On a busy machine a call can be given up that the API server finishes nevertheless; so many are made at a time.
_MOST = MOST_UNUSED + 16


def _asking(mebibytes: int) -> Object:
    asked = pod(container(limits={"gpuslice.io/memory": f"{mebibytes}Mi"}))
    asked["metadata"] = {"generateName": "hostile-"}
    return asked


def _template(gibibytes: int) -> Template:
    return dra.template_for(Slice(memory=gibibytes * _GIB), None)


def _templates(cluster: Cluster, namespace: str) -> list[str]:  # noqa: F811 - fixtures
    return cluster.kubectl("get", "resourceclaimtemplates", "-n", namespace, "-o", "name").split()


@pytest.fixture(scope="module")
def webhook(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:  # noqa: F811 - see above
    with serving(cluster, tmp_path_factory.mktemp("webhook")) as served:

        def is_called() -> bool:
            made = created(cluster, served.namespace, _asking(1), "--dry-run=server")
            return "resourceClaims" in made["spec"]

        eventually(is_called, "the webhook is called")
        yield served


class _Attacker:
    """Reaches the webhook's port, past the API server."""

    def __init__(self, webhook: Served) -> None:
        self._url = f"{webhook.url}/mutate"
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE

    def review(self, asked: Object, **request: Any) -> Object:  # noqa: ANN401 - fields of the API
        body = review_of(asked, resource={"group": "", "version": "v1", "resource": "pods"}, **request)
        sent = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})  # noqa: S310 - ours
        with urllib.request.urlopen(sent, context=self._context) as answer:  # noqa: S310 - see above
            response: Object = json.load(answer)["response"]
            return response

    def many(self, namespace: str, count: int) -> list[Object]:  # noqa: F811 - a namespace
        def one(number: int) -> Object:
            return self.review(_asking(1000 + number), namespace=namespace)

        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(one, range(count)))


# ---- how many, and where ----


def test_one_namespace_gets_a_limited_number_that_no_pod_uses(webhook: Served, namespace: str) -> None:  # noqa: F811
    attacker = _Attacker(webhook)
    answers = attacker.many(namespace, _REVIEWS)
    assert 0 < len(_templates(webhook.cluster, namespace)) <= _MOST
    refused = [answer["status"]["message"] for answer in answers if not answer["allowed"]]
    assert len(refused) >= _REVIEWS - _MOST
    assert f"at most {MOST_UNUSED} are made ahead of their pods" in refused[-1]
    # Pods whose template is there, and other namespaces, do not notice.
    number = next(index for index, answer in enumerate(answers) if answer["allowed"])
    assert attacker.review(_asking(1000 + number), namespace=namespace)["allowed"]
    assert created(webhook.cluster, webhook.namespace, _asking(77))["spec"]["resourceClaims"]


@pytest.mark.parametrize("excluded", ["kube-system", "gpuslice-system"])
def test_nothing_is_made_in_an_excluded_namespace(webhook: Served, excluded: str) -> None:
    with suppress(ClusterError):  # another test may have made it
        webhook.cluster.kubectl("create", "namespace", excluded)
    before = _templates(webhook.cluster, excluded)
    answer = _Attacker(webhook).review(_asking(4000), namespace=excluded)
    assert not answer["allowed"]
    assert f"namespace {excluded} is excluded" in answer["status"]["message"]
    assert _templates(webhook.cluster, excluded) == before == []


def test_nothing_is_made_for_what_makes_no_pod(webhook: Served, namespace: str) -> None:  # noqa: F811
    attacker = _Attacker(webhook)
    for request in (
        {"dryRun": True},
        {"operation": "UPDATE"},
        {"operation": "DELETE"},
        {"subResource": "status"},
        {"kind": {"group": "apps", "version": "v1", "kind": "Pod"}},
    ):
        attacker.review(_asking(4000), namespace=namespace, **request)
    assert not attacker.review(_asking(4000), namespace="not-there")["allowed"]
    assert not attacker.review(_asking(4000), namespace="../kube-system")["allowed"]
    created(webhook.cluster, webhook.namespace, _asking(4001), "--dry-run=server")
    assert _templates(webhook.cluster, namespace) == []
    assert not [name for name in _templates(webhook.cluster, webhook.namespace) if "4001mi" in name]


def test_pods_that_are_then_invalid_leave_a_limited_number(webhook: Served, namespace: str) -> None:  # noqa: F811
    """A user who may create pods makes the API server itself ask."""
    webhook.cluster.kubectl("label", "namespace", namespace, "reviewed=true")
    patch = [{"op": "replace", "path": "/webhooks/0/namespaceSelector", "value": {"matchLabels": {"reviewed": "true"}}}]
    name = webhook.namespace
    webhook.cluster.kubectl("label", "namespace", name, "reviewed=true")
    webhook.cluster.kubectl("patch", "mutatingwebhookconfiguration", name, "--type=json", "-p", json.dumps(patch))

    async def attack() -> int:
        async with reach(webhook.cluster) as api:

            async def one(number: int) -> bool:
                asked = _asking(9000 + number)
                asked["spec"]["containers"][0]["name"] = "Not A Name"
                try:
                    await api.create(PODS, asked, namespace=namespace)
                except ApiError as error:
                    return "at most 100 are made ahead of their pods" in str(error)
                raise AssertionError("the pod is invalid")

            refused = 0
            for start in range(0, _REVIEWS, 20):
                refused += sum(await asyncio.gather(*(one(start + number) for number in range(20))))
            return refused

    eventually(
        lambda: "resourceClaims" in created(webhook.cluster, namespace, _asking(1), "--dry-run=server")["spec"],
        "the webhook is called",
    )
    assert asyncio.run(attack()) > 0
    assert 0 < len(_templates(webhook.cluster, namespace)) <= _MOST


# ---- with what content ----


def _disguised(template: Template, *, labelled: bool) -> Object:
    """All of a GPU, under the name of a small slice."""
    document = template.document("")
    del document["metadata"]["namespace"]
    if not labelled:
        del document["metadata"]["labels"]
    document["spec"] = {"spec": json.loads(dra.template_for(Slice(cores=100), None).spec)}
    return document


@pytest.mark.parametrize("labelled", [True, False], ids=["labelled as ours", "without a label"])
@pytest.mark.parametrize("watched", [True, False], ids=["that the watch knows", "that it does not know"])
async def test_another_content_under_our_name_is_not_given_to_pods(
    cluster: Cluster,  # noqa: F811 - a fixture
    namespace: str,  # noqa: F811 - a fixture
    *,
    labelled: bool,
    watched: bool,
) -> None:
    template, other = _template(1), _template(2)
    async with reach(cluster) as api:
        informers = Informers(api)
        templates = Templates(api, informers)
        await api.create(RESOURCE_CLAIM_TEMPLATES, _disguised(template, labelled=labelled), namespace=namespace)
        async with running(*([informers.run()] if watched else [])):
            if watched:
                await templates.informer.synced.wait()
            with pytest.raises(TemplateError, match=r"is there with another content than gpuslice gives it; delete it"):
                await templates.ensure(namespace, [template])
            await templates.ensure(namespace, [other])
            # The remedy is one.
            told = Told(templates.informer.store)
            await api.delete(RESOURCE_CLAIM_TEMPLATES, template.name, namespace=namespace)
            if watched and labelled:
                await told.until(lambda store: store.get(namespace, template.name) is None)
            while True:
                with suppress(TemplateError):  # the error is repeated for a moment longer
                    await templates.ensure(namespace, [template])
                    break
                await asyncio.sleep(0.05)
        stored = json.loads(await api.call("GET", RESOURCE_CLAIM_TEMPLATES.path(namespace, template.name)))
        assert stored["spec"]["spec"] == json.loads(template.spec)


async def test_a_template_that_was_replaced_is_seen(cluster: Cluster, namespace: str) -> None:  # noqa: F811 - fixtures
    template = _template(3)
    async with reach(cluster) as api:
        informers = Informers(api)
        templates = Templates(api, informers)
        async with running(informers.run()):
            await templates.informer.synced.wait()
            told = Told(templates.informer.store)
            await templates.ensure(namespace, [template])
            await told.until(lambda store: store.get(namespace, template.name))
            await api.delete(RESOURCE_CLAIM_TEMPLATES, template.name, namespace=namespace)
            await told.until(lambda store: store.get(namespace, template.name) is None)
            await api.create(RESOURCE_CLAIM_TEMPLATES, _disguised(template, labelled=True), namespace=namespace)
            await told.until(lambda store: store.get(namespace, template.name))
            with pytest.raises(TemplateError, match="another content"):
                await templates.ensure(namespace, [template])


async def test_the_content_of_a_template_cannot_be_changed(cluster: Cluster, namespace: str) -> None:  # noqa: F811
    template = _template(4)
    async with reach(cluster) as api:
        await Templates(api, Informers(api)).ensure(namespace, [template])
        changes = {"spec": _disguised(template, labelled=True)["spec"]}
        with pytest.raises(ApiError, match="immutable"):
            await api.merge(RESOURCE_CLAIM_TEMPLATES, template.name, changes, namespace=namespace)


async def test_a_template_that_is_nested_deep_stops_no_webhook(cluster: Cluster, namespace: str) -> None:  # noqa: F811
    """The parameters of a claim are any JSON of at most 10 KiB, and the API server takes it as deep as that allows."""
    deep, other = _template(5), _template(6)
    document = deep.document(namespace)
    parameters = msgspec.Raw(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}")
    document["spec"]["spec"]["devices"]["config"] = [{"opaque": {"driver": "tenant.example", "parameters": parameters}}]
    async with reach(cluster) as api:
        informers = Informers(api)
        templates = Templates(api, informers)
        async with running(informers.run()):
            await informers.wait_for_sync()
            told = Told(templates.informer.store)
            await api.create(RESOURCE_CLAIM_TEMPLATES, document, namespace=namespace)
            await told.until(lambda store: store.get(namespace, deep.name))
            await Templates(api, Informers(api)).ensure(namespace, [other])
            await told.until(lambda store: store.get(namespace, other.name))
            with pytest.raises(TemplateError, match="another content"):
                await templates.ensure(namespace, [deep])
        # One that starts now has it in its list.
        later = Informers(api)
        known = Templates(api, later).informer
        async with running(later.run()):
            await asyncio.wait_for(known.synced.wait(), PATIENCE_SECONDS)
            assert known.store.get(namespace, other.name) is not None
            assert known.store.get(namespace, deep.name) is not None
        with pytest.raises(TemplateError, match="another content"):
            await Templates(api, Informers(api)).ensure(namespace, [deep])
