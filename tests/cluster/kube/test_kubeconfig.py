"""Several kubeconfig files mean to us what they mean to kubectl."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuslice.kube.client import credentials
from gpuslice.kube.errors import CredentialsError
from gpuslice_cluster.binaries import program

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = st.sampled_from(["a", "b"])
_CONTEXT = st.fixed_dictionaries({"cluster": _NAMES}, optional={"namespace": st.sampled_from(["one", "two"])})
_FILE = st.fixed_dictionaries(
    {},
    optional={
        "current-context": st.sampled_from(["", "a", "b"]),
        "contexts": st.dictionaries(_NAMES, _CONTEXT),
        "clusters": st.dictionaries(_NAMES, st.just({})),
    },
)


def _document(file: dict[str, Any], number: int) -> dict[str, Any]:
    """As the API has it: each cluster's address tells which file it is from."""
    document: dict[str, Any] = {"apiVersion": "v1", "kind": "Config"}
    if "current-context" in file:
        document["current-context"] = file["current-context"]
    if "contexts" in file:
        document["contexts"] = [{"name": name, "context": context} for name, context in file["contexts"].items()]
    if "clusters" in file:
        document["clusters"] = [
            {"name": name, "cluster": {"server": f"http://{name}.{number}.example"}} for name in file["clusters"]
        ]
    return document


def _kubectl(files: str) -> tuple[str, str] | None:
    """Server and namespace of the current context; None if there is none that is whole."""
    done = subprocess.run(
        [program("kubectl"), "config", "view", "--minify", "--output=json"],
        env={**os.environ, "KUBECONFIG": files},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return None
    found = json.loads(done.stdout)
    if not found["clusters"]:
        return None
    return found["clusters"][0]["cluster"]["server"], found["contexts"][0]["context"].get("namespace", "default")


def _ours(files: str) -> tuple[str, str] | None:
    try:
        found = credentials.load(None, {"KUBECONFIG": files})
    except CredentialsError:
        return None
    return found.server, found.namespace


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.lists(st.none() | _FILE, min_size=1, max_size=4))
def test_several_files_are_merged_as_kubectl_merges_them(tmp_path: Path, files: list[dict[str, Any] | None]) -> None:
    paths = [tmp_path / str(number) for number, _ in enumerate(files)]
    for number, (path, file) in enumerate(zip(paths, files, strict=True)):
        path.unlink(missing_ok=True)
        if file is not None:  # else the file is missing
            path.write_text(json.dumps(_document(file, number)))
    variable = ":".join(map(str, paths))

    assert _ours(variable) == _kubectl(variable)
