"""The command itself: what it says when something is not as it should be, and what it takes."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.node.support import clean_environment
from tests.waiting import PATIENCE_SECONDS
from tests.webhook.support import CASTSLICE, HAMI

if TYPE_CHECKING:
    from tests.webhook.support import Authority, WebhookProcess


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> list[str]:
    certificate, key = authority.write(tmp_path)
    return ["--certificate", str(certificate), "--key", str(key)]


def fails(command: Path, *options: str) -> str:
    """What it complains about."""
    done = subprocess.run(
        [command, "webhook", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        env=clean_environment(),
    )
    assert done.returncode in (1, 2), done
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_without_a_certificate_it_says_how_to_give_one(gpuslice_command: Path, files: list[str]) -> None:
    assert "Give --certificate and --key" in fails(gpuslice_command)
    assert "Give --certificate and --key" in fails(gpuslice_command, *files[:2])


def test_a_missing_file_is_named(gpuslice_command: Path, files: list[str]) -> None:
    Path(files[3]).unlink()
    assert "tls.key cannot be read: No such file" in fails(gpuslice_command, *files)
    assert "none.yaml" in fails(gpuslice_command, *files, "--policies", "none.yaml")


def test_a_pair_that_does_not_match_is_named(gpuslice_command: Path, files: list[str], authority: Authority) -> None:
    Path(files[3]).write_bytes(authority.issue()[1])
    assert "tls.key" in fails(gpuslice_command, *files)


def test_an_encrypted_key_is_refused_without_asking_for_a_password(gpuslice_command: Path, files: list[str]) -> None:
    plain = Path(files[3])
    encrypt = ["openssl", "pkcs8", "-topk8", "-passout", "pass:secret", "-in", str(plain), "-out", f"{plain}.new"]
    subprocess.run(encrypt, check=True, capture_output=True)
    assert "cannot be used" in fails(gpuslice_command, *files[:3], f"{plain}.new")


@pytest.mark.parametrize("option", ["--port", "--metrics-port"])
def test_a_port_that_is_taken_is_named(gpuslice_command: Path, files: list[str], option: str) -> None:
    other = "--metrics-port" if option == "--port" else "--port"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = fails(gpuslice_command, *files, "--address", "127.0.0.1", option, port, other, "0")
    assert f"port {port} of 127.0.0.1 is in use by another program; give another with {option}" in said


def test_an_address_that_is_not_ours_is_named(gpuslice_command: Path, files: list[str]) -> None:
    assert "192.0.2.1" in fails(gpuslice_command, *files, "--address", "192.0.2.1", "--port", "0")


def test_a_bad_policy_is_named(gpuslice_command: Path, files: list[str], tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("apiVersion: gpuslice.io/v1alpha1\nkind: SlicePolicy\nmetadata: {name: a}\nspec: {rules: []}\n")
    assert "SlicePolicy a: spec.rules" in fails(gpuslice_command, *files, "--policies", str(policy))


def test_help_has_an_example(gpuslice_command: Path) -> None:
    said = subprocess.run([gpuslice_command, "webhook", "--help"], capture_output=True, text=True, check=True).stdout
    assert "gpuslice webhook --certificate tls.crt --key tls.key" in said


def test_it_takes_less_than_60_megabytes(webhook: WebhookProcess) -> None:
    with webhook.connect() as client:
        for asked in (HAMI, CASTSLICE) * 100:
            client.review(asked)
    status = Path(f"/proc/{webhook.pid}/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    assert resident < 60_000


def test_without_a_policy_that_has_one_expressions_cost_nothing(webhook: WebhookProcess) -> None:
    webhook.review(HAMI)
    loaded = Path(f"/proc/{webhook.pid}/maps").read_text()
    assert "msgspec" in loaded
    for library in ("cel_expr_python", "grpc", "cryptography"):
        assert library not in loaded
