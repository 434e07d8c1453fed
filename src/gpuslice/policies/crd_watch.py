"""Follows the definition of SlicePolicy itself, so that policies are in force from when there can be any again.

When the definition is deleted, all policies go with it. When it is made anew, policies can be written at once, but an
informer of policies does not hear of it: it asks now and then whether they are served, and may even hang on the storage
of the definition before. So the definition is watched, and when another one is established, everything is listed again;
until that is done the policies are unknown, and their informer is not synced. And as long as one is established, an
answer that policies are not served is not believed: no failure of the API server makes all limits void.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuslice.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, Metadata
from gpuslice.policies import schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice.kube.informers import Informer, Informers

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
    """Has the informer of policies list them again when there is another definition.

    Without the right to read it, policies that are made anew are noticed a second later.
    """

    def __init__(
        self, informers: Informers, policies: Informer[Any], on_unknown: Callable[[], None] = lambda: None
    ) -> None:
        """`on_unknown` is called when what is known of the policies is of another time."""
        self.informer: Final[Informer[str]] = informers.informer(
            CUSTOM_RESOURCE_DEFINITIONS, Definition, _identity, fields=f"metadata.name={NAME}"
        )
        self.informer.store.listen(self._definition_changed)
        self._policies = policies
        self._on_unknown = on_unknown
        #: The definition that the policies were last listed under; empty if there was none.
        self._listed_under: str | None = None

    def _definition_changed(self, _key: object, _old: str | None, new: str | None) -> None:
        policies = self._policies
        policies.expect_served(served=new is not None)
        if self._listed_under is None:
            # At the start, either of the two may be listed first.
            up_to_date = policies.served and policies.synced.is_set()
        else:
            up_to_date = new == self._listed_under
        if not up_to_date:
            policies.list_again()
            self._on_unknown()
        self._listed_under = new or ""


def _identity(found: Definition) -> str | None:
    """Tells it apart from one of the same name, before it or after it; None while it serves nothing."""
    return found.metadata.uid if found.established else None
