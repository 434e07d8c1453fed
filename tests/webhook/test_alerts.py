"""The alerts that we ship are about metrics that there are, before anything happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from tests.webhook.support import ServerThread

ALERTS = Path(__file__).resolve().parents[2] / "deploy" / "alerts.yaml"


def test_every_alert_is_about_a_metric_with_these_labels(server: ServerThread) -> None:
    (group,) = yaml.safe_load(ALERTS.read_text())["spec"]["groups"]
    there = server.metrics()
    wanted = []
    for rule in group["rules"]:
        (name,) = re.findall(r"gpuslice_\w+", rule["expr"])
        reasons = re.findall(r'reason=~"([^"]+)"', rule["expr"])
        wanted += [f'{name}{{reason="{each}"}}' for each in reasons[0].split("|")] if reasons else [name]
    assert len(wanted) == 5
    assert {each: there.get(each) for each in wanted} == dict.fromkeys(wanted, 0.0)
