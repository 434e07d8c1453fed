"""Whom a policy is asked about."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping


class User(msgspec.Struct, frozen=True, gc=False):
    """Who asks the API server."""

    username: str = ""
    groups: list[str] = msgspec.field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A pod as rules see it."""

    namespace: str
    namespace_labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    pod_labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    service_account: str = "default"
    user: User = field(default_factory=User)
    #: The whole pod, as JSON: decoded only if an expression wants to see it.
    document: bytes | msgspec.Raw = b"{}"

    @cached_property
    def variables(self) -> dict[str, Any]:
        """What an expression can name."""
        return {
            "object": msgspec.json.decode(self.document),
            "namespaceObject": {"metadata": {"name": self.namespace, "labels": dict(self.namespace_labels)}},
            "request": {
                "namespace": self.namespace,
                "userInfo": {"username": self.user.username, "groups": list(self.user.groups)},
            },
        }
