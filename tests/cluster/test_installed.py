"""An installation on a real API server is what was written: installing it again changes nothing, and says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.installing import parts
from gpuslice.installing.options import Options
from tests.cluster.webhooks import documents, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice_cluster.clusters import Cluster

Object = dict[str, Any]

NOWHERE = "https://127.0.0.1:1/"


@pytest.fixture
def installed(cluster: Cluster, namespace: str) -> Iterator[list[Object]]:
    """All of an installation, in a namespace of its own; what the whole cluster shares has names of its own."""
    home = f"{namespace}-installed"
    objects = [
        _renamed(each, home)
        for each in parts.objects(Options(namespace=home))
        if not each["kind"].endswith("WebhookConfiguration")
    ]
    objects += documents(home, NOWHERE)
    cluster.kubectl("apply", "-f", "-", input=listed(objects))
    yield objects
    # The definition of policies is the same for all tests.
    own = [each for each in objects if each["kind"] != "CustomResourceDefinition"]
    cluster.kubectl("delete", "--wait=false", "-f", "-", input=listed(own))


def test_installing_once_more_changes_nothing_and_says_so(cluster: Cluster, installed: list[Object]) -> None:
    (budget,) = (each for each in installed if each["kind"] == "PodDisruptionBudget")
    before = _version(cluster, budget)

    said = cluster.kubectl("apply", "-f", "-", input=listed(installed)).splitlines()

    assert len(said) == len(installed)
    changed = [line for line in said if not line.endswith(" unchanged")]
    # Of a budget kubectl always sends the selector, because it is to be replaced and not merged. Whatever kubectl says
    # then, the API server finds nothing to write.
    assert changed == [f"poddisruptionbudget.policy/{budget['metadata']['name']} configured"]
    assert _version(cluster, budget) == before


def test_there_is_no_difference_between_what_is_installed_and_what_was_written(
    cluster: Cluster, installed: list[Object]
) -> None:
    """Raises where there is one: kubectl then exits with 1."""
    assert cluster.kubectl("diff", "-f", "-", input=listed(installed)) == ""


def _version(cluster: Cluster, written: Object) -> str:
    metadata = written["metadata"]
    place = (written["kind"], metadata["name"], "--namespace", metadata["namespace"])
    return cluster.kubectl("get", *place, "-o", "jsonpath={.metadata.generation}")


def _renamed(written: Object, home: str) -> Object:
    if "namespace" in written["metadata"] or written["kind"] in ("Namespace", "CustomResourceDefinition"):
        return written
    name = f"{home}-{written['metadata']['name']}"
    renamed = written | {"metadata": written["metadata"] | {"name": name}}
    if "roleRef" in written:
        renamed["roleRef"] = written["roleRef"] | {"name": name}
    return renamed
