"""What the node's owner says about each GPU: share it, partition it, give it out whole, or keep it.

A file for a whole node, and options for a single GPU:

    default = "share"           # share, mig, whole or reserve
    placement = "pack"          # fill one GPU before the next, or "spread" over the least loaded
    unhealthy = "NoSchedule"    # what an unhealthy GPU means for pods: NoSchedule, or NoExecute to evict them
    mig-mode = "switch"         # switch MIG mode of idle GPUs as pods need it, or "keep" the mode that each is in

    [gpus]                      # by UUID, index or model, the first of these that is there
    "GPU-5a2c4a4e-0b1e-5d0e-9a53-1f2b8f6c2a11" = "mig"
    3 = "reserve"
    "A100-40GB" = "whole"

MIG mode is switched when a pod needs it, on a GPU that nobody uses: on to make the first partition, off to share a GPU
that has none left. Where that fails (some GPUs need a reset, which a monitoring agent on them prevents), only what the
GPU's mode allows is published for a while, so that the next pods go elsewhere. With "keep" the agent never switches.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from gpuslice.model.errors import GpusliceError
from gpuslice.model.gpus import short_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from gpuslice.node.gpus.hardware import Gpu

_E = TypeVar("_E", bound=StrEnum)


class GpuPolicyError(GpusliceError):
    """Raised for a policy file or option that makes no sense."""


class Mode(StrEnum):
    """What a GPU is published as."""

    SHARE = "share"  # a device that many can have a share of and, if it can, its MIG partitions
    MIG = "mig"  # its MIG partitions alone
    WHOLE = "whole"  # one device for one pod at a time
    RESERVE = "reserve"  # nothing


class Placement(StrEnum):
    """Which GPU a new share goes to."""

    PACK = "pack"
    SPREAD = "spread"


class TaintEffect(StrEnum):
    """What an unhealthy GPU means for pods."""

    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


class MigMode(StrEnum):
    """Whether the agent may change a GPU's MIG mode."""

    SWITCH = "switch"
    KEEP = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPolicies:
    """The rules of one node."""

    default: Mode = Mode.SHARE
    placement: Placement = Placement.PACK
    unhealthy: TaintEffect = TaintEffect.NO_SCHEDULE
    mig_mode: MigMode = MigMode.SWITCH
    #: By UUID, index or model.
    gpus: Mapping[str, Mode] = field(default_factory=lambda: MappingProxyType({}))

    def mode(self, gpu: Gpu) -> Mode:
        """What is said about that GPU: its UUID before its index before its model."""
        for name in (gpu.uuid, str(gpu.index), short_name(gpu.product)):
            if name in self.gpus:
                return self.gpus[name]
        return self.default

    def with_options(self, options: Iterable[str]) -> GpuPolicies:
        """With `GPU=mode` from the command line, which say more than the file."""
        gpus = dict(self.gpus)
        for option in options:
            name, separator, mode = option.partition("=")
            if not separator or not name:
                raise GpuPolicyError(f"--gpu-policy {option!r}: write GPU=MODE, for example 0=mig")
            gpus[name] = _one_of(Mode, mode, f"--gpu-policy {option!r}")
        return replace(self, gpus=MappingProxyType(gpus))


def from_file(path: Path) -> GpuPolicies:
    """The rules in a TOML file, as above."""
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise GpuPolicyError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise GpuPolicyError(f"{path} is not TOML: {error}") from None
    return from_table(table, str(path))


def from_table(table: Mapping[str, Any], where: str) -> GpuPolicies:
    """The same, already read."""
    known = {"default", "placement", "unhealthy", "mig-mode", "gpus"}
    for key in table:
        if key not in known:
            raise GpuPolicyError(f"{where} has an unknown key {key!r}: known are {', '.join(sorted(known))}")
    gpus = table.get("gpus", {})
    if not isinstance(gpus, dict):
        raise GpuPolicyError(f"{where}: gpus is not a table of GPU = mode")
    return GpuPolicies(
        default=_one_of(Mode, table.get("default", Mode.SHARE), f"{where}: default"),
        placement=_one_of(Placement, table.get("placement", Placement.PACK), f"{where}: placement"),
        unhealthy=_one_of(TaintEffect, table.get("unhealthy", TaintEffect.NO_SCHEDULE), f"{where}: unhealthy"),
        mig_mode=_one_of(MigMode, table.get("mig-mode", MigMode.SWITCH), f"{where}: mig-mode"),
        gpus=MappingProxyType({name: _one_of(Mode, mode, f"{where}: gpus.{name}") for name, mode in gpus.items()}),
    )


def _one_of(kind: type[_E], value: object, where: str) -> _E:
    try:
        return kind(str(value))
    except ValueError:
        raise GpuPolicyError(f"{where}: {value!r} is none of {', '.join(kind)}") from None
