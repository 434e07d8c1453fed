"""Events about the node when one of its GPUs fails, and when it is fit again: `kubectl describe node` shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import structlog

from gpuslice.kube.events import Regarding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.kube.events import Recorder
    from gpuslice.node.gpus.gpu_state import GpuState
    from gpuslice.node.gpus.health import Illness


class GpuHealthEvents:
    """A listener of the GPU watcher."""

    def __init__(self, recorder: Recorder, node: str) -> None:
        self._recorder = recorder
        # The node's own name is its UID here, as the kubelet does it: `kubectl describe node` looks for that.
        self._node = Regarding(api_version="v1", kind="Node", name=node, uid=node)
        self._reported: dict[str, Illness] = {}
        self._log = structlog.get_logger().bind(node=node)

    async def gpus_observed(self, states: Sequence[GpuState]) -> None:
        """Records what changed since the last look."""
        ill = {state.gpu.uuid: state.illness for state in states if state.illness is not None}
        for uuid in self._reported.keys() - ill.keys():
            self._record("Normal", "GPUHealthy", f"{uuid} is in use again")
        for uuid in ill.keys() - self._reported.keys():
            self._record("Warning", "GPUUnhealthy", f"{uuid} {ill[uuid].describe()}: no new pods get it")
        self._reported = ill

    def _record(self, type_: Literal["Normal", "Warning"], reason: str, note: str) -> None:
        self._log.warning(note, operation="health")
        self._recorder.record(self._node, type_, reason, "WatchHealth", note)
