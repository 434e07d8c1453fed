"""What a policy decides about: a pod, and the user who creates it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping


class User(msgspec.Struct, frozen=True, gc=False):
    """The user that sent the request to the API server."""

    username: str = ""
    groups: list[str] = msgspec.field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class Subject:
    """A pod as rules see it. One is made for every review, so it is a plain object: freezing would cost more."""

    namespace: str
    namespace_labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    pod_labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    service_account: str = "default"
    user: User = field(default_factory=User)
    #: JSON with the whole pod in it: decoded only if an expression wants to see it.
    document: bytes | msgspec.Raw = b"{}"
    #: Where in the document the pod is.
    path: tuple[str, ...] = ()

    @cached_property
    def variables(self) -> dict[str, Any]:
        """What an expression can name."""
        pod: Any = msgspec.json.decode(self.document)
        for step in self.path:
            pod = pod[step]
        return {
            "object": pod,
            "namespaceObject": {"metadata": {"name": self.namespace, "labels": dict(self.namespace_labels)}},
            "request": {
                "namespace": self.namespace,
                "userInfo": {"username": self.user.username, "groups": list(self.user.groups)},
            },
        }
