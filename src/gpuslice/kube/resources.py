"""Kinds of objects, as the API server's addresses name them, and the one part that all of them have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote

import msgspec

from gpuslice.kube.errors import ApiError


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object: where it is found."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str = "", name: str = "", part: str = "") -> str:
        """The address of one object, or of all: of a namespace or, without one, of the cluster.

        Raises ApiError for a name that nothing can have: names are others' to choose, and must not lead elsewhere.
        """
        steps = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        steps += ["namespaces", _segment(namespace)] if namespace else []
        steps += [self.plural, _segment(name), part]
        return "/".join(step for step in steps if step)


def _segment(name: str) -> str:
    # The API server takes %2F for a slash, so quoting these is not enough; it allows them in no name.
    if name in (".", "..") or "/" in name or "%" in name:
        raise ApiError(404, "NotFound", f"{name[:64]!r} cannot be the name of anything")
    return quote(name)


class Metadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What we read of an object's metadata. The rest is not even decoded."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class HasMetadata(Protocol):
    @property
    def metadata(self) -> Metadata: ...


class ObjectMetadata(msgspec.Struct, frozen=True, gc=False):
    """Any object, without what it is about."""

    metadata: Metadata


NAMESPACES: Final = Resource("", "v1", "namespaces")
NODES: Final = Resource("", "v1", "nodes")
PODS: Final = Resource("", "v1", "pods")
SERVICES: Final = Resource("", "v1", "services")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases")
EVENTS: Final = Resource("events.k8s.io", "v1", "events")
RESOURCE_SLICES: Final = Resource("resource.k8s.io", "v1", "resourceslices")
CUSTOM_RESOURCE_DEFINITIONS: Final = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
RESOURCE_CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims")
RESOURCE_CLAIM_TEMPLATES: Final = Resource("resource.k8s.io", "v1", "resourceclaimtemplates")
