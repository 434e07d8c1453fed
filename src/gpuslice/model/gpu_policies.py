"""What can be said about a GPU of a node: what it is published as, and how it is filled."""

from __future__ import annotations

from enum import StrEnum


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
