"""Who may connect to what is installed."""

from __future__ import annotations

from typing import Any

from gpuslice.installing import client_authority, parts
from gpuslice.installing.options import Options

Object = dict[str, Any]


def _policies(options: Options) -> dict[str, Object]:
    found = [each for each in parts.objects(options) if each["kind"] == "NetworkPolicy"]
    return {each["metadata"]["name"]: each["spec"] for each in found}


def _pods(objects: list[Object]) -> dict[str, Object]:
    return {
        each["metadata"]["name"]: each["spec"]["template"] for each in objects if "template" in each.get("spec", {})
    }


def test_every_pod_of_ours_has_a_policy_for_each_port_and_no_other() -> None:
    pods = _pods(parts.objects(Options()))
    policies = _policies(Options())
    assert policies.keys() == pods.keys()
    for name, spec in policies.items():
        assert spec["podSelector"]["matchLabels"].items() <= pods[name]["metadata"]["labels"].items()
        (container,) = pods[name]["spec"]["containers"]
        opened = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
        assert opened == {port["containerPort"] for port in container["ports"]}
        assert "hostNetwork" not in pods[name]["spec"], "there a policy means nothing"


def test_metrics_are_for_labelled_namespaces_and_reviews_for_all() -> None:
    policies = _policies(Options())
    for spec in policies.values():
        assert spec["ingress"][0]["from"] == [{"namespaceSelector": {"matchLabels": {"metrics": "enabled"}}}]
    assert "from" not in policies["gpuslice-webhook"]["ingress"][1]


def test_reviews_are_not_for_pods_if_their_networks_are_known() -> None:
    policies = _policies(Options(pod_networks=("10.244.0.0/16", "10.245.0.0/16", "fd00:10:244::/56")))
    assert policies["gpuslice-webhook"]["ingress"][1]["from"] == [
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.244.0.0/16", "10.245.0.0/16"]}},
        {"ipBlock": {"cidr": "::/0", "except": ["fd00:10:244::/56"]}},
    ]
    one = _policies(Options(pod_networks=("10.244.0.0/16",)))
    assert one["gpuslice-webhook"]["ingress"][1]["from"][1] == {"ipBlock": {"cidr": "::/0"}}


def test_the_webhook_mounts_the_authority_whether_it_is_there_or_not() -> None:
    pod = _pods(parts.objects(Options()))["gpuslice-webhook"]["spec"]
    assert {"name": "client-authority", "configMap": {"name": client_authority.NAME, "optional": True}} in pod[
        "volumes"
    ]
    (container,) = pod["containers"]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "client-authority")
    assert Options().configuration.webhook.client_authority == f"{mount['mountPath']}/ca.crt"
    assert not [each for each in parts.objects(Options()) if each["metadata"]["name"] == client_authority.NAME]
    (made,) = (
        each
        for each in parts.objects(Options(client_authority="PEM", namespace="elsewhere"))
        if each["metadata"]["name"] == client_authority.NAME
    )
    assert (made["metadata"]["namespace"], made["data"]) == ("elsewhere", {"ca.crt": "PEM"})
