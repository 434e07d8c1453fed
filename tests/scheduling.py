"""Which tests share a worker: those of one cluster, in the order of `--collect-only`, without locks between workers."""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadScopeScheduling

#: What is one worker's, by how the names of its tests begin.
_TOGETHER: Final = {
    "tests/e2e/": "clusters with a node",
    # They publish GPUs on the control plane that all tests share, or need it to have none.
    "tests/cluster/test_dialects.py": "published GPUs",
    "tests/cluster/test_fleet.py": "published GPUs",
    "tests/cluster/test_forgery.py": "published GPUs",
    "tests/cluster/test_gpu_nodes.py": "published GPUs",
    "tests/cluster/test_metering.py": "published GPUs",
    # The controller as it is run does its work for all objects of that control plane.
    "tests/cluster/kube/test_controller.py": "published GPUs",
}


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Gives the groups to one worker each, the largest first, and every other test to the worker that is free."""

    def _split_scope(self, nodeid: str) -> str:
        return next((group for beginning, group in _TOGETHER.items() if nodeid.startswith(beginning)), nodeid)
