"""One configuration holds for all that is installed: what the API server asks, the webhook, controller and agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.admission.registration import match_conditions, webhook_configurations
from gpuslice.cli.commands import agent, controller, webhook
from gpuslice.cli.options.configuration import of_command
from gpuslice.configuration import effective, reading
from gpuslice.configuration.effective import Layer
from gpuslice.configuration.problems import ConfigurationError
from gpuslice.installing import configuration, parts
from gpuslice.installing.options import Options
from tests.unit.configuration.documents import EXAMPLE

if TYPE_CHECKING:
    from pathlib import Path

    import click

    from gpuslice.configuration.effective import Effective

Object = dict[str, Any]

PODS: list[tuple[str, str, click.Command]] = [
    ("Deployment", "gpuslice-webhook", webhook.command),
    ("Deployment", "gpuslice-controller", controller.command),
    ("DaemonSet", "gpuslice-agent", agent.command),
]


@pytest.fixture
def file() -> Effective:
    return effective.load([Layer("file", reading.read_file(EXAMPLE))])


def _one(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def _pod(objects: list[Object], kind: str, name: str) -> Object:
    template: Object = _one(objects, kind, name)["spec"]["template"]
    return template


def _understood(objects: list[Object], kind: str, name: str, command: click.Command, folder: Path) -> Effective:
    """What a pod's process makes of its arguments and of what is mounted."""
    pod = _pod(objects, kind, name)["spec"]
    (container,) = pod["containers"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "configuration"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "configuration"]
    for file, text in _one(objects, "ConfigMap", volume["configMap"]["name"])["data"].items():
        (folder / file).write_text(text)
    _, *arguments = container["args"]
    assert all(each.startswith(f"--config={mount['mountPath']}/") for each in arguments), "nothing is said twice"
    return of_command(command, [each.replace(mount["mountPath"], str(folder)) for each in arguments])


def test_the_conditions_are_about_the_names_in_the_file(file: Effective) -> None:
    objects = parts.objects(Options(said=file.said))
    (mutating,) = _one(objects, "MutatingWebhookConfiguration", webhook_configurations.NAME)["webhooks"]
    validating = _one(objects, "ValidatingWebhookConfiguration", webhook_configurations.NAME)["webhooks"][0]

    assert mutating["matchConditions"][0]["expression"] == match_conditions.may_ask(file.settings)
    assert '"example.com/gpu-slot"' in mutating["matchConditions"][0]["expression"]
    assert validating["matchConditions"][0]["expression"] == match_conditions.malformed(file.settings)
    assert '"example.com/gpu-slots"' in validating["matchConditions"][0]["expression"]


@pytest.mark.parametrize("cert_manager", [False, True], ids=["own-certificates", "cert-manager"])
@pytest.mark.parametrize(("kind", "name", "command"), PODS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_pod_understands_the_same_and_that_is_what_the_file_says(
    file: Effective, tmp_path: Path, kind: str, name: str, command: click.Command, *, cert_manager: bool
) -> None:
    options = Options(said=file.said, cert_manager=cert_manager)

    understood = _understood(parts.objects(options), kind, name, command, tmp_path)

    assert understood.configuration == options.configuration
    assert understood.settings == file.settings
    gpus = understood.configuration.gpus
    assert gpus == file.configuration.gpus
    assert (gpus.backend, gpus.slots_per_gpu, gpus.shared_resource) == ("extended", 4, "example.com/gpu-slot")
    assert understood.configuration.agent.kubelet.enabled
    assert understood.configuration.logging.form == "json"
    assert bool(understood.configuration.webhook.hosts) != cert_manager
    assert bool(understood.configuration.webhook.certificate) == cert_manager


@pytest.mark.parametrize(("kind", "name"), [pod[:2] for pod in PODS])
def test_another_file_makes_other_pods(file: Effective, kind: str, name: str) -> None:
    other = effective.merged(file.said, {"gpus": {"slotsPerGpu": 5}})
    first, same, changed = (
        _pod(parts.objects(Options(said=said)), kind, name) for said in (file.said, dict(file.said), other)
    )

    assert first == same
    assert first["metadata"]["annotations"] != changed["metadata"]["annotations"]
    assert first["spec"] == changed["spec"]


def test_ports_folders_and_times_follow_the_file() -> None:
    said = {
        "webhook": {"port": 9443, "metricsPort": 9080, "drain": "1m"},
        "controller": {"port": 9081},
        "agent": {"state": "/srv/state", "metrics": "0.0.0.0:9600", "kubelet": {"folder": "/srv/kubelet"}},
    }
    objects = parts.objects(Options(said=said))
    pods = {name: _pod(objects, kind, name)["spec"] for kind, name, _ in PODS}
    ports = {name: [port["containerPort"] for port in pod["containers"][0]["ports"]] for name, pod in pods.items()}

    assert ports == {"gpuslice-webhook": [9443, 9080], "gpuslice-controller": [9081], "gpuslice-agent": [9600]}
    assert pods["gpuslice-webhook"]["terminationGracePeriodSeconds"] == 120
    mounted = {each["name"]: each["mountPath"] for each in pods["gpuslice-agent"]["containers"][0]["volumeMounts"]}
    shared = {
        each["name"]: each["hostPath"]["path"] for each in pods["gpuslice-agent"]["volumes"] if "hostPath" in each
    }
    assert shared.items() <= mounted.items()
    assert (shared["state"], shared["kubelet"], shared["cdi"]) == ("/srv/state", "/srv/kubelet", "/var/run/cdi")


def test_agents_without_metrics_have_no_port_and_no_probe_at_one() -> None:
    objects = parts.objects(Options(said={"agent": {"metrics": "none"}}), ["agent"])
    (container,) = _pod(objects, "DaemonSet", "gpuslice-agent")["spec"]["containers"]
    assert not container.keys() & {"ports", "startupProbe", "livenessProbe"}


def test_a_file_that_contradicts_the_installation_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"configuration: webhook\.hosts: which certificate\?"):
        parts.objects(Options(cert_manager=True, said={"webhook": {"hosts": ["webhook.example"]}}))


@pytest.mark.parametrize("part", ["webhook", "controller", "agent"])
def test_what_reads_the_configuration_brings_it_along(part: str) -> None:
    made = [each["metadata"]["name"] for each in parts.objects(Options(), [part]) if each["kind"] == "ConfigMap"]
    assert made == [configuration.NAME]


def test_agents_offer_gpus_as_the_cluster_serves_them_unless_told_otherwise(tmp_path: Path) -> None:
    understood = _understood(parts.objects(Options()), *PODS[2], tmp_path)
    assert understood.configuration.gpus.backend == "auto"


def test_a_webhook_outside_of_the_cluster_is_called_by_its_address_and_nothing_runs_inside() -> None:
    objects = parts.objects(Options(url="https://webhook.example:8443", namespace="elsewhere"))

    kinds = {each["kind"] for each in objects}
    assert kinds == {
        *("Namespace", "ResourceQuota", "CustomResourceDefinition", "ServiceAccount"),
        *("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
        *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    }
    called = [hook["clientConfig"] for each in objects for hook in each.get("webhooks", ())]
    assert called == [
        {"url": f"https://webhook.example:8443/{path}"} for path in ("mutate", "validate", "validate-policy")
    ]


def test_more_than_the_webhook_outside_can_be_asked_for() -> None:
    kinds = [each["kind"] for each in parts.objects(Options(url="https://webhook.example"), ["classes"])]

    assert set(kinds) == {"DeviceClass"}
