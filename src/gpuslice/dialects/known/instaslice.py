"""InstaSlice, and NVIDIA's device plugin in its mixed strategy: `nvidia.com/mig-<profile>: n` is n MIG partitions.

A `+` cannot stand in a resource's name: the profile 1g.5gb+me is `nvidia.com/mig-1g.5gb.me`. A `-` can: 1g.24gb-me is
written so. Profiles of GPUs that we have no table of are taken by their form, with a warning: their nodes may offer
them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuslice.dialects import fields
from gpuslice.dialects.dialect import Asked, Dialect, PeerGate, PeerScheduler, ResourceFamily
from gpuslice.model.devices import MIG_RESOURCE_PREFIX, SHARED_SUFFIX
from gpuslice.model.requests import Request
from gpuslice.model.slices import known_mig_profiles

if TYPE_CHECKING:
    from gpuslice.dialects.pod_values import Said

_PROFILES: Final = {name.replace("+", "."): name for name in known_mig_profiles()}

PARTITIONS: Final = ResourceFamily(
    MIG_RESOURCE_PREFIX,
    # Compute slices, memory and what sets it apart.
    "([12347])g[.]([1-9][0-9]{0,2})gb([.+]me[.]all|[.+]me|[.+]gfx|-me)?",
    what="a MIG profile",
    examples=tuple(_PROFILES),
    excluded_suffix=SHARED_SUFFIX,
)
_FORM: Final = re.compile(PARTITIONS.form, re.ASCII)


def _read(said: Said) -> Asked:
    profiles = {name: profile_of(name) for name in said.amounts}
    warnings = tuple(
        f"{fields.resource_field(said.place, name)}: no GPU that gpuslice knows has the MIG profile {profile}; "
        "the pod waits for a node that offers it"
        for name, profile in profiles.items()
        if profile not in _PROFILES.values()
    )
    requests = tuple(Request(mig_profile=profiles[name], devices=count) for name, count in said.amounts.items())
    return Asked(requests=requests, resources=tuple(said.amounts), warnings=warnings)


def profile_of(resource: str) -> str:
    found = _FORM.fullmatch(resource.removeprefix(PARTITIONS.prefix))
    assert found is not None, "the name has its family's form"
    compute, memory, extension = found.groups()
    sign = "-" if (extension or "").startswith("-") else "+"
    return f"{compute}g.{memory}gb" + (f"{sign}{extension[1:]}" if extension else "")


DIALECT: Final = Dialect(
    name="instaslice",
    read=_read,
    prefixes=("nvidia.com/",),
    family=PARTITIONS,
    schedulers=(PeerScheduler(name="das-scheduler", knows="its own claims of partitions"),),
    gates=tuple(
        PeerGate(name=name, of="InstaSlice")
        for name in ("org.instaslice/accelarator", "instaslice.redhat.com/accelerator")
    ),
)
