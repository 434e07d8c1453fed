"""nos: `nvidia.com/gpu-<N>gb: n` is a share of N GiB of memory, on each of n GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.dialects.dialect import Asked, Dialect, ResourceFamily
from gpuslice.model.requests import Request

if TYPE_CHECKING:
    from gpuslice.dialects.pod_values import Said

SIZES: Final = ResourceFamily(
    "nvidia.com/gpu-", "[1-9][0-9]{0,3}gb", what="a size in GB", examples=("1gb", "10gb"), suffix="gb"
)
_GIB: Final = 1024**3


def _read(said: Said) -> Asked:
    requests = tuple(Request(memory_bytes=_size(name), devices=count) for name, count in said.amounts.items())
    return Asked(requests=requests, resources=tuple(said.amounts))


def _size(resource: str) -> int:
    return int(resource.removeprefix(SIZES.prefix).removesuffix(SIZES.suffix)) * _GIB


DIALECT: Final = Dialect(name="nos", read=_read, prefixes=("nvidia.com/",), family=SIZES, memory_unit=_GIB)
