"""`gpuslice admit` as a user runs it; and the documents that show what it prints."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpuslice.dialects.registry import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    Admit = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).resolve().parents[2]
PODS = ROOT / "examples" / "pods"
POLICY = PODS / "policy.yaml"

MIXED = """\
# Kept as it is written.
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}   # this too
data:
  on: "yes"
  day: 2026-11-15
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: research}
spec:
  schedule: "0 0 * * *"
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers:
          - name: main
            image: registry.example/train
            args: ["-c", "one\\ntwo\\n"]
            resources:
              limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1000, cpu: 500m}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {name: service}
- apiVersion: v1
  kind: Pod
  metadata: {name: again, namespace: research}
  spec:
    containers:
    - {name: main, image: i, resources: {limits: {nvidia.com/gpumem: "1000"}}}
"""


@pytest.fixture
def admit(gpuslice_command: Path) -> Admit:
    def run(*args: str | Path, stdin: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [gpuslice_command, "admit", *args], check=False, capture_output=True, text=True, input=stdin, timeout=60
        )
        assert done.returncode == code, done.stderr
        return done

    return run


def test_many_documents_of_many_kinds_come_out_in_order(admit: Admit) -> None:
    done = admit("-f", "-", stdin=MIXED)
    assert done.stdout.startswith(MIXED.split("---", maxsplit=1)[0])
    kinds = [document["kind"] for document in yaml.safe_load_all(done.stdout)]
    # One template for both pods: they ask for the same in the same namespace.
    assert kinds == ["ConfigMap", "ResourceClaimTemplate", "CronJob", "Service", "Pod"]
    cron = next(document for document in yaml.safe_load_all(done.stdout) if document["kind"] == "CronJob")
    (container,) = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"cpu": "500m"}, "claims": [{"name": "gpuslice-0"}]}
    assert container["args"] == ["-c", "one\ntwo\n"]


def test_what_it_printed_is_admitted_as_it_is(admit: Admit) -> None:
    once = admit("-f", "-", stdin=MIXED).stdout
    assert admit("-f", "-", stdin=once).stdout == once


def test_json_is_one_object_or_a_list(admit: Admit) -> None:
    assert json.loads(admit("-f", PODS / "castslice.yaml", "-o", "json").stdout)["kind"] == "Pod"
    listed = json.loads(admit("-f", "-", "-o", "json", stdin=MIXED).stdout)
    assert next(item["kind"] for item in listed["items"]) == "ConfigMap"
    assert len(listed["items"]) == 5


def test_a_diff_shows_what_changes_and_only_that(admit: Admit) -> None:
    shown = admit("-f", PODS / "castslice.yaml", "-o", "diff").stdout
    assert "-        nvidia.com/gpu: 1\n+        nvidia.com/gpu-shared: '2'\n" in shown
    assert admit("-f", "-", "-o", "diff", stdin=MIXED.split("---", maxsplit=1)[0]).stdout == ""


def test_what_is_denied_is_left_out_with_the_reason_on_standard_error(admit: Admit) -> None:
    bad = "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {containers: [{name: a, resources: "
    bad += "{limits: {tencent.com/vcuda-core: 150}}}]}\n"
    done = admit("-f", "-", stdin=f"{bad}---\n{MIXED.split('---', maxsplit=1)[0]}", code=1)
    assert "error: Pod default/bad: denied: spec.containers[0].resources.limits[tencent.com/vcuda-core]" in done.stderr
    assert "kind: Pod" not in done.stdout
    assert "kind: ConfigMap" in done.stdout


def test_backend_overrides(admit: Admit) -> None:
    (document,) = yaml.safe_load_all(admit("-f", PODS / "native.yaml", "--backend", "extended").stdout)
    assert document["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu-shared": "3"}}


def test_policies_and_the_labels_of_the_namespace_decide(admit: Admit) -> None:
    plain = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, resources: "
    plain += "{limits: {nvidia.com/gpu: 1}}}]}\n"
    assert admit("-f", "-", "--policy", POLICY, stdin=plain).stdout == plain
    done = admit("-f", "-", "--policy", POLICY, "--namespace-labels", "tier=research", stdin=plain)
    annotations = list(yaml.safe_load_all(done.stdout))[-1]["metadata"]["annotations"]
    assert annotations["gpuslice.io/policy"] == "research/shared"


def test_explain_says_which_rule_decides_and_why_not_another(admit: Admit) -> None:
    args = ("-f", PODS / "hami.yaml", "--policy", POLICY, "--namespace-labels", "tier=research", "--explain")
    text = admit(*args).stdout
    assert "research/shared: decides" in text
    assert "research/production-stays-whole: does not match: the pod's labels do not meet" in text
    assert "container main gets 2 x 3000Mi memory, 30% cores by the backend dra" in text
    explained: dict[str, Any] = json.loads(admit(*args, "-o", "json").stdout)["Pod default/hami"]
    assert explained["outcome"] == "rewritten"
    assert explained["asked"][0]["requests"] == [{"memory_bytes": 3000 * 2**20, "cores": 30, "devices": 2}]
    assert explained["rules"][1]["matched"] is True


@pytest.mark.parametrize(
    ("args", "stdin", "code", "complaint"),
    [
        (("-f", "-"), "a: [", 1, "error: <stdin>:1: "),
        (("-f", "-"), "a: b\n---\nc: d\n---\ne: }\n", 1, "error: <stdin>:5: "),
        (("-f", "-", "--explain", "-o", "diff"), "", 2, "has no -o diff"),
        (("-f", "/nowhere.yaml"), "", 2, "nowhere"),
        ((), "", 2, "Missing option"),
        (("-f", "-", "--namespace-labels", "x"), "", 2, "is not a label"),
        (("-f", "-", "--policy", PODS / "hami.yaml"), "", 1, "SlicePolicy hami: "),
        (("-f", "-"), "apiVersion: v1\nkind: Pod\nmetadata: {annotations: {gpu-memory: 5}}\n", 1, "this is not a pod"),
    ],
)
def test_mistakes_are_told_in_one_line(
    admit: Admit, args: tuple[str | Path, ...], stdin: str, code: int, complaint: str
) -> None:
    done = admit(*args, stdin=stdin, code=code)
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1


def pairs() -> list[tuple[str, str, str]]:
    """The manifests in docs/dialects.md: file, before, after."""
    text = (ROOT / "docs" / "dialects.md").read_text()
    found = re.findall(
        r"Before \(\[examples/pods/([a-z-]+\.yaml)\]\S*:\n\n```yaml\n(.*?)```\n\nAfter:\n\n```yaml\n(.*?)```",
        text,
        re.DOTALL,
    )
    assert {name.split(".")[0].split("-")[0] for name, _, _ in found} == set(NAMES)
    return found


@pytest.mark.parametrize(("file", "before", "after"), pairs(), ids=[file for file, _, _ in pairs()])
def test_the_documentation_shows_what_happens(admit: Admit, file: str, before: str, after: str) -> None:
    assert (PODS / file).read_text() == before
    assert admit("-f", PODS / file).stdout == after
