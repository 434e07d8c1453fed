"""Calls to a real API server: our credentials, its certificate, and what its refusals become."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trustme

from gpuslice.kube.client import credentials
from gpuslice.kube.client.api import Api
from gpuslice.kube.client.tokens import TokenFile
from gpuslice.kube.errors import ApiError, UnreachableError
from gpuslice.kube.informers import Informers
from gpuslice.kube.resources import PODS, ObjectMetadata, Resource
from tests.cluster.kube.support import CONFIG_MAPS, Told, config_map, reach, running

if TYPE_CHECKING:
    from pathlib import Path

    from gpuslice_cluster.clusters import Cluster


async def _allowed_reader(cluster: Cluster, namespace: str) -> str:
    """A token of a service account that may read config maps there."""
    role = ("create", "rolebinding", "reader", "--clusterrole=view", f"--serviceaccount={namespace}:default")
    await asyncio.to_thread(cluster.kubectl, *role, f"--namespace={namespace}")
    token = await asyncio.to_thread(cluster.kubectl, "create", "token", "default", f"--namespace={namespace}")
    return token.strip()


def _with_token(cluster: Cluster, folder: Path, token: Path) -> Api:
    document = json.loads(cluster.kubeconfig.read_text())
    document["users"][0]["user"] = {"tokenFile": token.name}
    (folder / "kubeconfig").write_text(json.dumps(document))
    return Api(credentials.load(folder / "kubeconfig", {}), "tests")


async def test_a_token_that_is_replaced_in_its_file_is_used(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    token = await _allowed_reader(cluster, namespace)
    file = tmp_path / "token"
    file.write_text("expired")
    async with _with_token(cluster, tmp_path, file) as api:
        for _ in range(2):
            with pytest.raises(ApiError) as refusal:
                await api.call("GET", CONFIG_MAPS.path(namespace))
            assert refusal.value.code == 401

        file.write_text(token)
        assert b"kube-root-ca.crt" in await api.call("GET", CONFIG_MAPS.path(namespace))


async def test_a_watch_goes_on_with_the_token_that_is_there_now(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:

    file = tmp_path / "token"
    file.write_text("expired")
    here = Resource("", "v1", f"namespaces/{namespace}/configmaps")  # a watch is of a whole cluster otherwise
    async with _with_token(cluster, tmp_path, file) as api:
        informers = Informers(api)
        told = Told(informers.informer(here, ObjectMetadata, lambda found: found.metadata.name).store)
        async with running(informers.run()):
            file.write_text(await _allowed_reader(cluster, namespace))
            await told.until(lambda store: len(store) > 0)
            async with reach(cluster) as admin:
                await admin.create(CONFIG_MAPS, config_map("new"), namespace=namespace)
            await told.until(lambda store: store.get(namespace, "new"))


async def test_what_the_api_server_refuses_is_an_error_in_its_own_words(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(await _allowed_reader(cluster, namespace))
    async with _with_token(cluster, tmp_path, file) as api:
        with pytest.raises(ApiError, match=r'pods is forbidden: User "system:serviceaccount:.*cannot list') as refusal:
            await api.call("GET", PODS.path())
        assert (refusal.value.code, refusal.value.reason) == (403, "Forbidden")
        with pytest.raises(ApiError) as refusal:
            await api.get(PODS, "none", ObjectMetadata, namespace=namespace)
        assert refusal.value.not_found
        with pytest.raises(ApiError) as refusal:
            await api.get(PODS, "../../../../version", ObjectMetadata, namespace=namespace)
        assert refusal.value.not_found


async def test_a_server_that_is_not_the_cluster_s_is_not_talked_to(cluster: Cluster, tmp_path: Path) -> None:
    document = json.loads(cluster.kubeconfig.read_text())
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.crt")
    document["clusters"][0]["cluster"] = {
        "server": document["clusters"][0]["cluster"]["server"],
        "certificate-authority": "ca.crt",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(document))
    async with Api(credentials.load(tmp_path / "kubeconfig", {}), "tests") as api:
        with pytest.raises(UnreachableError, match="its certificate is not trusted"):
            await api.call("GET", "/version")


async def test_a_server_that_is_not_there_is_an_error_that_names_the_call(cluster: Cluster, tmp_path: Path) -> None:
    found = replace(credentials.load(cluster.kubeconfig, {}), server="https://127.0.0.1:1")
    async with Api(replace(found, token=TokenFile(tmp_path / "missing")), "tests") as api:
        with pytest.raises(UnreachableError, match=r"token file .* cannot be read"):
            await api.call("GET", "/version")
    async with Api(found, "tests") as api:
        with pytest.raises(UnreachableError, match="GET /version: the API server does not answer"):
            await api.call("GET", "/version")
