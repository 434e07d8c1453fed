"""`--settings FILE`, and what else an installation chooses, as a person writes it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = "examples/settings.toml"

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: test
  annotations: {example.com/share-gpu: "true", example.com/workload: notebook}
spec:
  containers:
  - name: main
    image: registry.example/train
    resources: {limits: {nvidia.com/gpu: 1}}
"""


def _run(command: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([command, *arguments], capture_output=True, text=True, check=False, input=text, cwd=ROOT)


def _documents(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_admit_reads_the_names_and_presets_of_the_file_and_no_others(gpuslice_command: Path) -> None:
    with_file = _run(gpuslice_command, "admit", "-f", "-", "--settings", EXAMPLE, text=POD)
    without = _run(gpuslice_command, "admit", "-f", "-", text=POD)

    (pod,) = _documents(with_file)
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"example.com/gpu-slot": "1"}
    (untouched,) = _documents(without)
    assert untouched["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}


def test_admit_reckons_with_the_slots_of_the_file(gpuslice_command: Path) -> None:
    done = _run(gpuslice_command, "admit", "-f", "-", "--settings", EXAMPLE, "--backend", "dra", "-o", "yaml", text=POD)

    assert _documents(done)[-1]["metadata"]["annotations"]["gpuslice.io/slice"] == "main: 1/4 of the memory, 25% cores"


@pytest.mark.parametrize("command", ["admit", "manifests", "webhook"])
def test_a_file_that_makes_no_sense_is_named_with_the_field(
    gpuslice_command: Path, tmp_path: Path, command: str
) -> None:
    bad = tmp_path / "settings.toml"
    bad.write_text("slots-per-gpu = 0\n")
    files = {
        "admit": ["-f", "-"],
        "manifests": [],
        "webhook": ["--certificate", "tls.crt", "--key", "tls.key"],
    }

    done = _run(gpuslice_command, command, *files[command], "--settings", str(bad), text=POD)
    assert done.returncode == 1
    assert f"{bad}: slots-per-gpu: 0 is not a number of slots; write 1 to 1000" in done.stderr

    absent = _run(gpuslice_command, command, *files[command], "--settings", str(tmp_path / "absent"), text=POD)
    assert absent.returncode == 1
    assert f"{tmp_path / 'absent'}: cannot be read: No such file or directory" in absent.stderr


def test_the_installation_and_the_admission_policy_are_made_by_the_file(gpuslice_command: Path) -> None:
    installed = _run(gpuslice_command, "manifests", "--settings", EXAMPLE)
    alone = _run(gpuslice_command, "manifests", "--settings", EXAMPLE, "--admission-policy")

    (stored,) = [each for each in _documents(installed) if each["kind"] == "ConfigMap"]
    assert stored["data"] == {"settings.toml": (ROOT / EXAMPLE).read_text()}
    policies = str(_documents(alone))
    assert "castops.io" not in policies
    for name in ("example.com/gpu-slot", "example.com/share-gpu", "example.com/workload", '"notebook": 1'):
        assert name in policies


def test_agents_that_offer_slots_are_an_option(gpuslice_command: Path) -> None:
    (agent,) = [
        each
        for each in _documents(_run(gpuslice_command, "manifests", "--node-backend", "extended", "--only", "agent"))
        if each["kind"] == "DaemonSet"
    ]

    arguments = agent["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--backend=extended", "--shared-resource=nvidia.com/gpu-shared", "--slots-per-gpu=10"} <= set(arguments)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "webhook.example:8443",
        "http://webhook.example",
        "https://",
        "https://me.example@webhook.example",
        "https://webhook.example?a=b",
        "https://webhook.example/#a",
        "https://webhook.example:port",
    ],
)
def test_an_address_that_the_api_server_would_not_take_is_refused(gpuslice_command: Path, url: str) -> None:
    done = _run(gpuslice_command, "manifests", "--url", url)

    assert done.returncode == 2
    assert f"{url!r} is no address of a webhook: write for example https://webhook.example:8443" in done.stderr


@pytest.mark.parametrize("other", ["--cert-manager", "--admission-policy"])
def test_a_webhook_outside_of_the_cluster_goes_with_neither_cert_manager_nor_a_policy_instead(
    gpuslice_command: Path, other: str
) -> None:
    done = _run(gpuslice_command, "manifests", "--url", "https://webhook.example:8443", other)

    assert done.returncode == 2
    assert other in done.stderr
