"""The part of a pod that admission reads. Everything else is skipped while decoding, which is what makes it cheap.

The names are the API's own, so that a field can be found in the Kubernetes reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How a quantity arrives. The API server always writes a string; people write numbers too.
Quantity = str | int | float


class ContainerClaim(msgspec.Struct, frozen=True, gc=False):
    name: str


class Resources(msgspec.Struct, frozen=True, gc=False):
    limits: dict[str, Quantity] | None = None
    requests: dict[str, Quantity] | None = None
    claims: list[ContainerClaim] | None = None


class Capabilities(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    add: list[str] | None = None


class SecurityContext(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    privileged: bool | None = None
    capabilities: Capabilities | None = None


class EnvironmentVariable(msgspec.Struct, frozen=True, gc=False):
    name: str


#: NVIDIA's runtime adds GPUs by these. Nothing else of an environment is read.
VISIBLE_DEVICES: Final = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_MIG_CONFIG_DEVICES")
_SIGNS: Final = (b"\\", *(name.encode() for name in VISIBLE_DEVICES))
_NO_ENVIRONMENT: Final = msgspec.Raw()
_decode_environment: Final = msgspec.json.Decoder(list[EnvironmentVariable] | None).decode
_encode_environment: Final = msgspec.json.Encoder().encode


class VolumeMount(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    mount_path: str


class Container(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None
    security_context: SecurityContext | None = None
    #: Only the variables that are read (`visible_devices`), so that pods which differ in the others are alike.
    env: msgspec.Raw = _NO_ENVIRONMENT
    volume_mounts: list[VolumeMount] | None = None

    def __post_init__(self) -> None:
        if self.env is _NO_ENVIRONMENT:
            return
        written = bytes(self.env)
        read = _NO_ENVIRONMENT
        # A name can be written in several ways, but not without a backslash. Most are long, and are not decoded.
        if any(sign in written for sign in _SIGNS):
            variables = [each for each in _decode_environment(written) or () if each.name in VISIBLE_DEVICES]
            read = msgspec.Raw(_encode_environment(variables)) if variables else _NO_ENVIRONMENT
        msgspec.structs.force_setattr(self, "env", read)

    @property
    def visible_devices(self) -> list[str]:
        """The variables by which NVIDIA's runtime would add GPUs."""
        if self.env is _NO_ENVIRONMENT:
            return []
        return [variable.name for variable in _decode_environment(self.env) or ()]


class HostPath(msgspec.Struct, frozen=True, gc=False):
    path: str


class Volume(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    host_path: HostPath | None = None


class PodClaim(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str
    resource_claim_template_name: str | None = None
    #: A claim that exists.
    resource_claim_name: str | None = None


class Toleration(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class SchedulingGate(msgspec.Struct, frozen=True, gc=False):
    name: str


class PodSpec(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resource_claims: list[PodClaim] | None = None
    #: Of the whole pod: cpu and memory, and never a GPU.
    resources: Resources | None = None
    tolerations: list[Toleration] | None = None
    node_selector: dict[str, str] | None = None
    service_account_name: str | None = None
    scheduler_name: str | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    node_name: str | None = None
    host_pid: bool | None = msgspec.field(default=None, name="hostPID")
    volumes: list[Volume] | None = None


class Metadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str | None = None
    generate_name: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None


class Pod(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata | None = None
    spec: PodSpec | None = None

    @property
    def annotations(self) -> dict[str, str]:
        return (self.metadata.annotations if self.metadata else None) or {}

    @property
    def labels(self) -> dict[str, str]:
        return (self.metadata.labels if self.metadata else None) or {}

    @property
    def service_account(self) -> str:
        """Kubernetes' own default where the pod names none."""
        return (self.spec.service_account_name if self.spec else None) or "default"

    def places(self) -> Iterator[Place]:
        """The containers in the order in which they start: init containers and sidecars, then the others."""
        if self.spec is None:
            return
        for index, container in enumerate(self.spec.init_containers or ()):
            yield Place(container, index, init=True)
        for index, container in enumerate(self.spec.containers or ()):
            yield Place(container, index, init=False)


class Place:
    """A container and where in the pod it stands."""

    __slots__ = ("claims", "container", "index", "init", "limits", "requests")

    def __init__(self, container: Container, index: int, *, init: bool) -> None:
        self.container = container
        self.index = index
        self.init = init
        resources = container.resources or _NO_RESOURCES
        self.limits = resources.limits or {}
        self.requests = resources.requests or {}
        self.claims = resources.claims or []

    @property
    def name(self) -> str:
        return self.container.name

    @property
    def field(self) -> str:
        """As a message names it: `spec.containers[1]`."""
        return f"spec.{'initContainers' if self.init else 'containers'}[{self.index}]"

    @property
    def pointer(self) -> str:
        """As a JSON patch names it: `/spec/containers/1`."""
        return f"/spec/{'initContainers' if self.init else 'containers'}/{self.index}"

    @property
    def ends_before_others_start(self) -> bool:
        """An init container that is no sidecar: it never runs beside another container."""
        return self.init and self.container.restart_policy != "Always"

    def asks_by_name(self, name: str) -> bool:
        return name in self.limits or name in self.requests


_NO_RESOURCES: Final = Resources()
