"""Follows the definition of SlicePolicy itself, so that policies are in force from when there can be any again.

When the definition is deleted, all policies go with it. When it is made anew, policies can be written at once, but a
watch of policies does not hear of it: it asks now and then whether they are served, and may even hang on the storage of
the definition before. So we watch the definition, and list everything again when another one is established; until
that is done the policies are unknown, and the watch says so. As long as one is established, we do not believe an answer
that policies are not served: no failure of the API server makes all limits void.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuslice.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, Metadata
from gpuslice.kube.watching import Watch
from gpuslice.policies import schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice.kube.api import Api

NAME: Final = f"{schema.PLURAL}.{schema.GROUP}"


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str


class _Status(msgspec.Struct, frozen=True):
    conditions: list[_Condition] | None = None


class Definition(msgspec.Struct, frozen=True):
    """A CustomResourceDefinition, as far as it tells whether its objects are served."""

    metadata: Metadata
    status: _Status = _Status()

    @property
    def established(self) -> bool:
        return _Condition("Established", "True") in (self.status.conditions or ())


class PolicyDefinition:
    """Tells a watch of policies when there is another definition. `watch` must run.

    Without the right to read it, policies that are made anew are noticed a second later.
    """

    def __init__(self, api: Api, policies: Watch[Any, Any], changed: Callable[[], None] = lambda: None) -> None:
        self.watch: Final[Watch[Definition, str]] = Watch(
            api, CUSTOM_RESOURCE_DEFINITIONS, Definition, _identity, fields=f"metadata.name={NAME}"
        )
        self.watch.store.listen(self._follow)
        self._policies = policies
        self._changed = changed
        #: The definition that the policies were last listed under; empty if there was none.
        self._followed: str | None = None

    def _follow(self, _key: object, _old: str | None, new: str | None) -> None:
        policies = self._policies
        policies.known_served = new is not None
        # At the start, either watch may be the first.
        followed = policies.served and policies.synced.is_set() if self._followed is None else new == self._followed
        if not followed:
            policies.list_again()
            self._changed()
        self._followed = new or ""


def _identity(found: Definition) -> str | None:
    """Tells it apart from one of the same name, before it or after it; None while it serves nothing."""
    return found.metadata.uid if found.established else None
