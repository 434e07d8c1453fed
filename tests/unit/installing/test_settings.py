"""One settings file holds for all that is installed: what the API server asks, the webhook, and the agents."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.admission.registration import match_conditions, webhook_configurations
from gpuslice.cli.commands.agent import command
from gpuslice.dialects.settings_file import SettingsFile, parse
from gpuslice.installing import parts
from gpuslice.installing.options import Options
from gpuslice.model.policies import Backend
from tests.unit.dialects.test_settings_file import EXAMPLE

Object = dict[str, Any]


@pytest.fixture
def file() -> SettingsFile:
    return parse(EXAMPLE.read_text(), "file")


def _one(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def _pod(objects: list[Object], kind: str, name: str) -> Object:
    template: Object = _one(objects, kind, name)["spec"]["template"]
    return template


def test_the_conditions_are_about_the_names_in_the_file(file: SettingsFile) -> None:
    objects = parts.objects(Options(settings_file=file))
    (mutating,) = _one(objects, "MutatingWebhookConfiguration", webhook_configurations.NAME)["webhooks"]
    validating = _one(objects, "ValidatingWebhookConfiguration", webhook_configurations.NAME)["webhooks"][0]

    assert mutating["matchConditions"][0]["expression"] == match_conditions.may_ask(file.settings)
    assert '"example.com/gpu-slot"' in mutating["matchConditions"][0]["expression"]
    assert validating["matchConditions"][0]["expression"] == match_conditions.malformed(file.settings)
    assert '"example.com/gpu-slots"' in validating["matchConditions"][0]["expression"]


@pytest.mark.parametrize("cert_manager", [False, True], ids=["own-certificates", "cert-manager"])
def test_the_webhook_s_pods_read_the_file_as_it_was_written(file: SettingsFile, *, cert_manager: bool) -> None:
    objects = parts.objects(Options(settings_file=file, cert_manager=cert_manager))
    pod = _pod(objects, "Deployment", "gpuslice-webhook")["spec"]
    (container,) = pod["containers"]

    (argument,) = [each for each in container["args"] if each.startswith("--settings=")]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "settings"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "settings"]
    folder, _, name = argument.removeprefix("--settings=").rpartition("/")
    assert mount["mountPath"] == folder
    stored = _one(objects, "ConfigMap", volume["configMap"]["name"])
    assert stored["data"][name] == file.text


def test_another_file_makes_other_pods(file: SettingsFile) -> None:
    first, same, other = (
        _pod(parts.objects(Options(settings_file=each)), "Deployment", "gpuslice-webhook")
        for each in (file, file, parse(file.text + "\n# another line\n", "file"))
    )

    assert first == same
    assert first != other


def test_without_a_file_there_is_no_trace_of_one() -> None:
    assert "settings" not in str(parts.objects(Options(), ["webhook", "agent"]))


def test_agents_that_offer_slots_offer_those_that_the_webhook_reckons_with(file: SettingsFile) -> None:
    objects = parts.objects(Options(settings_file=file, node_backend=Backend.EXTENDED))
    (agent,) = _pod(objects, "DaemonSet", "gpuslice-agent")["spec"]["containers"]

    understood = command.make_context("agent", agent["args"][1:]).params
    assert understood["backend"] == "extended"
    assert understood["shared_resource"] == file.settings.shared_resource == "example.com/gpu-slot"
    assert understood["whole_resource"] == file.settings.whole_resource
    assert understood["slots_per_gpu"] == file.settings.slots_per_gpu == 4


def test_agents_offer_gpus_for_claims_unless_told_otherwise(file: SettingsFile) -> None:
    (agent,) = _pod(parts.objects(Options(settings_file=file)), "DaemonSet", "gpuslice-agent")["spec"]["containers"]

    assert not [each for each in agent["args"] if each.startswith(("--backend", "--slots", "--shared"))]


def test_a_webhook_outside_of_the_cluster_is_called_by_its_address_and_nothing_runs_inside() -> None:
    objects = parts.objects(Options(url="https://webhook.example:8443", namespace="elsewhere"))

    kinds = {each["kind"] for each in objects}
    assert kinds == {
        *("Namespace", "CustomResourceDefinition", "ServiceAccount"),
        *("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
        *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
    }
    called = [hook["clientConfig"] for each in objects for hook in each.get("webhooks", ())]
    assert called == [
        {"url": f"https://webhook.example:8443/{path}"} for path in ("mutate", "validate", "validate-policy")
    ]


def test_more_than_the_webhook_outside_can_be_asked_for() -> None:
    kinds = [each["kind"] for each in parts.objects(Options(url="https://webhook.example"), ["classes"])]

    assert set(kinds) == {"DeviceClass"}
