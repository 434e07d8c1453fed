"""Whether the cluster serves claims as we need them: resource.k8s.io/v1, and shares of a device by capacity.

The API server drops fields that its feature gates keep off. So it is asked to make a slice with such a device, as a
trial that stores nothing, and the answer says what it would have kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpuslice.kube.decoding import decoder
from gpuslice.kube.errors import ApiError
from gpuslice.kube.resources import RESOURCE_SLICES
from gpuslice.model.devices import CAPACITY_MEMORY, DRIVER

if TYPE_CHECKING:
    from gpuslice.kube.client.api import Api

#: Of an address that the server does not know.
_NOT_SERVED = 404


class _Device(msgspec.Struct, rename="camel"):
    allow_multiple_allocations: bool = False


class _Spec(msgspec.Struct):
    devices: list[_Device] = []


class _Answer(msgspec.Struct):
    spec: _Spec


async def why_no_claims(api: Api, node: str) -> str:
    """Empty if claims are served. Raises an UnreachableError or an ApiError if that cannot be told."""
    try:
        answer = await api.call("POST", RESOURCE_SLICES.path(), parameters={"dryRun": "All"}, body=_trial(node))
    except ApiError as error:
        if error.code == _NOT_SERVED:
            return "the API server does not serve resource.k8s.io/v1"
        raise
    kept = decoder(_Answer)(answer).spec.devices
    if not all(device.allow_multiple_allocations for device in kept):
        return "the API server keeps no device that several claims share (feature gate DRAConsumableCapacity)"
    return ""


def _trial(node: str) -> dict[str, Any]:
    device = {
        "name": "trial",
        "allowMultipleAllocations": True,
        "capacity": {CAPACITY_MEMORY: {"value": "1Gi", "requestPolicy": {"default": "1Gi"}}},
    }
    pool = {"name": f"{node}/gpuslice-trial", "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "gpuslice-trial-"},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": [device]},
    }
