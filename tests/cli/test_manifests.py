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
    assert [each["kind"] for each in listed["items"]] == ["CustomResourceDefinition", "DeviceClass", "DeviceClass"]


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
