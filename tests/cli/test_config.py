"""`--config FILE`, `gpuslice config`, and what else an installation chooses, as a person writes it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.configuration.documents import HEADER

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = "deploy/configuration.yaml"

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


def _run(
    command: Path, *arguments: str, text: str = "", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "GPUSLICE_CONFIG"}
    return subprocess.run(
        [command, *arguments],
        capture_output=True,
        text=True,
        check=False,
        input=text,
        cwd=ROOT,
        env=inherited | (environment or {}),
    )


def _documents(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_admit_reads_the_names_and_presets_of_the_file_and_no_others(gpuslice_command: Path) -> None:
    with_file = _run(gpuslice_command, "admit", "-f", "-", "--config", EXAMPLE, text=POD)
    without = _run(gpuslice_command, "admit", "-f", "-", text=POD)

    (pod,) = _documents(with_file)
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"example.com/gpu-slot": "1"}
    (untouched,) = _documents(without)
    assert untouched["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}


def test_admit_reckons_with_the_slots_of_the_file(gpuslice_command: Path) -> None:
    done = _run(gpuslice_command, "admit", "-f", "-", "--config", EXAMPLE, "--backend", "dra", "-o", "yaml", text=POD)

    assert _documents(done)[-1]["metadata"]["annotations"]["gpuslice.io/slice"] == "main: 1/4 of the memory, 25% cores"


#: Each command that takes a configuration, with what else it needs.
COMMANDS = {
    "admit": ["-f", "-"],
    "agent": [],
    "controller": [],
    "manifests": [],
    "webhook": ["--certificate", "tls.crt", "--key", "tls.key"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("by", ["flag", "variable"])
def test_every_command_refuses_a_file_that_makes_no_sense_and_tells_all_of_it(
    gpuslice_command: Path, tmp_path: Path, command: str, by: str
) -> None:
    bad = tmp_path / "configuration.yaml"
    bad.write_text(f"{HEADER}gpus: {{slotsPerGpu: 0}}\nwebhok: {{}}\n")
    given = ["--config", str(bad)] if by == "flag" else []
    environment = {} if by == "flag" else {"GPUSLICE_CONFIG": str(bad)}

    done = _run(gpuslice_command, command, *COMMANDS[command], *given, text=POD, environment=environment)

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: {bad}: gpus.slotsPerGpu: 0 is not a number of slots; write 1 to 1000",
        f"error: {bad}: webhok: is not known; did you mean webhook?",
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_not_there_is_named(gpuslice_command: Path, tmp_path: Path, command: str) -> None:
    absent = tmp_path / "absent"
    done = _run(gpuslice_command, command, *COMMANDS[command], "--config", str(absent), text=POD)
    assert done.returncode == 1
    assert f"{absent}: cannot be read: No such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["webhook", "--port", "x"], "--port: 'x' is not a port; write 0 to 65535"),
        (["webhook", "--port", "70000"], "--port: 70000 is not a port"),
        (["webhook", "--drain", "10"], "--drain: '10' is not a duration"),
        (["webhook", "--max-body", "4mb"], "--max-body: '4mb' is not an amount of bytes"),
        (["controller", "--webhook-service", "a"], "--webhook-service: 'a' is not a namespace and a name"),
        (
            ["controller", "--webhook-service", "a/b", "--webhook-url", "https://a.example"],
            "--webhook-url: 'https://a.example' and the service 'a/b' are two webhooks",
        ),
        (["agent", "--slots-per-gpu", "0"], "--slots-per-gpu: 0 is not a number of slots"),
        (["agent", "--shared-resource", "gpu"], "--shared-resource: 'gpu' is not the name of an extended resource"),
        (["agent", "--gpu-policy", "mig"], "--gpu-policy 'mig': write GPU=MODE, for example 0=mig"),
        (["agent", "--gpu-policy", "=mig"], "--gpu-policy '=mig': write GPU=MODE"),
        (["agent", "--gpu-policy", "0=split"], "--gpu-policy: 'split' is none of share, mig, whole, reserve"),
        (["agent", "--check-interval", "1h"], "--check-interval: '1h' is out of range"),
    ],
)
def test_a_flag_that_makes_no_sense_is_named(gpuslice_command: Path, arguments: list[str], message: str) -> None:
    done = _run(gpuslice_command, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_check_tells_every_problem_and_exits_with_1(gpuslice_command: Path, tmp_path: Path) -> None:
    good = _run(gpuslice_command, "config", "check", EXAMPLE)
    assert (good.returncode, good.stdout) == (0, f"{EXAMPLE}: no problem\n")

    bad = tmp_path / "configuration.yaml"
    bad.write_text("webhook: {prot: 1, port: x}\n")
    found = _run(gpuslice_command, "config", "check", str(bad))
    assert found.returncode == 1
    assert [line.removeprefix(f"{bad}: ").partition(":")[0] for line in found.stderr.splitlines()] == [
        "apiVersion",
        "kind",
        "webhook.prot",
        "webhook.port",
    ]
    assert _run(gpuslice_command, "config", "check", str(tmp_path / "absent")).returncode == 1


def test_show_says_what_would_be_in_force_and_where_it_comes_from(gpuslice_command: Path) -> None:
    arguments = ("config", "show", "-o", "json", "webhook", "--config", EXAMPLE, "--port", "9443")
    shown = json.loads(_run(gpuslice_command, *arguments).stdout)

    assert shown["configuration"]["webhook"]["port"] == 9443
    assert shown["configuration"]["webhook"]["drain"] == "15s"
    assert [shown["sources"][f"webhook.{key}"] for key in ("port", "drain", "maxConnections")] == [
        "--port",
        EXAMPLE,
        "default",
    ]
    by_variable = _run(
        gpuslice_command, "config", "show", "agent", "--gpu-policy", "7=mig", environment={"GPUSLICE_CONFIG": EXAMPLE}
    )
    assert "'7': mig" in by_variable.stdout
    assert yaml.safe_load(by_variable.stdout)["gpus"]["policies"] == {"7": "mig", "A100-40GB": "whole"}


def test_what_is_shown_is_a_file_that_says_the_same(gpuslice_command: Path, tmp_path: Path) -> None:
    written = tmp_path / "shown.yaml"
    written.write_text(_run(gpuslice_command, "config", "show", "--config", EXAMPLE).stdout)
    once = _run(gpuslice_command, "config", "show", "--config", str(written)).stdout
    assert yaml.safe_load(once) == yaml.safe_load(written.read_text())
    written.write_text(once)
    assert _run(gpuslice_command, "config", "show", "--config", str(written)).stdout == once


def test_show_of_what_has_no_configuration_is_refused(gpuslice_command: Path) -> None:
    done = _run(gpuslice_command, "config", "show", "run", "--limit", "4GiB")
    assert done.returncode == 2
    assert "'run' has no configuration; write one of webhook, controller, agent, manifests" in done.stderr


def test_a_program_that_is_run_does_not_load_the_configuration(gpuslice_command: Path) -> None:
    code = (
        "import sys\n"
        "from gpuslice.cli.main import command\n"
        "command.main(['run', '--help'], standalone_mode=False)\n"
        "print([name for name in sys.modules if name.startswith('gpuslice.configuration')])\n"
    )
    done = subprocess.run(
        [gpuslice_command.parent / "python", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_agent_without_a_file_loads_neither_dialects_nor_yaml(gpuslice_command: Path) -> None:
    code = (
        "import sys\n"
        "from gpuslice.cli.commands import agent\n"
        "from gpuslice.cli.options.configuration import Configured\n"
        "context = agent.command.make_context('agent', ['--state', '/tmp/a', '--metrics', 'none'])\n"
        "vars(agent.command.callback)['configured'].take(dict(context.params))\n"
        "print([name for name in sys.modules if name == 'yaml' or name.startswith('gpuslice.dialects')])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GPUSLICE_CONFIG"}
    done = subprocess.run(
        [gpuslice_command.parent / "python", "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == "[]\n"


def test_the_installation_and_the_admission_policy_are_made_by_the_file(gpuslice_command: Path) -> None:
    installed = _run(gpuslice_command, "manifests", "--config", EXAMPLE, "--namespace", "elsewhere")
    alone = _run(gpuslice_command, "manifests", "--config", EXAMPLE, "--admission-policy")

    (stored,) = [each for each in _documents(installed) if each["kind"] == "ConfigMap"]
    (text,) = stored["data"].values()
    written = yaml.safe_load((ROOT / EXAMPLE).read_text())
    found = yaml.safe_load(text)
    assert (found["gpus"], found["dialects"]) == (written["gpus"], written["dialects"])
    assert found["webhook"]["drain"] == "15s"
    assert found["cluster"] == {"namespace": stored["metadata"]["namespace"]} == {"namespace": "elsewhere"}
    policies = str(_documents(alone))
    assert "castops.io" not in policies
    for name in ("example.com/gpu-slot", "example.com/share-gpu", "example.com/workload", '"notebook": 1'):
        assert name in policies


def test_agents_that_offer_slots_are_an_option(gpuslice_command: Path) -> None:
    (stored,) = [
        each
        for each in _documents(_run(gpuslice_command, "manifests", "--node-backend", "extended", "--only", "agent"))
        if each["kind"] == "ConfigMap"
    ]
    (text,) = stored["data"].values()
    assert yaml.safe_load(text)["gpus"] == {"backend": "extended"}


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
