"""The SlicePolicies of the cluster, as the reconcilers share them: parsed once, with what their status says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuslice.policies import stored_policies
from gpuslice.policies.stored_policies import SLICE_POLICIES, Condition, ParsedPolicy, StoredPolicy

if TYPE_CHECKING:
    from gpuslice.kube.informers import Informer, Informers


@dataclass(frozen=True, slots=True)
class FollowedPolicy:
    """A policy as it is now, and what its status says of it."""

    parsed: ParsedPolicy
    conditions: tuple[Condition, ...]


def follow(informers: Informers) -> Informer[FollowedPolicy]:
    """All policies. One whose generation is known is not parsed again."""

    def read(stored: StoredPolicy) -> FollowedPolicy:
        known = policies.store.get("", stored.metadata.name)
        parsed = stored_policies.parse(stored, known.parsed if known is not None else None)
        return FollowedPolicy(parsed, stored.status.conditions)

    policies: Informer[FollowedPolicy] = informers.informer(SLICE_POLICIES, StoredPolicy, read)
    return policies
