"""A tenant whose pod no webhook has seen: where a policy limits anything, the API server itself refuses it.

A control plane of the test's own, with `gpuslice webhook` and `gpuslice controller` as they are run, with the rights
that they are installed with. Webhooks are killed, configurations deleted and changed, and namespaces made while no
program of ours runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from gpuslice.kube.errors import ApiError
from gpuslice.kube.resources import EVENTS, NAMESPACES, PODS, Resource
from gpuslice.pki.trust import MUTATING, VALIDATING
from gpuslice.policies.stored_policies import SLICE_POLICIES
from gpuslice_cluster import control_plane
from gpuslice_cluster.clusters import Cluster, new_layout
from tests.cluster.kube.support import policy, reach
from tests.cluster.sharing import run_process
from tests.hostile.installed import Installed
from tests.unit.admission.making import container, pod
from tests.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from gpuslice.kube.client.api import Api

Object = dict[str, Any]

SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts")
JSON_PATCH = "application/json-patch+json"
NO_ANSWER = 'failed calling webhook "pods.under-gpu-limits.gpuslice.io"'

#: Pods of tenants: with more than the limit below, with what it allows, and without a GPU.
TOO_MUCH = pod(container(limits={"gpuslice.io/memory": "38Gi"}))
MODEST = pod(container(limits={"nvidia.com/gpumem": "1000"}))
NO_GPU = pod(container(limits={"cpu": "1"}))
LIMIT: Object = {"name": "limit", "maximum": {"memory": "4Gi"}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, gpuslice_command: Path) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("unreviewed")
    cluster = Cluster(folder)
    cluster.start(control_plane.plan(new_layout(folder))[:2], owner=run_process())
    installed = Installed(cluster, gpuslice_command, folder)
    try:
        installed.install()
        for name in ("team", "free"):
            cluster.kubectl("create", "namespace", name)
            cluster.kubectl("create", "serviceaccount", "default", "--namespace", name)
        yield installed
        for log in folder.glob("*.log"):
            assert "forbidden" not in log.read_text(), "each has all the rights that it needs"
    finally:
        installed.kill_controller()
        installed.kill_webhook()
        cluster.stop()


@pytest_asyncio.fixture
async def api(running: Installed) -> AsyncIterator[Api]:
    async with reach(running.cluster) as connected:
        yield connected


@pytest_asyncio.fixture
async def installed(running: Installed, api: Api) -> AsyncIterator[Installed]:
    """Both programs run, pods are reviewed, and there are no policies."""
    await asyncio.to_thread(running.start_webhook)
    await asyncio.to_thread(running.start_controller)

    async def is_reviewed() -> bool:
        return "gpuslice.io/slice" in await _created(api, "free", MODEST)

    await until(is_reviewed, "pods are reviewed")
    yield running
    for name in await _policies(api):
        await api.delete(SLICE_POLICIES, name)


async def _policies(api: Api) -> list[str]:
    return [each["metadata"]["name"] for each in json.loads(await api.call("GET", SLICE_POLICIES.path()))["items"]]


async def _created(api: Api, namespace: str, asked: Object) -> str:
    """What the API server says: the pod as it would be stored, or why it is refused."""
    asked = asked | {"metadata": {"name": "tenant"}}
    try:
        return (await api.call("POST", PODS.path(namespace), parameters={"dryRun": "All"}, body=asked)).decode()
    except ApiError as error:
        return f"refused: {error}"


async def _apply(api: Api, match: Object | None = None, **spec: object) -> Object:
    """A policy that limits; returns what its status says about the API server, once that is about this policy."""
    name = f"policy-{secrets.token_hex(4)}"
    document = policy(name, LIMIT | ({"match": match} if match is not None else {}))
    document["spec"] |= spec
    await api.create(SLICE_POLICIES, document)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = json.loads(await api.call("GET", SLICE_POLICIES.path(name=name)))
            for condition in found.get("status", {}).get("conditions", ()):
                if condition["type"] == "HeldWithoutWebhook" and condition["reason"] != "Pending":
                    said: Object = condition
                    return said
            await asyncio.sleep(0.05)


async def _until_reviewed(api: Api) -> None:
    """The webhook knows of the limit a moment after the API server does."""

    async def is_reviewed() -> bool:
        return "at most 4Gi is allowed" in await _created(api, "team", TOO_MUCH)

    await until(is_reviewed, "the webhook holds pods to the limit")


async def _configuration(api: Api, resource: Resource) -> Object | None:
    try:
        found: Object = json.loads(await api.call("GET", resource.path(name="gpuslice")))
    except ApiError as error:
        if error.not_found:
            return None
        raise
    return found


async def test_under_a_limit_a_pod_that_no_webhook_has_seen_is_refused_and_no_other_waits(
    installed: Installed, api: Api
) -> None:
    said = await _apply(api, {"namespaces": ["team"]})
    assert (said["status"], said["reason"]) == ("True", "Refused")
    await _until_reviewed(api)
    assert "gpuslice.io/slice" in await _created(api, "team", MODEST)

    installed.kill_webhook()

    for asked in (TOO_MUCH, MODEST):
        assert NO_ANSWER in await _created(api, "team", asked)
        assert '"kind":"Pod"' in await _created(api, "free", asked), "nothing is limited there"
    for namespace in ("team", "free"):
        assert '"kind":"Pod"' in await _created(api, namespace, NO_GPU)


async def test_forged_annotations_of_a_review_open_no_door(installed: Installed, api: Api) -> None:
    await _apply(api)
    reviewed = json.loads(await _created(api, "team", MODEST))
    installed.kill_webhook()

    forged = TOO_MUCH | {"metadata": {}}
    stored = reviewed["metadata"]
    for copied in ({}, {"labels": stored["labels"]}, {"annotations": stored["annotations"]}):
        body = forged | {"metadata": {"name": "forged", **copied}}
        with pytest.raises(ApiError, match="under-gpu-limits"):
            await api.call("POST", PODS.path("team"), parameters={"dryRun": "All"}, body=body)


async def test_a_policy_may_let_pods_pass_while_no_webhook_answers(installed: Installed, api: Api) -> None:
    said = await _apply(api, {"namespaces": ["team"]}, whenUnreviewed="Admit")
    assert (said["status"], said["reason"]) == ("False", "Admitted")
    await _until_reviewed(api)

    installed.kill_webhook()

    assert '"kind":"Pod"' in await _created(api, "team", TOO_MUCH)


async def test_a_new_namespace_is_under_its_limits_from_its_first_moment(installed: Installed, api: Api) -> None:
    said = await _apply(api, {"namespaceSelector": {"matchLabels": {"tier": "limited"}}})
    assert said["status"] == "True"
    # No program is there to do anything about it.
    installed.kill_controller()
    installed.kill_webhook()
    name = f"new-{secrets.token_hex(4)}"
    await api.create(NAMESPACES, {"metadata": {"name": name, "labels": {"tier": "limited"}}})
    await api.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace=name)

    assert NO_ANSWER in await _created(api, name, TOO_MUCH)
    assert '"kind":"Pod"' in await _created(api, "free", TOO_MUCH), "it was there, and without the label"


async def test_a_namespace_that_is_known_to_be_free_becomes_so_and_one_that_is_labelled_is_no_more(
    installed: Installed, api: Api
) -> None:
    await _apply(api, {"namespaceSelector": {"matchLabels": {"tier": "limited"}}})
    name = f"new-{secrets.token_hex(4)}"
    await api.create(NAMESPACES, {"metadata": {"name": name}})
    await api.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace=name)
    installed.kill_webhook()

    async def passes() -> bool:
        return '"kind":"Pod"' in await _created(api, name, MODEST)

    async def is_refused() -> bool:
        return NO_ANSWER in await _created(api, name, MODEST)

    await until(passes, "a namespace without the label is free")
    await api.merge(NAMESPACES, name, {"metadata": {"labels": {"tier": "limited"}}})
    await until(is_refused, "a namespace with the label is not")


async def test_deleted_configurations_are_back_with_their_bundles_and_it_is_told(
    installed: Installed, api: Api
) -> None:
    await _apply(api, {"namespaces": ["team"]})
    before = {resource: await _configuration(api, resource) for resource in (MUTATING, VALIDATING)}
    restored = _restored(installed.get("/metrics"))

    for resource in before:
        await api.delete(resource, "gpuslice")

    for resource, configuration in before.items():
        assert configuration is not None
        assert all(webhook["clientConfig"]["caBundle"] for webhook in configuration["webhooks"])

        async def is_back(resource: Resource = resource, wanted: Object = configuration) -> bool:
            found = await _configuration(api, resource)
            return found is not None and found.get("webhooks") == wanted["webhooks"]

        await until(is_back, "the configuration is back")

    await _until_reviewed(api)
    await until(lambda: _restored(installed.get("/metrics")) == restored + 2)
    await until(lambda: installed.get("/readyz") == "ok\n")

    async def is_told() -> bool:
        events = json.loads(await api.call("GET", EVENTS.path("default")))["items"]
        told = {each["regarding"]["kind"] for each in events if each["reason"] == "Restored"}
        return told == {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}

    await until(is_told, "an event says so")


def _restored(metrics: str) -> int:
    found = re.search(r"^gpuslice_webhook_configurations_restored_total (\d+)", metrics, re.MULTILINE)
    assert found is not None
    return int(found[1])


#: Each takes pods away from review, or refuses those that should pass.
_HELD = "/webhooks/1"
EDITS: dict[str, list[Object]] = {
    "ignores": [{"op": "replace", "path": f"{_HELD}/failurePolicy", "value": "Ignore"}],
    "never-matches": [
        {"op": "add", "path": f"{_HELD}/matchConditions/-", "value": {"name": "never", "expression": "false"}}
    ],
    "another-condition": [{"op": "replace", "path": f"{_HELD}/matchConditions/0/expression", "value": "false"}],
    "another-namespace": [
        {"op": "replace", "path": f"{_HELD}/namespaceSelector", "value": {"matchLabels": {"a": "b"}}}
    ],
    "labelled-pods": [{"op": "replace", "path": f"{_HELD}/objectSelector", "value": {"matchLabels": {"a": "b"}}}],
    "other-objects": [{"op": "replace", "path": f"{_HELD}/rules/0/resources", "value": ["configmaps"]}],
    "another-address": [{"op": "replace", "path": f"{_HELD}/clientConfig/url", "value": "https://127.0.0.1:1/mutate"}],
    "another-service": [
        {"op": "replace", "path": f"{_HELD}/clientConfig", "value": {"service": {"namespace": "free", "name": "mine"}}}
    ],
    "removed": [{"op": "remove", "path": _HELD}],
    "emptied": [{"op": "remove", "path": "/webhooks"}],
    "one-more": [
        {"op": "copy", "from": "/webhooks/0", "path": "/webhooks/-"},
        {"op": "replace", "path": "/webhooks/2/name", "value": "one.more.example"},
    ],
    "unlabelled": [{"op": "remove", "path": "/metadata/labels"}],
    "another-authority": [{"op": "remove", "path": f"{_HELD}/clientConfig/caBundle"}],
}


async def test_what_is_changed_by_hand_is_undone(installed: Installed, api: Api) -> None:
    await _apply(api, {"namespaces": ["team"]})
    wanted = await _configuration(api, MUTATING)
    assert wanted is not None
    assert [webhook["failurePolicy"] for webhook in wanted["webhooks"]] == ["Ignore", "Fail"]

    for name, edit in EDITS.items():
        await api.call("PATCH", MUTATING.path(name="gpuslice"), body=edit, content=JSON_PATCH)

        async def is_undone() -> bool:
            found = await _configuration(api, MUTATING)
            return (
                found is not None
                and found.get("webhooks") == wanted["webhooks"]
                and found["metadata"].get("labels") == wanted["metadata"]["labels"]
            )

        await until(is_undone, f"{name} is undone")

    edit = [{"op": "replace", "path": f"/webhooks/{number}/failurePolicy", "value": "Ignore"} for number in range(2)]
    await api.call("PATCH", VALIDATING.path(name="gpuslice"), body=edit, content=JSON_PATCH)

    async def is_checked() -> bool:
        found = await _configuration(api, VALIDATING)
        return found is not None and {webhook["failurePolicy"] for webhook in found["webhooks"]} == {"Fail"}

    await until(is_checked, "policies and malformed requests are checked")
    await until(lambda: installed.get("/readyz") == "ok\n")


async def test_a_condition_that_is_too_much_for_the_api_server_refuses_where_the_webhook_must_answer(
    installed: Installed, api: Api
) -> None:
    """What our conditions never are: but if they were, the pod would not pass."""
    assert installed.webhook is not None
    wanted = await _configuration(api, MUTATING)
    assert wanted is not None
    hook = wanted["webhooks"][0]
    costly = "a.name + b.name != c.name"
    for name in "cba":
        costly = f"object.spec.containers.all({name}, {costly})"
    crowded = pod(*(container(f"c{number}", {"nvidia.com/gpumem": "1000"}) for number in range(300)))
    for failure_policy, answer in (("Fail", "refused"), ("Ignore", '"kind":"Pod"')):
        # It would never be called: the condition is all there is to it.
        made = hook | {
            "name": "costly.gpuslice.io",
            "failurePolicy": failure_policy,
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "free"}},
            "matchConditions": [{"name": "costly", "expression": costly}],
        }
        document = {"metadata": {"name": f"costly-{failure_policy.lower()}"}, "webhooks": [made]}
        await api.create(MUTATING, document)
        try:

            async def is_in_force(expected: str = answer) -> bool:
                return expected in await _created(api, "free", crowded)

            await until(is_in_force, f"{failure_policy}: {answer}")
            if failure_policy == "Fail":
                assert "cost limit exceeded" in await _created(api, "free", crowded)
        finally:
            await api.delete(MUTATING, f"costly-{failure_policy.lower()}")


async def test_a_limit_under_a_definition_that_was_made_anew_is_held_as_any_other(
    installed: Installed, api: Api
) -> None:
    await _apply(api, {"namespaces": ["team"]})
    await _until_reviewed(api)
    await asyncio.to_thread(installed.cluster.kubectl, "delete", "crd", "slicepolicies.gpuslice.io")
    await asyncio.to_thread(installed.install)

    said = await _apply(api, {"namespaces": ["team"]})
    assert said["status"] == "True"
    await _until_reviewed(api)
    installed.kill_webhook()
    assert NO_ANSWER in await _created(api, "team", TOO_MUCH)


async def test_a_stopped_controller_leaves_the_limits_as_they_are(installed: Installed, api: Api) -> None:
    await _apply(api, {"namespaces": ["team"]})
    assert installed.controller is not None
    os.kill(installed.controller.pid, signal.SIGSTOP)
    try:
        installed.kill_webhook()
        assert NO_ANSWER in await _created(api, "team", TOO_MUCH)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(installed.controller.pid, signal.SIGCONT)
    # It may have lost its lease meanwhile, and ends then.
    installed.kill_controller()
