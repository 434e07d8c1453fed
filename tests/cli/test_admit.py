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
EXAMPLES = ROOT / "examples"
POLICY = EXAMPLES / "policies" / "research.yaml"

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
    assert json.loads(admit("-f", EXAMPLES / "castslice.yaml", "-o", "json").stdout)["kind"] == "Pod"
    listed = json.loads(admit("-f", "-", "-o", "json", stdin=MIXED).stdout)
    assert next(item["kind"] for item in listed["items"]) == "ConfigMap"
    assert len(listed["items"]) == 5


def test_a_diff_shows_what_changes_and_only_that(admit: Admit) -> None:
    shown = admit("-f", EXAMPLES / "castslice.yaml", "-o", "diff").stdout
    assert "-        nvidia.com/gpu: 1\n+        nvidia.com/gpu-shared: '2'\n" in shown
    assert admit("-f", "-", "-o", "diff", stdin=MIXED.split("---", maxsplit=1)[0]).stdout == ""


def test_a_diff_shows_the_claim_templates_once_and_as_added(admit: Admit) -> None:
    shown = admit("-f", "-", "-o", "diff", stdin=MIXED).stdout
    (name,) = re.findall(r"^--- /dev/null\n\+\+\+ ResourceClaimTemplate research/(\S+)$", shown, re.MULTILINE)
    assert f"+  name: {name}\n" in shown
    assert shown.index("kind: ResourceClaimTemplate") < shown.index("--- CronJob research/nightly")


RAY = """\
# A cluster of two kinds of pods.
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: ray, namespace: research}
spec:
  headGroupSpec:
    template: {spec: {containers: [{name: head, image: i}]}}
  workerGroupSpecs:
  - groupName: small
    template:
      spec:
        containers:
        - {name: worker, image: i, resources: {limits: {gpuslice.io/memory: 4Gi}}}
"""


def test_pod_templates_are_rewritten_whatever_the_kind_that_they_are_in(admit: Admit) -> None:
    templates, ray = yaml.safe_load_all(admit("-f", "-", stdin=RAY).stdout)
    assert (templates["kind"], templates["metadata"]["namespace"]) == ("ResourceClaimTemplate", "research")
    (worker,) = ray["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    assert worker["resources"] == {"limits": {}, "claims": [{"name": "gpuslice-0"}]}
    assert ray["spec"]["headGroupSpec"] == yaml.safe_load(RAY)["spec"]["headGroupSpec"]


def test_messages_say_where_in_the_object_the_template_is(admit: Admit) -> None:
    done = admit("-f", "-", stdin=RAY.replace("4Gi", "many"), code=1)
    where = "RayCluster research/ray, spec.workerGroupSpecs[0].template"
    assert f"error: {where}: denied: spec.containers[0].resources.limits[gpuslice.io/memory]" in done.stderr
    assert done.stdout == ""
    explained = json.loads(admit("-f", "-", "--explain", "-o", "json", stdin=RAY).stdout)
    assert [(title, why["outcome"]) for title, why in explained.items()] == [
        ("RayCluster research/ray, spec.headGroupSpec.template", "untouched"),
        (where, "rewritten"),
    ]


def test_a_list_of_one_kind_is_its_items(admit: Admit) -> None:
    pods = yaml.safe_load(EXAMPLES.joinpath("native.yaml").read_text())
    listed = {"apiVersion": "v1", "kind": "PodList", "items": [{key: pods[key] for key in ("metadata", "spec")}]}
    done = admit("-f", "-", stdin=json.dumps(listed))
    assert done.stdout == admit("-f", EXAMPLES / "native.yaml").stdout


def test_what_asks_for_a_gpu_in_no_template_passes_with_a_warning(admit: Admit) -> None:
    model = "apiVersion: serving.example/v1\nkind: Model\nmetadata: {name: m}\n"
    model += "spec: {predictor: {resources: {limits: {nvidia.com/gpu: 1}}}}\n"
    done = admit("-f", "-", stdin=model)
    assert done.stdout == model
    assert "warning: Model default/m: spec.predictor.resources asks for a GPU, but is in no pod template" in done.stderr


UNQUOTED = """\
apiVersion: v1
kind: Pod
metadata: {name: unquoted, annotations: {castops.io/optimize: true, castops.io/slice-ratio: 2}}
spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""


def test_a_missing_quote_is_told_and_the_other_documents_are_admitted(admit: Admit) -> None:
    done = admit("-f", "-", stdin=f"{UNQUOTED}---\n{MIXED}", code=1)
    where = "error: Pod default/unquoted: metadata.annotations"
    assert done.stderr.splitlines() == [
        f'{where}[castops.io/optimize]: is the boolean true, not a text; quote it: "true"',
        f'{where}[castops.io/slice-ratio]: is the number 2, not a text; quote it: "2"',
    ]
    assert done.stdout == admit("-f", "-", stdin=MIXED).stdout
    explained = admit("-f", "-", "--explain", stdin=f"{UNQUOTED}---\n{MIXED}", code=1)
    assert "CronJob research/nightly" in explained.stdout
    assert 'quote it: "true"' in explained.stderr


@pytest.mark.parametrize(
    "text",
    [
        "---\napiVersion: v1\nkind: ConfigMap\n",
        "--- # first\napiVersion: v1\nkind: A\n---\n\n\nkind: B\napiVersion: v1",
        "apiVersion: v1\r\nkind: A\r\n---\r\napiVersion: v1\r\nkind: B\r\n",
        "# nothing but this\n",
        "\ufeffapiVersion: v1\nkind: \u00fc\n...\n",
        '{"apiVersion": "v1", "kind": "A"}',
        "",
    ],
)
def test_a_file_in_which_nothing_changes_comes_out_byte_for_byte(
    gpuslice_command: Path, tmp_path: Path, text: str
) -> None:
    written = tmp_path / "file.yaml"
    written.write_bytes(text.encode())
    for file, stdin in (str(written), b""), ("-", text.encode()):
        done = subprocess.run([gpuslice_command, "admit", "-f", file], check=True, capture_output=True, input=stdin)
        assert done.stdout == text.encode()


def test_files_stay_apart(admit: Admit, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("{kind: a, apiVersion: b}")
    (tmp_path / "c").write_text("---\n{kind: c, apiVersion: d}\n")
    (tmp_path / "e").write_text("{kind: e, apiVersion: f}\n")
    done = admit("-f", tmp_path / "a", "-f", tmp_path / "c", "-f", tmp_path / "e")
    assert done.stdout == ("{kind: a, apiVersion: b}\n---\n{kind: c, apiVersion: d}\n---\n{kind: e, apiVersion: f}\n")


def test_what_is_no_text_is_told(admit: Admit, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a: \xff\n")
    assert "is not text in UTF-8" in admit("-f", tmp_path / "file", code=1).stderr


def test_what_is_denied_is_left_out_with_the_reason_on_standard_error(admit: Admit) -> None:
    bad = "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {containers: [{name: a, resources: "
    bad += "{limits: {tencent.com/vcuda-core: 150}}}]}\n"
    done = admit("-f", "-", stdin=f"{bad}---\n{MIXED.split('---', maxsplit=1)[0]}", code=1)
    assert "error: Pod default/bad: denied: spec.containers[0].resources.limits[tencent.com/vcuda-core]" in done.stderr
    assert "kind: Pod" not in done.stdout
    assert "kind: ConfigMap" in done.stdout


def test_backend_overrides(admit: Admit) -> None:
    (document,) = yaml.safe_load_all(admit("-f", EXAMPLES / "native.yaml", "--backend", "extended").stdout)
    assert document["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu-shared": "3"}}


def test_policies_and_the_labels_of_the_namespace_decide(admit: Admit) -> None:
    plain = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, resources: "
    plain += "{limits: {nvidia.com/gpu: 1}}}]}\n"
    assert admit("-f", "-", "--policy", POLICY, stdin=plain).stdout == plain
    done = admit("-f", "-", "--policy", POLICY, "--namespace-labels", "tier=research", stdin=plain)
    annotations = list(yaml.safe_load_all(done.stdout))[-1]["metadata"]["annotations"]
    assert annotations["gpuslice.io/policy"] == "research/shared"


def test_explain_says_which_rule_decides_and_why_not_another(admit: Admit) -> None:
    args = ("-f", EXAMPLES / "hami.yaml", "--policy", POLICY, "--namespace-labels", "tier=research", "--explain")
    text = admit(*args).stdout
    assert "research/shared: decides" in text
    assert "research/production-stays-whole: does not match: the namespace's labels do not meet" in text
    assert "container main gets 2 x 3000Mi memory, 30% cores by the backend dra" in text
    explained: dict[str, Any] = json.loads(admit(*args, "-o", "json").stdout)["Pod default/hami"]
    assert explained["outcome"] == "rewritten"
    assert explained["asked"][0]["requests"] == [{"memory_bytes": 3000 * 2**20, "cores": 30, "devices": 2}]
    assert explained["rules"][1]["matched"] is True


def test_explain_says_once_why_a_pod_is_denied(admit: Admit) -> None:
    bad = "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {containers: [{name: a, resources: "
    bad += "{limits: {tencent.com/vcuda-core: 150}}}]}\n"
    done = admit("-f", "-", "--explain", stdin=bad, code=1)
    assert "Pod default/bad: denied, spec.containers[0].resources.limits[tencent.com/vcuda-core]" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("file", ["castslice.yaml", "native.yaml", "kai.yaml"])
def test_explain_tells_a_pod_with_a_slice_from_one_that_asks_for_none(admit: Admit, file: str) -> None:
    once = list(yaml.safe_load_all(admit("-f", EXAMPLES / file).stdout))[-1]
    again = admit("-f", "-", "--explain", stdin=yaml.safe_dump(once)).stdout
    assert again.startswith(f"Pod default/{once['metadata']['name']}: untouched, it has its slice already\n")
    plain = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, resources: "
    plain += "{limits: {nvidia.com/gpu: 1}}}]}\n"
    said = admit("-f", "-", "--explain", stdin=plain).stdout
    assert said.startswith("Pod default/p: untouched, it asks for no GPU in a dialect\n")


def test_explain_shows_pods_of_one_name_each(admit: Admit) -> None:
    text = EXAMPLES.joinpath("hami.yaml").read_text()
    explained = json.loads(admit("-f", "-", "--explain", "-o", "json", stdin=f"{text}---\n{text}").stdout)
    assert list(explained) == ["Pod default/hami", "Pod default/hami (2)"]


def test_explain_tells_of_a_node_selector_that_is_not_the_policys(admit: Admit, tmp_path: Path) -> None:
    rule = {"name": "all", "nodeSelector": {"pool": "gpu", "zone": "a"}}
    policy = {"apiVersion": "gpuslice.io/v1alpha1", "kind": "SlicePolicy", "metadata": {"name": "p"}}
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy | {"spec": {"rules": [rule]}}))
    pod = yaml.safe_load(EXAMPLES.joinpath("native.yaml").read_text())
    pod["spec"]["nodeSelector"] = {"pool": "cheap", "zone": "a"}
    args = ("-f", "-", "--policy", tmp_path / "policy.yaml", "--explain")
    said = admit(*args, stdin=yaml.safe_dump(pod)).stdout
    assert "  spec.nodeSelector[pool]: the pod's 'cheap' stays, although the policy says 'gpu'\n" in said
    assert "nodeSelector[zone]" not in said


@pytest.mark.parametrize(
    ("args", "stdin", "code", "complaint"),
    [
        (("-f", "-"), "a: [", 1, "error: <stdin>:1: "),
        (("-f", "-"), "{apiVersion: b, kind: a}\n---\n# c\n---\ne: }\n", 1, "error: <stdin>:5: "),
        (("-f", "-"), "# b\n---\nc: &x\n  d: *x\n", 1, "error: <stdin>:4: the anchor 'x' is used inside itself"),
        (
            ("-f", "-"),
            "a password\n",
            1,
            "error: <stdin>:1: is no manifest: write a mapping with apiVersion and kind\n",
        ),
        (("-f", "-"), "# b\n---\nsecret: 1\nkind: Pod\n", 1, "error: <stdin>:2: is no manifest: apiVersion must be "),
        (("-f", "-"), "[secret]", 1, "error: <stdin>:1: is no manifest"),
        (("-f", "-"), "{apiVersion: v1, kind: List, items: [secret]}", 1, "error: <stdin>:1: is no manifest"),
        (("-f", "-", "--policy", "/bin/true"), "", 1, "error: /bin/true: is not text in UTF-8"),
        (("-f", "-", "--explain", "-o", "diff"), "", 2, "has no -o diff"),
        (("-f", "/nowhere.yaml"), "", 1, "error: '/nowhere.yaml': No such file or directory"),
        (("-f", "/proc/self/task"), "", 1, "error: /proc/self/task: no manifest is in this folder"),
        ((), "", 2, "which pods? Give either -f"),
        (("-f", "-", "--namespace-labels", "x"), "", 2, "is not a label"),
        (("-f", "-", "--policy", EXAMPLES / "hami.yaml"), "", 1, "error: Pod hami: it is a Pod of v1, not a Sl"),
        (("-f", "-"), "apiVersion: v1\nkind: Pod\nspec: {containers: text}\n", 1, "this is not a pod"),
    ],
)
def test_mistakes_are_told_in_one_line(
    admit: Admit, args: tuple[str | Path, ...], stdin: str, code: int, complaint: str
) -> None:
    done = admit(*args, stdin=stdin, code=code)
    assert complaint in done.stderr
    assert "secret" not in done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1


def pairs() -> list[tuple[str, str, str]]:
    """The manifests in docs/dialects.md: file, before, after."""
    text = (ROOT / "docs" / "dialects.md").read_text()
    found = re.findall(
        r"Before \(\[examples/([a-z-]+\.yaml)\]\S*:\n\n```yaml\n(.*?)```\n\nAfter:\n\n```yaml\n(.*?)```",
        text,
        re.DOTALL,
    )
    assert {name.split(".")[0].split("-")[0] for name, _, _ in found} == set(NAMES)
    return found


@pytest.mark.parametrize(("file", "before", "after"), pairs(), ids=[file for file, _, _ in pairs()])
def test_the_documentation_shows_what_happens(admit: Admit, file: str, before: str, after: str) -> None:
    assert (EXAMPLES / file).read_text() == before
    assert admit("-f", EXAMPLES / file).stdout == after


def test_a_folder_is_all_manifests_in_it_and_a_table_shows_what_becomes_of_each(
    admit: Admit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "mixed.yml").write_text(MIXED)
    (tmp_path / "bad.yaml").write_text(RAY.replace("4Gi", "many"))
    (tmp_path / "notes.txt").write_text("no manifest")
    done = admit("-f", tmp_path, "-o", "table", code=1)
    lines = done.stdout.splitlines()
    assert [line.split()[:4] for line in lines[2:5]] == [
        ["RayCluster", "research/ray", "1", "denied"],
        ["CronJob", "research/nightly", "1", "rewritten"],
        ["Pod", "research/again", "1", "rewritten"],
    ]
    assert lines[-1] == "Pods: 1 denied, 2 rewritten, 1 ask for no GPU."


def test_a_folder_without_manifests_is_an_error(admit: Admit, tmp_path: Path) -> None:
    assert "no manifest is in this folder" in admit("-f", tmp_path, code=1).stderr


@pytest.mark.parametrize(
    "arguments", [[], ["--cluster", "-f", "-"], ["--cluster", "-o", "yaml"], ["--cluster", "--namespace-labels=a=b"]]
)
def test_pods_come_from_files_or_from_a_cluster(admit: Admit, arguments: list[str]) -> None:
    assert re.match("error: (which pods|--cluster has)", admit(*arguments, code=2).stderr)
