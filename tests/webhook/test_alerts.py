"""The alerts that we ship are about metrics that there are, before anything happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from prometheus_client import generate_latest

from gpuslice.controller.manager import Controller, Settings
from gpuslice.kube.client.api import Api
from gpuslice.kube.client.credentials import Credentials

if TYPE_CHECKING:
    from tests.webhook.support import ServerThread

ALERTS = Path(__file__).resolve().parents[2] / "deploy" / "alerts.yaml"


def test_every_alert_is_about_a_metric_with_these_labels(server: ServerThread) -> None:
    there = server.metrics()
    wanted = _series("gpuslice-webhook")
    assert len(wanted) == 5
    assert {each: there.get(each) for each in wanted} == dict.fromkeys(wanted, 0.0)


async def test_those_about_the_controller_are_about_its_own() -> None:
    api = Api(Credentials(server="http://127.0.0.1:1", tls=None), "tests")
    controller = Controller(api, Settings(namespace="home", identity="me"))
    there = generate_latest(controller.registry).decode().splitlines()
    wanted = _series("gpuslice-controller")
    assert wanted == ["gpuslice_controller_leader", "gpuslice_templates_missing"]
    assert {f"{name} 0.0" for name in wanted} <= set(there)


def _series(group: str) -> list[str]:
    """The metrics of a group's alerts, with the labels that they look at."""
    groups = {each["name"]: each["rules"] for each in yaml.safe_load(ALERTS.read_text())["spec"]["groups"]}
    wanted = []
    for rule in groups[group]:
        (name,) = re.findall(r"gpuslice_\w+", rule["expr"])
        reasons = re.findall(r'reason=~"([^"]+)"', rule["expr"])
        wanted += [f'{name}{{reason="{each}"}}' for each in reasons[0].split("|")] if reasons else [name]
    return wanted
