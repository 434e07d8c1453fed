"""Claim templates are made for stored pods, kept for as long as a pod needs them, and removed when none does."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import structlog

from gpuslice.admission.claims.claim_templates import template_for, write_recipes
from gpuslice.controller.reconcilers import claim_templates
from gpuslice.controller.reconcilers.claim_templates import ClaimTemplates, Failure
from gpuslice.kube.errors import ApiError
from gpuslice.kube.events import Recorder
from gpuslice.kube.informers import Informers
from gpuslice.kube.resources import EVENTS, PODS, RESOURCE_CLAIM_TEMPLATES, Resource
from gpuslice.model.slices import Slice
from tests.cluster.kube.support import Cable, Told, hosted, running
from tests.cluster.template_maker import narrow
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import pytest

    from gpuslice.admission.claims.claim_templates import Template
    from gpuslice.kube.client.api import Api
    from gpuslice_cluster.clusters import Cluster

_GIB = 1024**3
_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims")


def _template(gibibytes: int = 4) -> Template:
    return template_for(Slice(memory=gibibytes * _GIB), None)


def _pod(name: str, *templates: Template, recipes: str | None = None) -> dict[str, Any]:
    """As admission rewrites one."""
    claims = [f"gpuslice-{number}" for number in range(len(templates))]
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": claim} for claim in claims]}}
    written = write_recipes(templates, "", ()) if recipes is None else recipes
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"gpuslice.io/sliced": "true"},
            "annotations": {"gpuslice.io/claim-templates": written},
        },
        "spec": {
            "containers": [container],
            "resourceClaims": [
                {"name": claim, "resourceClaimTemplateName": template.name}
                for claim, template in zip(claims, templates, strict=True)
            ],
            "terminationGracePeriodSeconds": 0,
        },
    }


async def _start(
    api: Api, namespace: str, *templates: Template, name: str = "user", recipes: str | None = None
) -> None:
    await api.create(PODS, _pod(name, *templates, recipes=recipes), namespace=namespace)


async def _stored(api: Api, namespace: str, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(await api.call("GET", RESOURCE_CLAIM_TEMPLATES.path(namespace, name)))
    except ApiError as error:
        if not error.not_found:
            raise
        return None
    return found


async def _listed(api: Api, resource: Resource, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(await api.call("GET", resource.path(namespace)))["items"]
    return found


class _Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class _Controller:
    """A reconciler of one namespace, whose clock only the test moves."""

    def __init__(self, api: Api, namespace: str, **settings: Any) -> None:  # noqa: ANN401 - passed on
        self.clock = _Clock()
        self.informers = Informers(api)
        self.recorder = Recorder(api, "gpuslice.io/test", "test")
        self.templates = ClaimTemplates(api, self.informers, self.recorder, clock=self.clock, **settings)
        # Other tests share the cluster, and their pods and templates are not ours.
        narrow(self.templates, namespace)
        self.stored = Told(self.templates.templates.store)
        self.pods = Told(self.templates.pods.store)
        self._api, self._namespace = api, namespace

    async def notes(self) -> dict[str, str]:
        """What was told of each pod."""
        await self.recorder.flush()
        events = await _listed(self._api, EVENTS, self._namespace)
        ours = [each for each in events if each["reason"] == "ClaimTemplateNotMade"]
        assert {(each["type"], each["regarding"]["kind"]) for each in ours} <= {("Warning", "Pod")}
        return {each["regarding"]["name"]: each["note"] for each in ours}

    async def until_told(self, pod: str = "user") -> str:
        async def told() -> str:
            return (await self.notes()).get(pod, "")

        await until(told, f"an event about {pod}")
        return await told()


@asynccontextmanager
async def _controlling(api: Api, namespace: str, **settings: Any) -> AsyncIterator[_Controller]:  # noqa: ANN401 - passed on
    controller = _Controller(api, namespace, **settings)
    async with running(hosted(controller.informers, controller.templates)):
        yield controller


async def _until_stored(api: Api, namespace: str, *templates: Template) -> None:
    for template in templates:

        async def there(template: Template = template) -> bool:
            return await _stored(api, namespace, template.name) is not None

        await until(there, f"{template.name} is there")


# Making them.


async def test_a_pod_s_templates_are_made_and_kubernetes_makes_its_claims(api: Api, namespace: str) -> None:
    wanted = [_template(size) for size in (1, 2, 3)]
    async with _controlling(api, namespace) as controller:
        await controller.informers.wait_for_sync()
        began = time.monotonic()
        await _start(api, namespace, *wanted)

        async def claimed() -> bool:
            return len(await _listed(api, _CLAIMS, namespace)) == len(wanted)

        await until(claimed, "the claims are made")
        structlog.get_logger().info("claims of a new pod", milliseconds=round(1000 * (time.monotonic() - began)))

    for template in wanted:
        stored = await _stored(api, namespace, template.name)
        assert stored is not None
        assert stored["spec"]["spec"] == json.loads(template.spec)
    assert controller.templates.created == 3


async def test_pods_that_were_there_before_the_controller_get_theirs(api: Api, namespace: str) -> None:
    template = _template()
    await _start(api, namespace, template)
    async with _controlling(api, namespace):
        await _until_stored(api, namespace, template)


async def test_two_controllers_that_make_the_same_template_are_both_content(api: Api, namespace: str) -> None:
    template = _template()
    async with _controlling(api, namespace) as one, _controlling(api, namespace) as other:
        for number in range(20):
            await _start(api, namespace, template, name=f"user-{number}")
        await _until_stored(api, namespace, template)
        assert await one.notes() == {}
    assert one.templates.created + other.templates.created == 1


async def test_a_template_that_a_user_deleted_is_made_again(api: Api, namespace: str) -> None:
    template = _template()
    async with _controlling(api, namespace) as controller:
        await _start(api, namespace, template)
        for made in (1, 2):
            await controller.stored.until(lambda store: store.get(namespace, template.name))
            await until(lambda made=made: controller.templates.created == made)  # type: ignore[misc]
            await api.delete(RESOURCE_CLAIM_TEMPLATES, template.name, namespace=namespace)
            await controller.stored.until(lambda store: store.get(namespace, template.name) is None)
        await _until_stored(api, namespace, template)


async def test_a_template_of_an_older_webhook_is_left_as_it_is(api: Api, namespace: str) -> None:
    """Its pods have no recipe, and its name has half of the hash."""
    template = _template()
    older = template.name[:-16]
    document = template.document(namespace)
    document["metadata"] |= {"name": older, "annotations": {"gpuslice.io/made-by": "admission"}}
    await api.create(RESOURCE_CLAIM_TEMPLATES, document, namespace=namespace)
    pod = _pod("user", template, recipes="")
    pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = older
    await api.create(PODS, pod, namespace=namespace)
    async with _controlling(api, namespace, grace=0.0) as controller:
        await controller.pods.until(lambda store: store.get(namespace, "user"))
        await controller.stored.until(lambda store: store.get(namespace, older))
        assert await controller.notes() == {}
        await api.delete(PODS, "user", namespace=namespace)
        await controller.stored.until(lambda store: store.get(namespace, older) is None)


# What keeps one from being made.


async def test_a_quota_on_templates_is_told_to_the_pod_and_the_template_comes_with_the_quota_s_end(
    policies: Cluster, api: Api, namespace: str
) -> None:
    resource = "count/resourceclaimtemplates.resource.k8s.io"
    quota = ("quota", "few", f"--namespace={namespace}")
    await asyncio.to_thread(policies.kubectl, "create", *quota, f"--hard={resource}=0")
    await asyncio.to_thread(
        policies.kubectl,
        *("wait", "--for=jsonpath={.status.hard}", "quota/few", f"--namespace={namespace}", "--timeout=60s"),
    )
    template = _template()
    async with _controlling(api, namespace) as controller:
        await _start(api, namespace, template)
        told = await controller.until_told()
        assert told.startswith(f"claim template {template.name} cannot be made: ")
        assert "exceeded quota: few" in told
        assert controller.templates.failures[Failure.API] > 0
        assert controller.templates.unready() == "", "a tenant's quota is no ailment of the controller"
        await asyncio.to_thread(policies.kubectl, "delete", *quota)
        await _until_stored(api, namespace, template)


async def test_an_api_server_that_was_gone_gets_the_template_when_it_is_back(cluster: Cluster, namespace: str) -> None:
    template = _template()
    async with Cable(cluster) as cable, cable.reach() as api, _controlling(api, namespace) as controller:
        await controller.informers.wait_for_sync()
        await cable.cut()
        await cable.mend()
        await _start(api, namespace, template)
        await _until_stored(api, namespace, template)


async def test_a_template_that_the_api_server_stores_otherwise_is_told(
    api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that lacks a feature: it drops the fields that it does not know."""
    call = api.call

    async def without_capacity(method: str, path: str, **more: Any) -> bytes:  # noqa: ANN401 - passed on
        if method == "POST" and path.endswith("resourceclaimtemplates"):
            del more["body"]["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]
        return await call(method, path, **more)

    monkeypatch.setattr(api, "call", without_capacity)
    async with _controlling(api, namespace) as controller:
        await _start(api, namespace, _template())
        await controller.until_told()
        assert any(
            "DRAConsumableCapacity" in each or "another content" in each for each in (await controller.notes()).values()
        )


async def test_a_controller_without_the_right_says_so_in_its_health(
    api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = api.call

    async def forbidden(method: str, path: str, **more: Any) -> bytes:  # noqa: ANN401 - passed on
        if method == "POST" and path.endswith("resourceclaimtemplates"):
            raise ApiError(403, "Forbidden", 'User "x" cannot create resource "resourceclaimtemplates" in API group')
        return await call(method, path, **more)

    template = _template()
    async with _controlling(api, namespace) as controller:
        with monkeypatch.context() as patched:
            patched.setattr(api, "call", forbidden)
            await _start(api, namespace, template)
            await until(lambda: "cannot create resource" in controller.templates.unready(), "it is not ready")
        await until(lambda: controller.templates.unready() == "", "it is ready again")
        assert await _stored(api, namespace, template.name) is not None


async def test_a_namespace_that_is_about_to_go_is_no_failure(
    api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, refused = api.call, 0

    async def terminating(method: str, path: str, **more: Any) -> bytes:  # noqa: ANN401 - passed on
        nonlocal refused
        if method == "POST" and path.endswith("resourceclaimtemplates"):
            refused += 1
            raise ApiError(
                403, "Forbidden", f"unable to create new content in {namespace} because it is being terminated"
            )
        return await call(method, path, **more)

    monkeypatch.setattr(api, "call", terminating)
    async with _controlling(api, namespace) as controller:
        await _start(api, namespace, _template())
        await until(lambda: refused, "it was tried")
        assert controller.templates.failures[Failure.API] == 0
        assert await controller.notes() == {}


async def test_a_failure_of_one_does_not_stop_another(api: Api, namespace: str) -> None:
    async with _controlling(api, namespace) as controller:
        await _start(api, namespace, _template(1), recipes="", name="without")
        await _start(api, namespace, _template(2))
        await _until_stored(api, namespace, _template(2))
        assert "does not say what it gives" in await controller.until_told("without")


# Removing them.


async def _ended(api: Api, namespace: str, controller: _Controller, names: Sequence[str] = ("user",)) -> None:
    for name in names:
        await api.delete(PODS, name, namespace=namespace)
    await controller.pods.until(lambda store: not any(key in store for key in [(namespace, name) for name in names]))


async def test_a_template_stays_for_a_while_after_its_last_pod(api: Api, namespace: str) -> None:
    template = _template()
    async with _controlling(api, namespace, grace=600.0) as controller:
        await _start(api, namespace, template)
        await controller.stored.until(lambda store: store.get(namespace, template.name))
        await _ended(api, namespace, controller)
        key = (namespace, template.name)
        assert await controller.templates.reconcile(key) == 600.0
        controller.clock.seconds += 599
        assert await controller.templates.reconcile(key) == 1.0
        # A pod that comes meanwhile begins the time anew.
        await _start(api, namespace, template, name="next")
        await controller.pods.until(lambda store: store.get(namespace, "next"))
        await _ended(api, namespace, controller, ["next"])
        controller.clock.seconds += 599
        assert await controller.templates.reconcile(key) is not None
        controller.clock.seconds += 600
        assert await controller.templates.reconcile(key) is None
        await controller.stored.until(lambda store: store.get(*key) is None)
    assert controller.templates.removed == 1


async def test_a_pod_that_ended_needs_no_template(api: Api, namespace: str) -> None:
    template = _template()
    async with _controlling(api, namespace, grace=0.0) as controller:
        await _start(api, namespace, template)
        await controller.stored.until(lambda store: store.get(namespace, template.name))
        body = {"status": {"phase": "Succeeded"}}
        await api.merge(PODS, "user", body, namespace=namespace, part="status")
        await controller.stored.until(lambda store: store.get(namespace, template.name) is None)


async def test_a_template_that_was_applied_by_hand_is_left_alone(api: Api, namespace: str) -> None:
    template, ours = _template(), _template(5)
    await api.create(RESOURCE_CLAIM_TEMPLATES, template.document(namespace), namespace=namespace)
    async with _controlling(api, namespace, grace=0.0) as controller:
        await _start(api, namespace, template, ours)
        await controller.stored.until(lambda store: store.get(namespace, ours.name))
        await _ended(api, namespace, controller)
        await controller.stored.until(lambda store: store.get(namespace, ours.name) is None)
    assert await _stored(api, namespace, template.name) is not None


async def test_few_unused_templates_stay_in_one_namespace(
    api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_templates, "MOST_UNUSED", 2)
    wanted = [_template(size) for size in range(1, 7)]
    async with _controlling(api, namespace, grace=600.0) as controller:
        await _start(api, namespace, *wanted)
        await controller.stored.until(lambda store: len([key for key in store if key[0] == namespace]) == len(wanted))
        await _ended(api, namespace, controller)
        await controller.stored.until(lambda store: len([key for key in store if key[0] == namespace]) == 2)


async def test_a_pod_that_comes_while_its_template_is_removed_gets_it_again(api: Api, namespace: str) -> None:
    """With no grace at all, each end of a pod races with the next pod's beginning."""
    template = _template()
    async with _controlling(api, namespace, grace=0.0) as controller:
        for number in range(20):
            await _start(api, namespace, template, name=f"user-{number}")
            if number % 2:
                await asyncio.sleep(0.005 * number)
            await api.delete(PODS, f"user-{number}", namespace=namespace)
        await _start(api, namespace, template, name="last")

        async def claimed() -> bool:
            claims = await _listed(api, _CLAIMS, namespace)
            owners = [owner["name"] for claim in claims for owner in claim["metadata"]["ownerReferences"]]
            return "last" in owners

        await until(claimed, "the last pod has its claim")
        assert await controller.notes() == {}
