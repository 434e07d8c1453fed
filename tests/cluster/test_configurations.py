"""The webhook configurations and everything else that is installed, as a real API server takes them."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from gpuslice.admission.registration import mutating_policy
from gpuslice.installing import controller, parts, webhook
from gpuslice.installing.options import Options
from gpuslice.kube.client import api as calls
from gpuslice.kube.errors import ApiError
from gpuslice.kube.resources import PODS
from gpuslice_cluster.clusters import ClusterError
from tests.cluster.kube.support import install_policies
from tests.cluster.webhooks import bundles, documents, listed, replica, webhook_name
from tests.node.support import read_line
from tests.unit.admission.making import admitted, container, pod, policy
from tests.waiting import eventually, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from gpuslice.kube.client.api import Api
    from gpuslice_cluster.clusters import Cluster

Object = dict[str, Any]

PLAIN = pod(container(limits={"cpu": "1"}), container("other"), init=(container("first"),))
GOOD = pod(container(limits={"nvidia.com/gpu": "1"}), annotations={"castops.io/optimize": "true"})
BAD = pod(container(limits={"tencent.com/vcuda-core": "150"}))
BAD_ANNOTATIONS = [
    {"gpuslice.io/fraction": "5/3"},
    {"gpuslice.io/fraction": " 2 / 1"},
    {"gpu-fraction": "1.0"},
    {"gpu-fraction": "0.5", "gpu-fraction-container-name": "missing"},
    {"gpuslice.io/fraction": "1/2", "gpuslice.io/containers": "main, missing"},
    {"gpuslice.io/fraction": "1/2", "gpuslice.io/sharing": "everybody"},
    {"gpuslice.io/fraction": "1/2", "gpu-memory": "1024"},
]
NOWHERE = "https://127.0.0.1:1/"


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[Api]:
    async with calls.connect(cluster.kubeconfig, {}, "test") as connected:
        yield connected


@contextmanager
def _applied(cluster: Cluster, objects: list[Object]) -> Iterator[None]:
    cluster.kubectl("apply", "-f", "-", input=listed(objects))
    try:
        yield
    finally:
        cluster.kubectl("delete", "--wait=false", "-f", "-", input=listed(objects))


@pytest.mark.parametrize("cert_manager", [False, True], ids=["own-certificates", "cert-manager"])
def test_the_api_server_accepts_all_of_an_installation(cluster: Cluster, namespace: str, *, cert_manager: bool) -> None:
    objects = [
        each
        for each in parts.objects(Options(namespace=namespace, cert_manager=cert_manager))
        if not each["apiVersion"].startswith("cert-manager.io/") and each["kind"] != "Namespace"
    ]

    said = cluster.kubectl("apply", "--dry-run=server", "-f", "-", input=listed(objects))

    assert said.count("(server dry run)") == len(objects)


def test_the_api_server_accepts_the_admission_policies(cluster: Cluster) -> None:
    said = cluster.kubectl("apply", "--dry-run=server", "-f", "-", input=listed(mutating_policy.documents()))

    assert said.count("(server dry run)") == 4


def test_what_is_installed_is_what_was_written(cluster: Cluster, namespace: str) -> None:
    """No field is filled in by the API server that a tool that compares would stumble over."""
    written = documents(namespace, NOWHERE)
    with _applied(cluster, written):
        for document in written:
            found = json.loads(cluster.kubectl("get", document["kind"], namespace, "-o", "json"))
            assert found["webhooks"] == document["webhooks"]


async def test_a_pod_that_asks_for_no_gpu_never_leaves_the_api_server(
    cluster: Cluster, api: Api, namespace: str
) -> None:
    with _applied(cluster, documents(namespace, NOWHERE)):
        async with replica(api, namespace) as server:
            cluster.kubectl("apply", "-f", "-", input=listed(documents(namespace, f"https://127.0.0.1:{server.port}/")))
            await until(lambda: _is_rewritten(api, namespace), "that the webhook is called")
            before = await _calls(api, namespace)

            for number in range(20):
                assert await _created(api, namespace, PLAIN | {"metadata": {"name": f"plain-{number}"}})
            assert await _calls(api, namespace) == before
            assert await _created(api, namespace, GOOD)
            assert await _calls(api, namespace) > before
    errors = re.findall(r"match_condition_evaluation_errors_total\{[^}]*" + namespace, await _metrics(api))
    assert not errors


async def test_the_label_of_a_rewritten_pod_spares_the_api_server_a_look_and_its_forger_nothing(
    cluster: Cluster, api: Api, namespace: str
) -> None:
    with _applied(cluster, documents(namespace, NOWHERE)):
        async with replica(api, namespace) as server:
            cluster.kubectl("apply", "-f", "-", input=listed(documents(namespace, f"https://127.0.0.1:{server.port}/")))
            await until(lambda: _is_rewritten(api, namespace), "that the webhook is called")
            before = await _looks_for_malformed_requests(api, namespace)

            assert "gpuslice.io/sliced" in str(await _created(api, namespace, GOOD))
            assert await _looks_for_malformed_requests(api, namespace) == before
            assert await _created(api, namespace, PLAIN)
            assert await _looks_for_malformed_requests(api, namespace) == before + 1

            forged = BAD | {"metadata": {"name": "forged", "labels": {"gpuslice.io/sliced": "true"}}}
            assert await _is_refused(api, namespace, forged, "tencent.com/vcuda-core")


async def test_while_the_webhook_is_down_only_malformed_requests_are_refused(
    cluster: Cluster, api: Api, namespace: str
) -> None:
    with _applied(cluster, documents(namespace, NOWHERE)):
        refused = "failed calling webhook"
        await until(lambda: _is_refused(api, namespace, BAD, refused), "that the configuration is in force")

        for annotations in BAD_ANNOTATIONS:
            assert await _is_refused(api, namespace, pod(container(), annotations=annotations), refused), annotations
        assert isinstance(await _created(api, namespace, PLAIN), dict)
        assert isinstance(await _created(api, namespace, GOOD), dict)
        good = pod(container(), annotations={"gpuslice.io/fraction": " 1/2", "gpuslice.io/containers": " main"})
        assert isinstance(await _created(api, namespace, good), dict)
        assert isinstance(await _created(api, namespace, _of_many_containers(1000)), dict), "CEL has a budget"
        assert isinstance(await _created(api, namespace, _as_large_as_is_looked_at()), dict), "CEL has a budget"


async def test_a_bad_policy_is_refused_when_it_is_written_and_what_does_not_change_it_need_not_wait(
    cluster: Cluster, api: Api, namespace: str
) -> None:
    install_policies(cluster)
    good = _policy(namespace, "true")
    with _applied(cluster, documents(namespace, NOWHERE)):
        async with replica(api, namespace) as server:
            url = f"https://127.0.0.1:{server.port}/"
            cluster.kubectl("apply", "-f", "-", input=listed(documents(namespace, url)))
            await until(lambda: _is_rewritten(api, namespace), "that the webhook is called")
            refused = await asyncio.to_thread(_refusal, cluster, _policy(namespace, "object.spec &&"))
            assert "match.expression" in refused
            await asyncio.to_thread(cluster.kubectl, "create", "-f", "-", input=json.dumps(good))
        # No webhook answers any more.
        cluster.kubectl("label", "slicepolicy", namespace, "more=labels")
        assert "failed calling webhook" in _refusal(cluster, _policy(namespace, "false"), "apply")
        cluster.kubectl("delete", "slicepolicy", namespace)


async def test_the_rights_of_the_webhook_are_enough_and_kill_9_loses_nothing(
    cluster: Cluster, api: Api, namespace: str, tmp_path: Path, gpuslice_command: Path
) -> None:
    install_policies(cluster)
    rights = _rights(webhook.objects(Options(namespace=namespace)), namespace)
    with _applied(cluster, [*rights, *documents(namespace, NOWHERE)]):
        kubeconfig = _kubeconfig_of(cluster, "gpuslice-webhook", namespace, tmp_path)
        command: list[str | Path] = [
            *(gpuslice_command, "webhook", "--kubeconfig", kubeconfig, "--namespace", namespace),
            *("--host", "127.0.0.1", "--address", "127.0.0.1", "--port", "0", "--metrics-port", "0"),
            *("--configuration", namespace, "--drain", "0s"),
        ]
        process, reviews, health = _start(command, tmp_path)
        try:
            cluster.kubectl("apply", "-f", "-", input=listed(documents(namespace, reviews)))
            await until(lambda: _is_rewritten(api, namespace), "that the webhook is called")
            before = await bundles(api, namespace)
            claimed = pod(container(limits={"gpuslice.io/memory": "4Gi"}))
            made = await _created(api, namespace, claimed, dry_run=False)
            assert isinstance(made, dict), made
            assert made["spec"]["resourceClaims"][0]["resourceClaimTemplateName"].startswith("gpuslice-1x4096mi-")
            # Its rights let it write nothing that belongs to tenants.
            account = f"--as=system:serviceaccount:{namespace}:gpuslice-webhook"
            for verb, what in (("create", "resourceclaimtemplates"), ("patch", "pods"), ("list", "pods")):
                with pytest.raises(ClusterError):
                    cluster.kubectl("auth", "can-i", verb, what, account, "--namespace", namespace)

            process.send_signal(signal.SIGKILL)
            process.communicate()
            process, reviews, health = _start(command, tmp_path)
            eventually(lambda: _is_ready(health), "that it is ready again")
            assert await bundles(api, namespace) == before
        finally:
            process.kill()
            process.communicate()


def test_the_rights_of_the_controller_are_enough(
    cluster: Cluster, namespace: str, tmp_path: Path, gpuslice_command: Path
) -> None:
    install_policies(cluster)
    written = _policy(namespace, "true")
    with _applied(cluster, [*_rights(controller.objects(Options(namespace=namespace)), namespace), written]):
        kubeconfig = _kubeconfig_of(cluster, "gpuslice-controller", namespace, tmp_path)
        arguments = (
            *("--kubeconfig", kubeconfig, "--namespace", namespace, "--address", "127.0.0.1", "--port", "0"),
            *("--exclude-namespace", "kube-system", "--template-grace", "0s"),
        )
        claimed = admitted(pod(container(limits={"gpuslice.io/memory": "4Gi"})))
        claimed["metadata"]["namespace"] = namespace
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen([gpuslice_command, "controller", *arguments], stdout=log, stderr=log)
        try:
            accepted = "jsonpath={.status.conditions[?(@.type=='Accepted')].status}"
            eventually(lambda: cluster.kubectl("get", "slicepolicy", namespace, "-o", accepted) == "True", "a status")
            templates = ("get", "resourceclaimtemplates", "--namespace", namespace, "-o", "name")
            cluster.kubectl("create", "-f", "-", input=json.dumps(claimed))
            eventually(lambda: "gpuslice-1x4096mi-" in cluster.kubectl(*templates), "a template is made")
            cluster.kubectl("delete", "pod", claimed["metadata"]["name"], "--namespace", namespace, "--now")
            eventually(lambda: not cluster.kubectl(*templates), "and removed")
        finally:
            process.terminate()
            process.wait()
    assert "is forbidden: User" not in (tmp_path / "log").read_text()


def _rights(objects: list[Object], namespace: str) -> list[Object]:
    """Only those of what is installed, under names of the test's own where they are the whole cluster's."""
    rights = [each for each in objects if each["kind"] in _ACCESS]
    text = json.dumps(rights).replace('"resourceNames": ["gpuslice"]', f'"resourceNames": ["{namespace}"]')
    renamed: list[Object] = json.loads(text)
    for each in renamed:
        if each["kind"].startswith("Cluster"):
            each["metadata"]["name"] = f"{namespace}-{each['metadata']['name']}"
            if "roleRef" in each:
                each["roleRef"]["name"] = f"{namespace}-{each['roleRef']['name']}"
    return renamed


_ACCESS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


def _start(command: list[str | Path], folder: Path) -> tuple[subprocess.Popen[str], str, str]:
    """The process, its address for reviews and that for its health."""
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    found = re.search(r"is ready: (\S+), metrics at (\S+)", read_line(process))
    assert found is not None
    reviews, metrics = (text.replace("localhost", "127.0.0.1") for text in found.groups())
    return process, reviews, metrics


def _is_ready(health: str) -> bool:
    try:
        with urlopen(f"{health}/readyz", timeout=10) as answer:  # noqa: S310 - our own server
            return bool(answer.status == 200)
    except OSError:
        return False


def _kubeconfig_of(cluster: Cluster, account: str, namespace: str, folder: Path) -> Path:
    """Credentials of that service account alone."""
    token = cluster.kubectl("create", "token", account, "--namespace", namespace).strip()
    view = json.loads(cluster.kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
    view["users"] = [{"name": view["users"][0]["name"], "user": {"token": token}}]
    written = folder / "kubeconfig"
    written.write_text(json.dumps(view))
    return written


def _policy(name: str, expression: str) -> Object:
    # In its own namespace alone: others use the cluster at the same time.
    here = {"matchLabels": {"kubernetes.io/metadata.name": name}}
    made = policy({"name": "rule", "match": {"namespaceSelector": here, "expression": expression}}, name=name)
    made["metadata"]["labels"] = {"test": name}
    return made


def _refusal(cluster: Cluster, document: Object, verb: str = "create") -> str:
    with pytest.raises(Exception, match=r"denied|webhook") as caught:
        cluster.kubectl(verb, "-f", "-", input=json.dumps(document))
    return str(caught.value)


def _of_many_containers(count: int) -> Object:
    return pod(*(container(f"c{number}", {"cpu": "1", "memory": "1Gi"}) for number in range(count)))


def _as_large_as_is_looked_at() -> Object:
    """It asks for GPUs, so that conditions look at all of it, and in dialects that they examine."""
    asked = {"tencent.com/vcuda-core": "10", "tencent.com/vcuda-memory": "10", "nvidia.com/mig-1g.5gb": "0"}
    limits = {f"example.com/{number:030}": "0" for number in range(61)} | asked
    names = [f"container-{number}" for number in range(128)]
    first, rest = names[:64], names[64:]
    return pod(*(container(name, limits) for name in first), init=tuple(container(name, limits) for name in rest))


async def _created(api: Api, namespace: str, asked: Object, *, dry_run: bool = True) -> Object | str:
    """The pod as it would be stored, or why it is refused."""
    asked = asked | {"metadata": {key: value for key, value in asked["metadata"].items() if key != "namespace"}}
    try:
        answer = await api.call(
            "POST", PODS.path(namespace), parameters={"dryRun": "All"} if dry_run else {}, body=asked
        )
    except ApiError as error:
        return str(error)
    made: Object = json.loads(answer)
    return made


async def _is_rewritten(api: Api, namespace: str) -> bool:
    return "gpuslice.io/sliced" in str(await _created(api, namespace, GOOD))


async def _is_refused(api: Api, namespace: str, asked: Object, why: str) -> bool:
    answer = await _created(api, namespace, asked)
    return isinstance(answer, str) and why in answer


async def _metrics(api: Api) -> str:
    return (await api.call("GET", "/metrics", accept="text/plain")).decode()


async def _looks_for_malformed_requests(api: Api, namespace: str) -> int:
    """How often the API server has evaluated the validating webhook's conditions."""
    metric = "apiserver_admission_match_condition_evaluation_seconds_count"
    return await _count(api, metric, webhook_name(namespace, "pods.validate"))


async def _calls(api: Api, namespace: str) -> int:
    """How often the API server has called the test's webhooks about pods, by its own count."""
    return await _count(api, "apiserver_admission_webhook_request_total", webhook_name(namespace, "pods."))


async def _count(api: Api, metric: str, name: str) -> int:
    """The sum over the webhooks whose names begin so."""
    found = re.findall(rf'^{metric}\{{[^}}]*name="{re.escape(name)}[^}}]*\}} (\d+)', await _metrics(api), re.MULTILINE)
    return sum(map(int, found))
