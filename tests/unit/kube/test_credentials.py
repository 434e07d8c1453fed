"""Which cluster is meant, and what is said when none is."""

from __future__ import annotations

import base64
import json
import ssl
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from gpuslice.kube.client import credentials
from gpuslice.kube.client.tokens import TokenFile, TokenProgram
from gpuslice.kube.errors import ApiError, CredentialsError, UnreachableError
from gpuslice.kube.resources import LEASES, PODS

if TYPE_CHECKING:
    from pathlib import Path


def _config(cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://cluster.example:6443"} | (cluster or {})}],
        "users": [{"name": "u", "user": user or {}}],
    }


def _written(folder: Path, document: object, name: str = "config") -> Path:
    path = folder / name
    path.write_text(json.dumps(document))
    return path


def _base64(pem: trustme.Blob) -> str:
    return base64.b64encode(pem.bytes()).decode()


def test_a_file_that_is_given_comes_before_the_environment_and_that_before_the_service_account(
    tmp_path: Path,
) -> None:
    given = _written(tmp_path, _config({"server": "https://given.example"}), "given")
    named = _written(tmp_path, _config({"server": "https://named.example"}), "named")
    environment = {"KUBECONFIG": f"{named}:/another", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}

    assert credentials.load(given, environment).server == "https://given.example"
    assert credentials.load(None, environment).server == "https://named.example"


def test_of_several_files_the_first_that_names_something_counts_and_paths_are_relative_to_their_file(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()
    client = authority.issue_cert("client")
    for name in ("contexts", "clusters", "users"):
        (tmp_path / name).mkdir()
    authority.cert_pem.write_to_path(tmp_path / "clusters" / "ca.crt")
    client.cert_chain_pems[0].write_to_path(tmp_path / "users" / "client.crt")
    client.private_key_pem.write_to_path(tmp_path / "users" / "client.key")
    (tmp_path / "users" / "token").write_text("secret")
    whole = _config(
        {"certificate-authority": "ca.crt"},
        {"client-certificate": "client.crt", "client-key": "client.key", "tokenFile": "token"},
    )
    other = _config({"server": "https://other.example"}) | {"current-context": "another"}
    files = [
        _written(tmp_path / "contexts", {"contexts": whole["contexts"], "clusters": None}),
        _written(tmp_path / "clusters", {"clusters": whole["clusters"], "current-context": "here"}),
        tmp_path / "missing",
        _written(tmp_path / "users", {"users": whole["users"]}),
        _written(tmp_path, other, "last"),
        _written(tmp_path, {}, "empty"),
    ]

    found = credentials.load(None, {"KUBECONFIG": ":".join(["", *map(str, files), ""])})

    assert (found.server, found.namespace) == ("https://cluster.example:6443", "team")
    assert found.tls is not None
    assert len(found.tls.get_ca_certs()) == 1
    assert isinstance(found.token, TokenFile)
    assert found.token.read() == "secret"


def test_when_all_files_are_missing_all_are_named(tmp_path: Path) -> None:
    paths = f"{tmp_path}/one:{tmp_path}/two"
    with pytest.raises(CredentialsError, match=f"kubeconfig {paths} cannot be used .No such file or directory"):
        credentials.load(None, {"KUBECONFIG": paths})


def test_of_several_files_the_one_that_makes_no_sense_is_named(tmp_path: Path) -> None:
    good, bad = _written(tmp_path, _config(), "good"), _written(tmp_path, "nonsense", "bad")
    with pytest.raises(CredentialsError, match=f"kubeconfig {bad} cannot be used"):
        credentials.load(None, {"KUBECONFIG": f"{good}:{bad}"})


def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "namespace").write_text("gpuslice-system")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}

    found = credentials.of_service_account(environment, tmp_path)

    assert (found.server, found.namespace) == ("https://[fd00::1]:6443", "gpuslice-system")
    assert found.tls is not None
    assert found.tls.verify_mode is ssl.CERT_REQUIRED


def test_a_pod_without_a_service_account_is_told_so() -> None:
    with pytest.raises(CredentialsError, match=r"service account for the cluster at 10\.0\.0\.1 cannot be read"):
        credentials.load(None, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})


def test_no_cluster_at_all_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CredentialsError, match="no cluster is known: give a file with --kubeconfig"):
        credentials.load(None, {})


def test_certificates_may_be_in_the_file_or_beside_it(tmp_path: Path) -> None:
    authority = trustme.CA()
    client = authority.issue_cert("client")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    client.cert_chain_pems[0].write_to_path(tmp_path / "client.crt")
    client.private_key_pem.write_to_path(tmp_path / "client.key")
    inside = _config(
        {"certificate-authority-data": _base64(authority.cert_pem)},
        {
            "client-certificate-data": _base64(client.cert_chain_pems[0]),
            "client-key-data": _base64(client.private_key_pem),
        },
    )
    beside = _config(
        {"certificate-authority": "ca.crt"}, {"client-certificate": "client.crt", "client-key": "client.key"}
    )

    for document in (inside, beside):
        found = credentials.load(_written(tmp_path, document), {})
        assert found.tls is not None
        assert len(found.tls.get_ca_certs()) == 1
        assert found.namespace == "team"


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ("nonsense", "Expected 'object', got 'str'"),
        ({}, "current-context is not set"),
        (_config() | {"current-context": "there"}, "contexts has none with the name 'there'"),
        (_config() | {"clusters": []}, "clusters has none with the name 'c'"),
        (_config() | {"users": None}, "users has none with the name 'u'"),
        (_config({"server": "cluster.example"}), "clusters"),
        (_config({"proxy-url": "http://proxy.example"}), "proxy-url is not supported"),
        (_config({"certificate-authority-data": "???"}), "certificate-authority-data is not base64"),
        (_config({"certificate-authority": "missing.crt"}), "No such file"),
        (_config(user={"username": "admin", "password": "x"}), "which API servers do not take any more"),
        (_config(user={"exec": {"command": "x", "apiVersion": "v0"}}), "exec.apiVersion is v0"),
    ],
)
def test_a_file_that_makes_no_sense_is_named_with_the_reason(tmp_path: Path, document: object, complaint: str) -> None:
    path = _written(tmp_path, document)
    with pytest.raises(CredentialsError) as error:
        credentials.load(path, {})

    assert str(error.value).startswith(f"kubeconfig {path} cannot be used (")
    assert complaint in str(error.value)


async def test_a_token_file_is_read_again_when_its_token_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    token = TokenFile(path)
    assert await token.token() == "old"
    path.write_text("new")
    assert await token.token() == "old"

    assert token.refused()
    assert await token.token() == "new"


async def test_a_token_file_that_is_gone_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="cannot be read"):
        await TokenFile(tmp_path / "token").token()


def _program(tmp_path: Path, script: str) -> TokenProgram:
    path = tmp_path / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return TokenProgram([str(path)], {"FROM": "config"}, "client.authentication.k8s.io/v1")


async def test_a_plugin_is_asked_once_and_again_when_its_token_is_refused(tmp_path: Path) -> None:
    count = tmp_path / "count"
    token = _program(
        tmp_path,
        f'echo . >> {count}\necho "{{\\"status\\": {{\\"token\\": \\"$FROM-$(wc -l < {count})\\"}}}}"',
    )

    assert [await token.token(), await token.token()] == ["config-1"] * 2
    assert token.refused()
    assert await token.token() == "config-2"


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo no such luck >&2; exit 3", "failed with 3: no such luck"),
        ("echo hello", "printed no ExecCredential"),
        ("echo '{\"status\": {}}'", "gave no token"),
    ],
)
async def test_a_plugin_that_fails_is_named(tmp_path: Path, script: str, complaint: str) -> None:
    with pytest.raises(UnreachableError, match=complaint):
        await _program(tmp_path, script).token()


async def test_a_plugin_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="cannot be run"):
        await TokenProgram([str(tmp_path / "missing")], {}, "client.authentication.k8s.io/v1").token()


def test_an_address_has_its_parts_in_order() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("a b", "c?d", "status") == "/api/v1/namespaces/a%20b/pods/c%3Fd/status"
    assert LEASES.path("ns", "name") == "/apis/coordination.k8s.io/v1/namespaces/ns/leases/name"


@pytest.mark.parametrize("name", [".", "..", "a/b", "../secrets", "%2F"])
def test_a_name_cannot_lead_elsewhere(name: str) -> None:
    for arguments in ((name,), ("namespace", name)):
        with pytest.raises(ApiError, match="cannot be the name of anything"):
            PODS.path(*arguments)
