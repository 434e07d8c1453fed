"""The files that the document gives an API server are those that real API servers of the tests run with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from gpuslice_cluster import control_plane
from gpuslice_cluster.clusters import new_layout

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "install.md"


def _written(name: str) -> Any:  # noqa: ANN401 - whatever the document says
    found = re.search(
        rf"^cat >(/\S*/{re.escape(name)}) <<END\n(.*?)^END$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found is not None, name
    return yaml.safe_load(found[2])


def test_an_api_server_is_told_the_same_as_in_our_clusters(tmp_path: Path) -> None:
    control_plane.plan(new_layout(tmp_path))
    ours = json.loads((tmp_path / "admission.json").read_text())
    documented = _written("admission.yaml")
    for plugin in (*ours["plugins"], *documented["plugins"]):
        assert plugin["configuration"].pop("kubeConfigFile").endswith("/webhooks.kubeconfig")
    assert documented == ours

    ours, documented = json.loads((tmp_path / "webhooks.kubeconfig").read_text()), _written("webhooks.kubeconfig")
    for (user,) in (ours["users"], documented["users"]):
        assert user["user"].keys() == {"client-certificate", "client-key"}
        del user["user"]
    assert documented == ours
