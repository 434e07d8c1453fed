"""The controller's part in the webhook configurations: when it restores them, when it must not, and with whom it shares
them. An API server of its own: what is configured here concerns all pods.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest_asyncio

from gpuslice.admission.registration.webhook_configurations import Address, Service, Webhooks
from gpuslice.controller import followed_policies
from gpuslice.controller.reconcilers.policy_status import PolicyStatus
from gpuslice.controller.reconcilers.webhook_configurations import Installation, WebhookConfigurations
from gpuslice.kube.errors import ApiError
from gpuslice.kube.events import Recorder
from gpuslice.kube.informers import Informers
from gpuslice.kube.resources import NAMESPACES, SERVICES
from gpuslice.pki import planning_process
from gpuslice.pki.authority_state import Lifetimes
from gpuslice.pki.planning_process import Question
from gpuslice.pki.trust import MUTATING, VALIDATING, Trust
from gpuslice.policies.stored_policies import SLICE_POLICIES
from tests.cluster.kube.support import hosted, install_policies, policy, running
from tests.cluster.webhooks import Clock
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from gpuslice.kube.client.api import Api
    from gpuslice_cluster.clusters import Cluster

Object = dict[str, Any]

BOTH = (MUTATING, VALIDATING)
LIMIT: Object = {"name": "limit", "maximum": {"devices": 1}}


@pytest_asyncio.fixture
async def home(quiet_cluster: Cluster, quiet_api: Api) -> AsyncIterator[str]:
    """A namespace to be installed in; the configurations have its name."""
    await asyncio.to_thread(install_policies, quiet_cluster)
    name = f"home-{secrets.token_hex(4)}"
    await quiet_api.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    for resource in BOTH:
        with contextlib.suppress(ApiError):
            await quiet_api.delete(resource, name)
    for each in json.loads(await quiet_api.call("GET", SLICE_POLICIES.path()))["items"]:
        await quiet_api.delete(SLICE_POLICIES, each["metadata"]["name"])


def _kept(
    api: Api, home: str, target: Service | Address | None = None
) -> tuple[Coroutine[Any, Any, None], WebhookConfigurations]:
    recorder = Recorder(api, "gpuslice.io/test", "test")
    informers = Informers(api)
    policies = followed_policies.follow(informers)
    # No webhook answers there, so policies of a test come before the configurations.
    webhooks = Webhooks(target=target or Address(url="https://127.0.0.1:1"), excluded_namespaces=("kube-system", home))
    installation = Installation(webhooks=webhooks, namespace=home, name=home)
    kept = WebhookConfigurations(api, informers, policies, recorder, installation)
    return hosted(informers, PolicyStatus(api, policies, recorder, held=kept), kept), kept


async def _found(api: Api, home: str) -> list[Object]:
    found = []
    for resource in BOTH:
        with contextlib.suppress(ApiError):
            found.append(json.loads(await api.call("GET", resource.path(name=home))))
    return found


async def _create_service(api: Api, home: str) -> None:
    service = {"metadata": {"name": "webhook"}, "spec": {"ports": [{"port": 443}]}}
    await api.create(SERVICES, service, namespace=home)


async def test_what_is_made_goes_with_the_namespace_that_gpuslice_is_installed_in(quiet_api: Api, home: str) -> None:
    work, kept = _kept(quiet_api, home)
    async with running(work):
        await until(lambda: not kept.problem)
        found = await _found(quiet_api, home)

    uid = json.loads(await quiet_api.call("GET", NAMESPACES.path(name=home)))["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Namespace", "name": home, "uid": uid}
    assert [each["metadata"]["ownerReferences"] for each in found] == [[owner], [owner]]


async def test_nothing_is_restored_while_gpuslice_is_removed(quiet_api: Api, home: str) -> None:
    work, kept = _kept(quiet_api, home)
    async with running(work):
        await until(lambda: not kept.problem)
        # Nothing here ends a namespace, so it stays as it is when it is about to go.
        await quiet_api.delete(NAMESPACES, home)
        for resource in BOTH:
            await quiet_api.delete(resource, home)
        await until(lambda: kept.problem)

        assert "so is the webhook" in kept.problem
        assert await _found(quiet_api, home) == []


async def test_nothing_is_restored_while_there_is_no_webhook_to_call(quiet_api: Api, home: str) -> None:
    work, kept = _kept(quiet_api, home, Service(namespace=home, name="webhook"))
    async with running(work):
        await until(lambda: "so is the webhook" in kept.problem)
        assert await _found(quiet_api, home) == []

        await _create_service(quiet_api, home)
        await until(lambda: not kept.problem)
        assert len(await _found(quiet_api, home)) == 2


async def test_a_policy_says_when_the_api_server_holds_it(quiet_api: Api, home: str) -> None:
    await quiet_api.create(SLICE_POLICIES, policy(home, LIMIT | {"match": {"namespaces": ["team"]}}))
    work, _ = _kept(quiet_api, home, Service(namespace=home, name="webhook"))

    async def held() -> tuple[str, str]:
        found = json.loads(await quiet_api.call("GET", SLICE_POLICIES.path(name=home)))
        conditions = {each["type"]: each for each in found.get("status", {}).get("conditions", ())}
        condition = conditions.get("HeldWithoutWebhook", {"status": "", "reason": ""})
        return condition["status"], condition["reason"]

    async def is_pending() -> bool:
        return await held() == ("False", "Pending")

    async def is_held() -> bool:
        return await held() == ("True", "Refused")

    async with running(work):
        await until(is_pending, "the policy waits for the configuration")
        await _create_service(quiet_api, home)
        await until(is_held, "the policy is held")
        mutating, _ = await _found(quiet_api, home)
        assert [each["failurePolicy"] for each in mutating["webhooks"]] == ["Ignore", "Fail"]


async def test_two_writers_of_one_configuration_do_not_undo_each_other(quiet_api: Api, home: str) -> None:
    """The bundles are another's: whatever changes here meanwhile, what that one wrote last stays."""
    await quiet_api.create(SLICE_POLICIES, policy(home, LIMIT | {"match": {"namespaces": ["team"]}}))
    work, kept = _kept(quiet_api, home)
    informers = Informers(quiet_api)
    trust = Trust(quiet_api, informers, [(resource, home) for resource in BOTH])
    bundle = ""
    async with running(work, informers.run()):
        await until(lambda: not kept.problem)
        for number in range(10):
            bundle = _new_bundle()
            for resource in BOTH:
                path = resource.path(name=home)
                edit = [{"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 1 + number % 2}]
                await quiet_api.call("PATCH", path, body=edit, content="application/json-patch+json")
            await trust.put(bundle)

        async def is_settled() -> bool:
            await trust.put(bundle)
            found = [webhook for each in await _found(quiet_api, home) for webhook in each["webhooks"]]
            wanted = base64.b64encode(bundle.encode()).decode()
            return len(found) == 4 and all(
                webhook["clientConfig"].get("caBundle") == wanted and webhook["timeoutSeconds"] == 3
                for webhook in found
            )

        await until(is_settled, "both have what they want")


def _new_bundle() -> str:
    question = Question(
        stored=None, served=None, names=("webhook",), trusted=frozenset(), now=Clock()(), lifetimes=Lifetimes()
    )
    return planning_process.plan(question).state.bundle
