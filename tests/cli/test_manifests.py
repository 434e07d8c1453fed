"""`gpuslice manifests`, as a person calls it."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import yaml

from tools import install_manifest

if TYPE_CHECKING:
    from pathlib import Path


def _run(command: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([command, "manifests", *arguments], capture_output=True, text=True, check=False)


def test_it_prints_what_is_in_deploy(gpuslice_command: Path) -> None:
    done = _run(gpuslice_command)

    assert done.returncode == 0, done.stderr
    assert list(yaml.safe_load_all(done.stdout)) == list(yaml.safe_load_all(install_manifest.TARGET.read_text()))


def test_json_is_a_list_of_the_same(gpuslice_command: Path) -> None:
    listed = json.loads(_run(gpuslice_command, "-o", "json", "--only", "classes", "--only", "crds").stdout)

    assert listed["kind"] == "List"
    assert [each["kind"] for each in listed["items"]] == [
        *["CustomResourceDefinition"] * 4,
        "ClusterRole",
        *["DeviceClass"] * 2,
    ]


def test_the_admission_policy_stands_alone(gpuslice_command: Path) -> None:
    done = _run(gpuslice_command, "--admission-policy")
    kinds = [each["kind"] for each in yaml.safe_load_all(done.stdout)]

    assert kinds == [
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]
    refused = _run(gpuslice_command, "--admission-policy", "--cert-manager")
    assert refused.returncode == 2
    assert "stands alone" in refused.stderr


def test_the_authority_and_the_networks_of_pods_are_checked(gpuslice_command: Path, tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_text("-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n")
    done = _run(gpuslice_command, "--client-authority", str(file), "--pod-network", "10.244.0.0/16")
    objects = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}
    assert objects["ConfigMap", "gpuslice-webhook-client-authority"]["data"] == {"ca.crt": file.read_text()}
    assert "10.244.0.0/16" in str(objects["NetworkPolicy", "gpuslice-webhook"])

    file.write_text("a key\n")
    refused = _run(gpuslice_command, "--client-authority", str(file))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "there is no certificate in it" in refused.stderr
    for options, said in (
        (("--pod-network", "10.244.0.7/16"), "write for example 10.244.0.0/16"),
        (("-n", "Bad_NS"), "--namespace: 'Bad_NS' cannot name a namespace; use up to 63 lower-case letters"),
        (("--image", ""), "'' is no image: write for example registry.example/gpuslice:1"),
        (("--image", "Registry/gpu slice"), "is no image"),
        (("--pod-network", "10.244.0.0/16", "--url", "https://webhook.example"), "are for a webhook in the cluster"),
    ):
        refused = _run(gpuslice_command, *options)
        assert refused.returncode == 2
        assert said in refused.stderr


def test_an_image_that_no_registry_has_is_told(gpuslice_command: Path) -> None:
    assert "warning: no registry has the image gpuslice:" in _run(gpuslice_command).stderr
    for options in (
        ("--image", "registry.example:5000/team/gpuslice:1@sha256:" + "0" * 64),
        ("--only", "crds"),
        ("--admission-policy",),
    ):
        assert (_run(gpuslice_command, *options).returncode, _run(gpuslice_command, *options).stderr) == (0, "")
