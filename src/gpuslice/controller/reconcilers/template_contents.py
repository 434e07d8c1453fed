"""What a claim template asks for, so that a template that is there can be compared with the one that a pod needs.

A template is found by its name, and a user who may create templates in a namespace can put another content under that
name. A pod of another user would then get another slice than admission decided. The fields below are all that decides
what a claim gets; fields that a later Kubernetes may add, and fill in by itself, are not compared. A template's spec is
immutable, so one comparison for each object is enough.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, Final

import msgspec

from gpuslice.kube.resources import Metadata  # noqa: TC001 - msgspec reads the types

_DIGEST_BYTES: Final = 16


class _Expression(msgspec.Struct, frozen=True, gc=False):
    expression: str = ""


class _Selector(msgspec.Struct, frozen=True, gc=False):
    cel: _Expression | None = None


class _Capacity(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    requests: dict[str, str] | None = None


class _Devices(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What one request, or one of its alternatives, asks for."""

    name: str = ""
    device_class_name: str = ""
    selectors: list[_Selector] | None = None
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: list[Any] | None = None
    capacity: _Capacity | None = None


class _Request(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    name: str = ""
    exactly: _Devices | None = None
    first_available: list[_Devices] | None = None


class _Constraint(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class _Claim(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    requests: list[_Request] | None = None
    constraints: list[_Constraint] | None = None
    #: Gpuslice gives none. Not decoded: the parameters in it are any JSON, as deep as its author likes.
    config: list[msgspec.Raw] | None = None


class ClaimSpec(msgspec.Struct, frozen=True, gc=False):
    """The spec of a ResourceClaim."""

    devices: _Claim = _Claim()


class _TemplateSpec(msgspec.Struct, frozen=True, gc=False):
    spec: ClaimSpec = ClaimSpec()


class StoredTemplate(msgspec.Struct, frozen=True, gc=False):
    """A ResourceClaimTemplate, as the API server has it."""

    metadata: Metadata
    spec: _TemplateSpec = _TemplateSpec()

    @property
    def digest(self) -> bytes:
        return _digest(self.spec.spec)


@lru_cache(maxsize=4096)
def digest(spec: bytes) -> bytes:
    """Equal for claims that get the same; `spec` is the claim's, as JSON."""
    return _digest(_decode(spec))


def _digest(spec: ClaimSpec) -> bytes:
    return hashlib.sha256(_encode(spec)).digest()[:_DIGEST_BYTES]


_decode: Final = msgspec.json.Decoder(ClaimSpec).decode
_encode: Final = msgspec.json.Encoder(order="deterministic").encode
