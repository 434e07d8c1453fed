"""GPU time of pods that the real scheduler places, metered by the controller as it is run, and held to budgets."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import sqlite3
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpuslice.accounting.ledger.ledger import Ledger
from gpuslice.accounting.metering import HOUR_MS, Entry, Holder, Kind
from gpuslice.model.slices import Slice
from gpuslice.node.gpus.gpu_state import GpuState
from gpuslice_cluster.clusters import ClusterError
from tests.cluster.gpu_nodes import GpuNode, gpu_node
from tests.cluster.kube.support import install_quotas
from tests.unit.node.making import gpu
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuslice_cluster.clusters import Cluster

GIB = 1024**3


class _Metered:
    """A ledger, and controllers that write to it, one after the other."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.path = folder / "ledger.sqlite3"
        self._configuration = folder / "configuration.yaml"
        self._cluster, self._namespace = cluster, namespace
        self._process: subprocess.Popen[bytes] | None = None
        self._log = (folder / "log").open("wb")

    def start(self, **budgets: Any) -> None:  # noqa: ANN401 - of the configuration
        document = {
            "apiVersion": "config.gpuslice.io/v1alpha1",
            "kind": "Configuration",
            "ledger": {"address": f"sqlite:{self.path}", "sample": "200ms", "prices": {"A100-40GB": "2.50"}},
            **({"budgets": budgets} if budgets else {}),
        }
        self._configuration.write_text(yaml.safe_dump(document))
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from gpuslice.cli.main import main; main()", "controller",
             f"--config={self._configuration}", f"--kubeconfig={self._cluster.kubeconfig}",
             f"--namespace={self._namespace}", "--identity=meter", "--address=127.0.0.1", "--port=0"],
            env=os.environ, stderr=self._log, stdout=self._log,
        )  # fmt: skip

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def query(self, statement: str, *parameters: str) -> list[tuple[Any, ...]]:
        if not self.path.exists():
            return []
        with contextlib.closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=10)) as connection:
            try:
                return connection.execute(statement, parameters).fetchall()
            except sqlite3.OperationalError:  # not made yet
                return []

    def weights(self, uuid: str) -> dict[str, int]:
        """What is held now, by pod."""
        found = [json.loads(text) for name, text in self.query("SELECT gpu, content FROM account") if name == uuid]
        return {each["pods"][0][1]: each["weight"] for account in found for each in account["holdings"] if each["pods"]}

    def wait_for(self, uuid: str, expected: dict[str, int]) -> None:
        eventually(lambda: self.weights(uuid) == expected, f"{expected} are metered", seen=lambda: self.weights(uuid))


@pytest.fixture
def node(cluster: Cluster, namespace: str) -> Iterator[GpuNode]:
    with gpu_node(cluster, namespace) as made:
        yield made


@pytest.fixture
def metered(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[_Metered]:
    install_quotas(cluster)
    made = _Metered(cluster, namespace, tmp_path)
    yield made
    made.kill()
    made._log.close()


def _gpus(count: int) -> list[GpuState]:
    """With UUIDs of their own: others' tests use the same cluster."""
    return [
        GpuState(gpu=dataclasses.replace(gpu(index, "A100-40GB"), uuid=f"GPU-{secrets.token_hex(16)}"))
        for index in range(count)
    ]


def test_every_millisecond_of_a_gpu_is_in_the_ledger_once_though_controllers_are_killed(
    node: GpuNode, metered: _Metered
) -> None:
    (state,) = _gpus(1)
    uuid = state.gpu.uuid
    node.publish([state])
    metered.start()
    half, quarter = node.start(Slice(memory=10 * GIB, cores=50), Slice(memory=10 * GIB))
    node.devices(half, quarter)
    expected = {half: 500_000, quarter: 250_000}
    metered.wait_for(uuid, expected)
    for turn in range(4):
        metered.kill()
        if turn == 1:  # while nobody looks
            node.end(quarter)
            (quarter,) = node.start(Slice(memory=8 * GIB))
            node.devices(quarter)
        metered.start()
        expected = {half: 500_000, quarter: 250_000 if turn == 0 else 200_000}
        metered.wait_for(uuid, expected)
    node.end(half)
    eventually(lambda: metered.weights(uuid).keys() == {quarter}, "the end is metered")
    metered.kill()
    ((since,),) = metered.query("SELECT since FROM account WHERE gpu = ?", uuid)
    entries = metered.query(
        "SELECT start, until, SUM(parts) FROM entry WHERE gpu = ? GROUP BY start, until ORDER BY start", uuid
    )
    assert entries[-1][1] == since
    assert all(parts == 1_000_000 for _, _, parts in entries)
    assert [start for start, _, _ in entries[1:]] == [until for _, until, _ in entries[:-1]], (
        "no gap, and nothing twice"
    )
    by_pod = (
        "SELECT pod_name, SUM(parts * (until - start)) FROM entry WHERE gpu = ? AND kind = 'charge' GROUP BY pod_name"
    )
    charged = dict(metered.query(by_pod, uuid))
    (alive,) = metered.query("SELECT MIN(start), MAX(until) FROM entry WHERE pod_name = ?", half)
    assert charged[half] == 500_000 * (alive[1] - alive[0]), "from its first moment to its last"


def test_a_namespace_runs_through_its_budget_and_is_told_at_each_step(
    node: GpuNode, metered: _Metered, cluster: Cluster, namespace: str
) -> None:
    now = int(time.time() * 1000)
    ledger = Ledger.open(f"sqlite:{metered.path}")
    ledger.begin()
    # 40 seconds of a GPU were used before, by a pod that is gone.
    before = Holder("old", "old", namespace, "old")
    start = now // HOUR_MS * HOUR_MS
    ledger.append([Entry(start, start + 40_000, 1_000_000, Kind.CHARGE, "old", "", "", 0, before)], (), (), 0)
    ledger.close()
    name = f"budget-{secrets.token_hex(4)}"
    budget = {
        "apiVersion": "gpuslice.io/v1alpha1",
        "kind": "GPUBudget",
        "metadata": {"name": name},
        "spec": {
            "namespaces": {"names": [namespace]},
            "amount": {"gpuMinutes": 1},
            "window": {"rolling": "30d"},
            "ladder": {"warn": [50, 75], "lower": {"at": 100}},
        },
    }
    cluster.kubectl("create", "-f", "-", input=json.dumps(budget))

    def status() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(cluster.kubectl("get", "gpubudget", name, "-o", "json")).get("status", {})
        return found

    def own() -> dict[str, Any]:
        return next((each for each in status().get("namespaces", ()) if each["name"] == namespace), {})

    def reasons() -> set[str]:
        found = json.loads(cluster.kubectl("get", "events", "--namespace", namespace, "-o", "json"))["items"]
        return {each["reason"] for each in found if each["involvedObject"]["kind"] == "Namespace"}

    try:
        metered.start()
        eventually(lambda: own().get("step") == "Warned", "the first warning", seen=status)
        assert own()["percent"] >= 66
        node.publish(_gpus(2))
        pods = node.start(Slice(cores=100), Slice(cores=100))
        node.devices(*pods)
        eventually(lambda: own().get("step") == "LowPriority", "it is used up", seen=status)
        found = status()
        assert (found["over"], found["counted"], found["summary"]) == (1, 1, f"{namespace} {own()['percent']}%")
        assert {each["type"]: each["status"] for each in found["conditions"]} == {"Accepted": "True", "Metered": "True"}
        assert own()["left"].startswith("-") or own()["left"] == "0.00 GPU-h"
        eventually(lambda: reasons() >= {"BudgetWarned", "BudgetLowPriority"}, "Events", seen=reasons)
        shown = cluster.kubectl("get", "gpubudget", name)
        assert namespace in shown
        assert "MOST USED" in shown
    finally:
        cluster.kubectl("delete", "gpubudget", name)


def test_one_line_of_the_configuration_is_a_budget_for_every_namespace(metered: _Metered, cluster: Cluster) -> None:
    def default() -> dict[str, Any]:
        found = json.loads(cluster.kubectl("get", "gpubudgets", "-o", "json"))["items"]
        return next((each for each in found if each["metadata"]["name"] == "gpuslice-default"), {})

    metered.start(gpuMinutesPerNamespace=600, timeZone="Europe/Berlin")
    eventually(lambda: default().get("status", {}).get("counted", 0) > 3, "it is in force", seen=default)
    assert default()["spec"] == {
        "amount": {"gpuMinutes": 600},
        "window": {"calendar": {"period": "month", "timeZone": "Europe/Berlin"}},
    }
    metered.kill()
    metered.start(gpuMinutesPerNamespace=700)
    eventually(lambda: default()["spec"]["amount"] == {"gpuMinutes": 700}, "it is another", seen=default)
    metered.kill()
    metered.start()
    eventually(lambda: not default(), "without the line it is gone", seen=default)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"window": {"halfLife": "0s"}}, "would forget at once what is used"),
        ({"window": {"rolling": "0d"}}, "would forget at once what is used"),
        ({"window": {"rolling": "7d", "halfLife": "7d"}}, "give one of calendar, rolling and halfLife"),
        ({"window": {"calendar": {"period": "fortnight"}}}, "Unsupported value"),
        ({"amount": {"gpuHours": 1, "money": "5"}}, "give one of gpuMinutes, gpuHours and money"),
        ({"amount": {"money": "0.00"}}, "a budget of nothing is no budget"),
        ({"amount": {"gpuHours": 0}}, "should be greater than or equal to 1"),
        ({"carryOver": 50}, "only a calendar's windows follow each other"),
        ({"ladder": {"lower": {"at": 100}, "gate": {"at": 90}}}, "steps go up"),
        ({"colour": "red"}, "unknown field"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(
    cluster: Cluster, metered: _Metered, changes: dict[str, Any], complaint: str
) -> None:
    assert not metered.path.exists(), "the API server itself refuses it"
    spec = {"amount": {"gpuHours": 10}, "window": {"rolling": "7d"}} | changes
    document = {
        "apiVersion": "gpuslice.io/v1alpha1",
        "kind": "GPUBudget",
        "metadata": {"name": f"senseless-{secrets.token_hex(4)}"},
        "spec": spec,
    }
    with pytest.raises(ClusterError) as failure:
        cluster.kubectl("create", "--validate=strict", "-f", "-", input=json.dumps(document))
    assert complaint in str(failure.value)
