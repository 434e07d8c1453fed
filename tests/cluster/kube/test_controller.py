"""The controller as it is run: its answers in the status of policies, its events, its endpoints, its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.controller import followed_policies
from gpuslice.controller.reconcilers.policy_status import PolicyStatus
from gpuslice.kube.errors import ApiError
from gpuslice.kube.events import Recorder, Regarding
from gpuslice.kube.informers import Informers
from gpuslice.kube.resources import EVENTS, LEASES
from gpuslice.policies.stored_policies import SLICE_POLICIES
from tests.cluster.kube.support import hosted, policy, running
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from gpuslice.kube.client.api import Api
    from gpuslice_cluster.clusters import Cluster


@contextlib.asynccontextmanager
async def _stored(api: Api, document: dict[str, Any]) -> AsyncIterator[str]:
    name = document["metadata"]["name"]
    await api.create(SLICE_POLICIES, document)
    try:
        yield name
    finally:
        with contextlib.suppress(ApiError):
            await api.delete(SLICE_POLICIES, name)


async def _accepted(api: Api, name: str) -> dict[str, Any]:
    """The condition, once it is about the object as it is now."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = json.loads(await api.call("GET", SLICE_POLICIES.path(name=name)))
            for condition in found.get("status", {}).get("conditions", []):
                current = condition.get("observedGeneration") == found["metadata"]["generation"]
                if condition["type"] == "Accepted" and current:
                    accepted: dict[str, Any] = condition
                    return accepted
            await asyncio.sleep(0.05)


async def _events(api: Api, namespace: str, name: str) -> list[dict[str, Any]]:
    found = json.loads(await api.call("GET", EVENTS.path(namespace)))
    return [event for event in found["items"] if event["regarding"]["name"] == name]


def _status(api: Api, recorder: Recorder) -> Coroutine[Any, Any, None]:
    informers = Informers(api)
    return hosted(informers, PolicyStatus(api, followed_policies.follow(informers), recorder))


def _name() -> str:
    return f"test-{secrets.token_hex(4)}"


_BAD = {"name": "only", "match": {"expression": "1 +"}}
_GOOD = {"name": "only", "match": {"expression": "true"}}


async def test_a_policy_s_status_says_whether_it_is_in_force_and_why_not(api: Api) -> None:
    recorder = Recorder(api, "gpuslice.io/test", "test")
    async with running(_status(api, recorder), recorder.run()), _stored(api, policy(_name(), _BAD)) as name:
        refused = await _accepted(api, name)
        await api.merge(SLICE_POLICIES, name, {"spec": {"rules": [_GOOD]}})
        accepted = await _accepted(api, name)

        assert (refused["status"], refused["reason"]) == ("False", "Refused")
        assert f"SlicePolicy {name}: spec.rules[0].match.expression: " in refused["message"]
        assert (accepted["status"], accepted["reason"], accepted["message"]) == (
            "True",
            "Accepted",
            "1 rules are in force",
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (events := await _events(api, "default", name)):  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.05)
    assert [(event["type"], event["reason"], event["note"]) for event in events] == [
        ("Warning", "Refused", refused["message"])
    ]


async def test_a_change_that_changes_nothing_about_it_leaves_the_time_of_the_condition(api: Api) -> None:
    recorder = Recorder(api, "gpuslice.io/test", "test")
    async with running(_status(api, recorder)), _stored(api, policy(_name(), _GOOD)) as name:
        first = await _accepted(api, name)
        earlier = first | {"lastTransitionTime": "2026-01-01T00:00:00Z"}
        await api.merge(SLICE_POLICIES, name, {"status": {"conditions": [earlier]}}, part="status")
        await api.merge(SLICE_POLICIES, name, {"spec": {"priority": 3}})
        second = await _accepted(api, name)

    assert second["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert second["observedGeneration"] == first["observedGeneration"] + 1


async def test_other_conditions_are_kept_and_a_wrong_one_is_put_right(api: Api) -> None:
    common = {"reason": "Test", "message": "by hand", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    async with _stored(api, policy(_name(), _GOOD)) as name:
        other = {"type": "Other", "status": "True"} | common | {"message": ""}
        conditions = [other, {"type": "Accepted", "status": "False"} | common]
        await api.merge(SLICE_POLICIES, name, {"status": {"conditions": conditions}}, part="status")
        async with running(_status(api, Recorder(api, "gpuslice.io/test", "test"))):
            assert (await _accepted(api, name))["status"] == "True"
        found = json.loads(await api.call("GET", SLICE_POLICIES.path(name=name)))

    assert {each["type"]: each["message"] for each in found["status"]["conditions"]}["Other"] == ""


async def test_repeats_of_an_event_are_one_event_with_a_count(api: Api, namespace: str) -> None:
    recorder = Recorder(api, "gpuslice.io/test", "test")
    regarding = Regarding(api_version="v1", kind="Pod", name="greedy", namespace=namespace, uid="1")
    for _ in range(5):
        recorder.record(regarding, "Warning", "Denied", "Admit", "it asks for too much")
    recorder.record(regarding, "Warning", "Denied", "Admit", "it asks for nonsense " + "é" * 2000)
    await recorder.flush()
    recorder.record(regarding, "Warning", "Denied", "Admit", "it asks for too much")
    await recorder.flush()

    events = {event["note"][:20]: event for event in await _events(api, namespace, "greedy")}
    assert set(events) == {"it asks for too much", "it asks for nonsense"}
    assert events["it asks for too much"]["series"]["count"] == 6
    assert "series" not in events["it asks for nonsense"]
    assert recorder.dropped == 0


async def test_events_that_the_api_server_does_not_take_are_dropped_and_counted(api: Api) -> None:
    # The server refuses this reporter at once; in a namespace that is not there, it would look twice for each event.
    recorder = Recorder(api, "no qualified name", "test")
    for number in range(300):
        regarding = Regarding(api_version="v1", kind="Pod", name=f"pod-{number}", namespace="default")
        recorder.record(regarding, "Normal", "Test", "Test", "note")
    assert recorder.dropped == 300 - 256
    await recorder.flush()

    assert recorder.dropped == 300


@contextlib.asynccontextmanager
async def _command(cluster: Cluster, namespace: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from gpuslice.cli.main import main; main()", "controller",
        f"--kubeconfig={cluster.kubeconfig}", f"--namespace={namespace}", "--address=127.0.0.1",
        "--port=0", "--log=json",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            line = (await process.stdout.readline()).decode()
        found = re.search(r"http://[^/]+", line)
        assert found is not None, line
        yield process, found[0]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _get(url: str) -> str:
    def read() -> str:
        with urllib.request.urlopen(url) as answer:  # noqa: S310 - ours
            text: str = answer.read().decode()
            return text

    return await asyncio.to_thread(read)


async def test_the_command_works_while_it_leads_and_gives_the_lease_back(
    policies: Cluster, api: Api, namespace: str
) -> None:
    async with _command(policies, namespace) as (process, url), _stored(api, policy(_name(), _BAD)) as name:
        assert (await _accepted(api, name))["status"] == "False"
        assert await _get(f"{url}/healthz") == "ok\n"
        metrics = await _get(f"{url}/metrics")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0

    assert "gpuslice_controller_leader 1.0" in metrics
    assert re.search(r'gpuslice_policies\{state="refused"\} [1-9]', metrics)
    for series in ("s_removed_total", "s_created_total", "s_missing", '_failures_total{reason="api"}'):
        assert f"gpuslice_template{series} " in metrics
    lease = json.loads(await api.call("GET", LEASES.path(namespace, "gpuslice-controller")))
    assert not lease["spec"]["holderIdentity"]


async def test_the_command_says_what_is_wrong_with_its_arguments() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from gpuslice.cli.main import main; main()", "controller", "--template-grace=soon",
        stderr=asyncio.subprocess.PIPE, env=os.environ | {"KUBECONFIG": "/nowhere"},
    )  # fmt: skip
    _, error = await process.communicate()

    assert process.returncode == 2
    assert b"--template-grace: 'soon' is not a duration" in error


@pytest.mark.parametrize("kubeconfig", ["/nowhere/kubeconfig", "/dev/null"])
async def test_the_command_says_that_there_is_no_cluster(kubeconfig: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from gpuslice.cli.main import main; main()", "controller", f"--kubeconfig={kubeconfig}",
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, error = await process.communicate()

    assert process.returncode == 1
    assert error.startswith(f"error: kubeconfig {kubeconfig}".encode())
    assert b"--kubeconfig" in error
