"""What is installed: whole, in order, with no more rights than it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.admission.registration import excluded_namespaces, webhook_configurations
from gpuslice.cli.commands import controller as cli_controller
from gpuslice.cli.options.configuration import of_command
from gpuslice.installing import configuration, parts
from gpuslice.installing.options import Options
from tools import install_manifest

if TYPE_CHECKING:
    from pathlib import Path

Object = dict[str, Any]


def _of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def _containers(objects: list[Object]) -> list[Object]:
    workloads = _of_kind(objects, "Deployment", "DaemonSet")
    return [container for each in workloads for container in each["spec"]["template"]["spec"]["containers"]]


def test_the_file_for_those_without_gpuslice_is_current() -> None:
    assert install_manifest.TARGET.read_text() == install_manifest.text(), (
        "run: .venv/bin/python -m tools.install_manifest"
    )


def test_everything_is_in_the_namespace_that_was_asked_for_and_of_the_image() -> None:
    objects = parts.objects(Options(namespace="elsewhere", image="registry.example/gpuslice:7"))

    assert {each["metadata"]["namespace"] for each in objects if "namespace" in each["metadata"]} == {"elsewhere"}
    assert {container["image"] for container in _containers(objects)} == {"registry.example/gpuslice:7"}
    assert "gpuslice-system" not in str(objects)


def test_what_others_need_comes_first() -> None:
    kinds = [each["kind"] for each in parts.objects(Options())]

    assert kinds[:3] == ["Namespace", "ResourceQuota", "CustomResourceDefinition"]
    for first, then in (
        ("ServiceAccount", "Deployment"),
        ("Service", "MutatingWebhookConfiguration"),
        ("Deployment", "ValidatingWebhookConfiguration"),
    ):
        assert kinds.index(first) < kinds.index(then)


@pytest.mark.parametrize("part", list(parts.PARTS))
def test_a_part_alone_is_the_same_as_among_the_others(part: str) -> None:
    alone, together = parts.objects(Options(), [part]), parts.objects(Options())

    assert alone
    assert all(each in together for each in alone)


def test_no_account_may_do_everything_and_secrets_are_only_our_own() -> None:
    for role in _of_kind(parts.objects(Options()), "Role", "ClusterRole"):
        for rule in role["rules"]:
            resources = rule.get("resources", ())
            named = [*resources, *rule.get("apiGroups", ()), *rule.get("nonResourceURLs", ())]
            assert "*" not in [*rule["verbs"], *named]
            if "secrets" in resources:
                assert role["kind"] == "Role"
                assert rule.get("resourceNames") == ["gpuslice-webhook-tls"] or rule["verbs"] == ["create"]
            if "patch" in rule["verbs"] and "mutatingwebhookconfigurations" in resources:
                assert rule["resourceNames"] == [webhook_configurations.NAME]


def test_only_the_agent_is_privileged() -> None:
    for container in _containers(parts.objects(Options())):
        context = container["securityContext"]
        if container["name"] == "agent":
            assert context["privileged"]
        else:
            assert context["readOnlyRootFilesystem"]
            assert not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_with_cert_manager_the_webhook_has_no_right_to_secrets_and_configurations() -> None:
    objects = parts.objects(Options(cert_manager=True))
    roles = [role for role in _of_kind(objects, "Role", "ClusterRole") if "webhook" in role["metadata"]["name"]]
    rights = str([role["rules"] for role in roles])

    assert "secrets" not in rights
    assert "admissionregistration.k8s.io" not in rights
    for each in _of_kind(objects, "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        assert each["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": "gpuslice-system/gpuslice-webhook"}


def test_with_cert_manager_the_certificate_is_for_the_name_that_the_api_server_calls_and_is_mounted() -> None:
    objects = parts.objects(Options(cert_manager=True))
    (serving,) = [each for each in _of_kind(objects, "Certificate") if "dnsNames" in each["spec"]]
    (deployment,) = [each for each in _of_kind(objects, "Deployment") if each["metadata"]["name"] == "gpuslice-webhook"]
    pod = deployment["spec"]["template"]["spec"]
    (service,) = _of_kind(objects, "Service")

    called = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert called in serving["spec"]["dnsNames"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "tls"]
    assert volume["secret"]["secretName"] == serving["spec"]["secretName"]
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "tls"]
    assert Options(cert_manager=True).configuration.webhook.certificate == f"{mount['mountPath']}/tls.crt"
    issuers = {each["metadata"]["name"] for each in _of_kind(objects, "Issuer")}
    assert {each["spec"]["issuerRef"]["name"] for each in _of_kind(objects, "Certificate")} == issuers


def test_the_webhook_has_more_time_to_end_than_it_takes_to_drain() -> None:
    (deployment,) = [
        each
        for each in _of_kind(parts.objects(Options()), "Deployment")
        if each["metadata"]["name"] == "gpuslice-webhook"
    ]
    pod = deployment["spec"]["template"]["spec"]

    assert 5 < Options().configuration.webhook.drain_seconds < pod["terminationGracePeriodSeconds"]
    assert deployment["spec"]["replicas"] >= 2


@pytest.mark.parametrize(
    "options",
    [
        Options(namespace="elsewhere"),
        Options(cert_manager=True),
        Options(url="https://webhook.example:8443"),
        Options(said={"gpus": {"sharedResource": "example.com/slot"}}),
        Options(said={"webhook": {"registration": {"excludedNamespaces": ["kube-system", "other"]}}}),
    ],
    ids=["service", "cert-manager", "url", "names", "namespaces"],
)
def test_the_controller_keeps_the_configurations_that_are_installed(options: Options, tmp_path: Path) -> None:
    """What it is started with is all it knows: it makes the very same of it."""
    written = tmp_path / "configuration.yaml"
    written.write_text(configuration.text(options))
    read = of_command(cli_controller.command, ["--config", str(written)])
    home = read.configuration.cluster.namespace
    assert home is not None
    installation = cli_controller.installation_of(home, read)

    assert installation is not None
    assert installation.namespace == options.namespace
    assert installation.name == webhook_configurations.NAME
    assert installation.webhooks == options.webhooks


@pytest.mark.parametrize("kind", ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"])
def test_our_own_pods_and_those_of_the_cluster_itself_do_not_depend_on_us(kind: str) -> None:
    (configuration,) = _of_kind(parts.objects(Options(namespace="elsewhere")), kind)
    for webhook in configuration["webhooks"]:
        if webhook["rules"][0]["resources"] == ["pods"]:
            (expression,) = webhook["namespaceSelector"]["matchExpressions"]
            assert expression["operator"] == "NotIn"
            assert set(expression["values"]) == {"kube-system", "elsewhere", *excluded_namespaces.OF_GPU_SOFTWARE}
            # NVIDIA's validators and KAI's reservations ask for whole GPUs, and are to get them.
            assert {"gpu-operator", "kai-resource-reservation"} <= set(expression["values"])
