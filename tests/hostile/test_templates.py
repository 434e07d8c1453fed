"""Claim templates are made for stored pods, where pods may have them, in bounded number, and with our content."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import ssl
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio

from gpuslice.admission.claims.claim_templates import template_for
from gpuslice.controller.reconcilers import claim_templates
from gpuslice.controller.reconcilers.claim_templates import Failure
from gpuslice.kube.errors import ApiError
from gpuslice.kube.resources import NAMESPACES, PODS, RESOURCE_CLAIM_TEMPLATES, Resource
from gpuslice.model.slices import Slice
from gpuslice_cluster.clusters import ClusterError
from tests.cluster.conftest import cluster, namespace  # noqa: F401 - fixtures
from tests.cluster.kube.conftest import api, policies, quiet_api, quiet_cluster  # noqa: F401 - fixtures
from tests.cluster.kube.support import install_policies
from tests.cluster.kube.test_templates import (
    _controlling,
    _listed,
    _pod,
    _start,
    _stored,
    _template,
    _until_stored,
)
from tests.cluster.served import GPUSLICE, Served, created, serving
from tests.unit.admission.making import Object, container, pod, review_of
from tests.waiting import eventually, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.admission.claims.claim_templates import Template
    from gpuslice.kube.client.api import Api
    from gpuslice_cluster.clusters import Cluster

_GIB = 1024**3
_REVIEWS = 60
_SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts")


def _asking(mebibytes: int) -> Object:
    asked = pod(container(limits={"gpuslice.io/memory": f"{mebibytes}Mi"}))
    asked["metadata"] = {"generateName": "hostile-"}
    return asked


@pytest.fixture(scope="module")
def webhook(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:  # noqa: F811 - see above
    with serving(cluster, tmp_path_factory.mktemp("webhook")) as served:

        def is_called() -> bool:
            made = created(cluster, served.namespace, _asking(1000), "--dry-run=server")
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
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda number: self.review(_asking(1000 + number), namespace=namespace), range(count)))


# ---- pods that never come ----


async def test_reviews_make_nothing(webhook: Served, api: Api, namespace: str) -> None:  # noqa: F811
    """Neither those of an attacker, nor those of pods that are then invalid, nor a dry run."""

    def attack() -> None:
        answers = _Attacker(webhook).many(namespace, _REVIEWS)
        assert all(answer["allowed"] for answer in answers)
        for number in range(10):
            asked = _asking(9000 + number)
            asked["spec"]["containers"][0]["name"] = "Not A Name"
            with pytest.raises(ClusterError, match="Not A Name"):
                created(webhook.cluster, webhook.namespace, asked)
        created(webhook.cluster, webhook.namespace, _asking(9100), "--dry-run=server")
        # This comes after all of these.
        created(webhook.cluster, webhook.namespace, _asking(77))

    async def made(where: str) -> list[str]:
        return [each["metadata"]["name"] for each in await _listed(api, RESOURCE_CLAIM_TEMPLATES, where)]

    async with _controlling(api, webhook.namespace), _controlling(api, namespace):
        await asyncio.to_thread(attack)

        async def is_served() -> bool:
            return any("-1x77mi-" in name for name in await made(webhook.namespace))

        await until(is_served, "the template of a stored pod is made")
        assert len(await made(webhook.namespace)) == 1
        assert await made(namespace) == []


# ---- forged recipes ----


async def test_a_recipe_that_does_not_make_the_named_template_makes_nothing(api: Api, namespace: str) -> None:  # noqa: F811
    small, large = _template(1), _template(40)
    lie = large.name.replace("1x40960mi", "1x1mi")
    async with _controlling(api, namespace) as controller:
        await _start(api, namespace, small, name="other", recipes=f"[{large.recipe}]")
        liar = _pod("lie", large)
        liar["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = lie
        await api.create(PODS, liar, namespace=namespace)
        admin = f'[{small.recipe[:-1]},"adminAccess":true}}]'
        await _start(api, namespace, small, name="admin", recipes=admin)
        await _start(api, namespace, small, name="nested", recipes="[" * 9000 + "]" * 9000)
        await _start(api, namespace, small, name="large", recipes="[" + " " * 200_000 + "]")
        for name in ("other", "lie", "admin", "nested", "large"):
            assert "does not say what it gives" in await controller.until_told(name)
        assert await _listed(api, RESOURCE_CLAIM_TEMPLATES, namespace) == []
        assert controller.templates.failures[Failure.RECIPE] > 0
        # A pod with the right one gets its template, and with it the others that name it.
        await _start(api, namespace, small)
        await _until_stored(api, namespace, small)
        assert [each["metadata"]["name"] for each in await _listed(api, RESOURCE_CLAIM_TEMPLATES, namespace)] == [
            small.name
        ]


async def test_an_annotation_that_is_edited_later_gains_nothing(api: Api, namespace: str) -> None:  # noqa: F811
    small, large = _template(1), _template(40)
    async with _controlling(api, namespace, grace=0.0) as controller:
        await _start(api, namespace, small)
        await _until_stored(api, namespace, small)
        changes = {"metadata": {"annotations": {"gpuslice.io/claim-templates": f"[{large.recipe}]"}}}
        await api.merge(PODS, "user", changes, namespace=namespace)
        await controller.pods.until(
            lambda store: (found := store.get(namespace, "user")) and not found.recipe(small.name)
        )
        await api.delete(RESOURCE_CLAIM_TEMPLATES, small.name, namespace=namespace)
        assert "does not say what it gives" in await controller.until_told()
        assert await _listed(api, RESOURCE_CLAIM_TEMPLATES, namespace) == []
        # Nor can the name be changed.
        claims = [{"name": "gpuslice-0", "resourceClaimTemplateName": large.name}]
        with pytest.raises(ApiError, match="pod updates may not change fields"):
            await api.merge(PODS, "user", {"spec": {"resourceClaims": claims}}, namespace=namespace)


@pytest_asyncio.fixture
async def alone(quiet_api: Api) -> str:  # noqa: F811 - a fixture
    """A namespace where no controller works but the test's own: those of other tests serve the whole cluster."""
    name = f"alone-{secrets.token_hex(4)}"
    await quiet_api.create(NAMESPACES, {"metadata": {"name": name}})
    await quiet_api.create(_SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace=name)
    return name


async def test_nothing_is_made_in_an_excluded_namespace(quiet_api: Api, alone: str) -> None:  # noqa: F811
    async with _controlling(quiet_api, alone, excluded=(alone,)) as controller:
        await _start(quiet_api, alone, _template())
        assert f"namespace {alone} is excluded from gpuslice" in await controller.until_told()
        assert await _listed(quiet_api, RESOURCE_CLAIM_TEMPLATES, alone) == []


# ---- how many ----


async def test_a_namespace_has_a_limited_number(
    quiet_api: Api,  # noqa: F811 - a fixture
    alone: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, namespace = quiet_api, alone  # noqa: F811 - as the other tests call them
    monkeypatch.setattr(claim_templates, "MOST", 8)
    monkeypatch.setattr(claim_templates, "_LATER", 0.2)
    wanted = [_template(size) for size in range(1, 31)]
    async with _controlling(api, namespace, grace=0.0) as controller:
        for number, template in enumerate(wanted):
            await _start(api, namespace, template, name=f"user-{number}")
        # What is refused is looked at again and again: the count alone does not tell that all eight are stored.
        await until(
            lambda: controller.templates.failures[Failure.TOO_MANY] >= 22 and controller.templates.created >= 8,
            "all were looked at",
        )
        found = {each["metadata"]["name"] for each in await _listed(api, RESOURCE_CLAIM_TEMPLATES, namespace)}
        assert len(found) == 8
        told = await controller.notes()
        # Not one event for each: a tenant can have ten thousand pods.
        assert 0 < len(told) <= 30
        assert f"namespace {namespace} has 8 claim templates, and no more are made" in next(iter(told.values()))
        # Pods whose template is there do not notice, and when some are gone, others get theirs.
        for number, template in enumerate(wanted):
            if template.name in found:
                await api.delete(PODS, f"user-{number}", namespace=namespace)

        async def others_are_served() -> bool:
            now = {each["metadata"]["name"] for each in await _listed(api, RESOURCE_CLAIM_TEMPLATES, namespace)}
            return len(now) == 8 and not now & found

        await until(others_are_served, "others get theirs")


# ---- with what content ----


def _disguised(template: Template, *, labelled: bool) -> Object:
    """All of a GPU, under the name of a small slice."""
    document = template.document("")
    del document["metadata"]["namespace"]
    if not labelled:
        del document["metadata"]["labels"]
    document["spec"] = {"spec": json.loads(template_for(Slice(cores=100), None).spec)}
    return document


@pytest.mark.parametrize("labelled", [True, False], ids=["labelled as ours", "without a label"])
@pytest.mark.parametrize("before", [True, False], ids=["before the controller", "after it"])
async def test_another_content_under_our_name_is_told(
    api: Api,  # noqa: F811 - a fixture
    namespace: str,  # noqa: F811 - a fixture
    monkeypatch: pytest.MonkeyPatch,
    *,
    labelled: bool,
    before: bool,
) -> None:
    monkeypatch.setattr(claim_templates, "_LATER", 0.2)
    template, other = _template(1), _template(2)

    async def disguise() -> None:
        await api.create(RESOURCE_CLAIM_TEMPLATES, _disguised(template, labelled=labelled), namespace=namespace)

    if before:
        await disguise()
    async with _controlling(api, namespace) as controller:
        await controller.informers.wait_for_sync()
        if not before:
            await disguise()
        await _start(api, namespace, template, other)
        told = await controller.until_told()
        assert told.startswith(f"claim template {namespace}/{template.name} is there with another content")
        assert "delete it, and gpuslice makes its own" in told
        await _until_stored(api, namespace, other)
        # The remedy is one.
        await api.delete(RESOURCE_CLAIM_TEMPLATES, template.name, namespace=namespace)
        await _until_stored(api, namespace, template)
    stored = await _stored(api, namespace, template.name)
    assert stored is not None
    assert stored["spec"]["spec"] == json.loads(template.spec)


async def test_the_content_of_a_template_cannot_be_changed(api: Api, namespace: str) -> None:  # noqa: F811
    template = _template(4)
    await api.create(RESOURCE_CLAIM_TEMPLATES, template.document(namespace), namespace=namespace)
    changes = {"spec": _disguised(template, labelled=True)["spec"]}
    with pytest.raises(ApiError, match="immutable"):
        await api.merge(RESOURCE_CLAIM_TEMPLATES, template.name, changes, namespace=namespace)


async def test_a_template_that_is_nested_deep_stops_no_controller(api: Api, namespace: str) -> None:  # noqa: F811
    """The parameters of a claim are any JSON of at most 10 KiB, and the API server takes it as deep as that allows."""
    deep, other = _template(5), _template(6)
    document = deep.document(namespace)
    parameters = msgspec.Raw(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}")
    document["spec"]["spec"]["devices"]["config"] = [{"opaque": {"driver": "tenant.example", "parameters": parameters}}]
    await api.create(RESOURCE_CLAIM_TEMPLATES, document, namespace=namespace)
    async with _controlling(api, namespace) as controller:
        await _start(api, namespace, deep, other)
        await _until_stored(api, namespace, other)
        assert "another content" in await controller.until_told()


# ---- a controller that is killed ----


async def test_every_pod_gets_its_template_though_the_controller_is_killed_again_and_again(
    quiet_cluster: Cluster,  # noqa: F811 - a fixture
    quiet_api: Api,  # noqa: F811 - a fixture
    alone: str,
) -> None:
    install_policies(quiet_cluster)
    dice = random.Random(11)  # noqa: S311 - of a test
    wanted = [_template(number % 25 + 1) for number in range(60)]
    controllers: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        # The next takes the lease of the one before by its name, and need not wait for its end.
        command = [GPUSLICE, "controller", f"--kubeconfig={quiet_cluster.kubeconfig}", "--namespace=default"]
        command += ["--address=127.0.0.1", "--port=0", "--identity=the-same", "--template-grace=0s"]
        controllers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return controllers[-1]

    async def kill() -> None:
        while True:
            controller = start()
            await asyncio.sleep(dice.uniform(0.5, 3.0))
            controller.kill()
            controller.wait()

    killing = asyncio.create_task(kill())
    try:
        for number, template in enumerate(wanted):
            await _start(quiet_api, alone, template, name=f"killed-{number}")
            await asyncio.sleep(dice.uniform(0, 0.3))
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
        start()
        await _until_stored(quiet_api, alone, *wanted)
    finally:
        killing.cancel()
        for controller in controllers:
            controller.kill()
            controller.wait()
