"""The arithmetic of quotas: what a pod is charged, whether it still fits, and what is used.

A namespace has one tally, in which each write is a compare-and-swap: what several quotas say about one pod is decided
at once, all or none. `used` is what the counted pods hold and what is reserved for admitted pods that are not
counted yet. A reservation goes in the same write in which its pod is counted, so that nothing is ever counted
twice or left out.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.model.errors import GpusliceError
from gpuslice.model.values import kubernetes_quantities
from gpuslice.quotas.schema import (
    MEMORY,
    RESOURCE_QUOTA_KIND,
    Count,
    Reservation,
    Scope,
    TallySpec,
    User,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

#: Pods that a tally names for each quota, and that a denial names.
LARGEST: Final = 5
#: Reservations go within a minute. What is refused above this could not be counted any faster.
MOST_RESERVATIONS: Final = 500


class OverQuotaError(GpusliceError):
    """Raised when a pod does not fit into a quota. Says what is used, by which pods, and what is left."""


class TooManyReservationsError(GpusliceError):
    """Raised when so many pods were admitted that are not counted yet that one more must wait."""


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod holds, and what tells whether a quota counts it."""

    #: By what quotas name: `memory` (bytes), `cores`, `devices`, `requests.nvidia.com/gpumem`.
    amounts: dict[str, int]
    priority_class: str = ""
    terminating: bool = False


class Counted(msgspec.Struct, frozen=True):
    """A pod that exists."""

    uid: str
    name: str
    charge: Charge
    #: It has ended: its reservation can go, and it holds nothing.
    finished: bool = False


def charges(quotas: Mapping[str, Count], charge: Charge) -> dict[str, dict[str, int]]:
    """What each of the quotas counts of the pod."""
    found = {}
    for key, quota in quotas.items():
        amounts = {name: charge.amounts[name] for name in quota.hard if charge.amounts.get(name)}
        if amounts and all(_in_scope(scope, charge) for scope in quota.scopes):
            found[key] = amounts
    return found


def reserve(tally: TallySpec, uid: str, pod: str, charge: Charge) -> TallySpec:
    """The tally with the pod in it, or as it is if the pod is there already or is not counted at all."""
    wanted = charges(tally.quotas, charge)
    if not wanted or uid in tally.reservations:
        return tally
    for key, amounts in wanted.items():
        _check(key, tally.quotas[key], amounts)
    if len(tally.reservations) >= MOST_RESERVATIONS:
        raise TooManyReservationsError(
            f"{MOST_RESERVATIONS} pods of the namespace were admitted and are not counted yet; try again in a minute"
        )
    quotas = tally.quotas | {
        key: msgspec.structs.replace(tally.quotas[key], used=_sum(tally.quotas[key].used, amounts))
        for key, amounts in wanted.items()
    }
    return TallySpec(quotas, tally.reservations | {uid: Reservation(pod, wanted)})


def recount(
    quotas: Mapping[str, Count], pods: Collection[Counted], known: TallySpec, expired: Collection[str]
) -> TallySpec:
    """The tally of these quotas (their `used` is not looked at) and pods. Reservations stay but for those of the pods
    and for the expired ones, whose pods will never come.
    """
    seen = {pod.uid for pod in pods}.union(expired)
    reservations = {uid: each for uid, each in known.reservations.items() if uid not in seen}
    holding = [(pod, charges(quotas, pod.charge)) for pod in pods if not pod.finished]
    counted = {}
    for key, quota in quotas.items():
        users = [User(pod.name, amounts[key]) for pod, amounts in holding if key in amounts]
        reserved = [each.charges.get(key, {}) for each in reservations.values()]
        used: Counter[str] = Counter(dict.fromkeys(quota.hard, 0))
        for amounts in (*(user.used for user in users), *reserved):
            used.update({name: amount for name, amount in amounts.items() if name in quota.hard})
        counted[key] = msgspec.structs.replace(quota, used=dict(used), largest=_largest(users, quota.hard))
    return TallySpec(counted, reservations)


def show(resource: str, amount: int) -> str:
    """As people write it: memory in GiB."""
    return kubernetes_quantities.format_bytes(amount) if resource == MEMORY else str(amount)


def _check(key: str, quota: Count, wanted: Mapping[str, int]) -> None:
    over = [name for name, amount in wanted.items() if quota.used.get(name, 0) + amount > quota.hard[name]]
    if not over:
        return
    told = "; ".join(_over(name, quota, wanted[name]) for name in over)
    name = over[0]
    users = sorted(quota.largest, key=lambda user: -user.used.get(name, 0))
    listed = ", ".join(f"{user.pod} ({show(name, user.used[name])})" for user in users if user.used.get(name))
    by = f"; most of it is held by {listed}" if listed else ""
    raise OverQuotaError(f"{key}: {told}{by}; ask for less, end other pods, or have the quota raised")


def _over(name: str, quota: Count, asked: int) -> str:
    hard, used = quota.hard[name], quota.used.get(name, 0)
    left = max(0, hard - used)
    return (
        f"the pod is charged {show(name, asked)} of {name}, but of {show(name, hard)} in all {show(name, used)} are "
        f"used and {show(name, left)} are left"
    )


def _sum(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}


def _largest(users: Iterable[User], hard: Mapping[str, int]) -> tuple[User, ...]:
    """By the part that they hold of what is scarcest to them."""

    def part(user: User) -> tuple[float, str]:
        return -max(amount / max(1, hard[name]) for name, amount in user.used.items()), user.pod

    return tuple(sorted(users, key=part)[:LARGEST])


def _in_scope(scope: Scope, charge: Charge) -> bool:
    """As Kubernetes has it. A scope that we do not know counts the pod: rather too much than too little."""
    if scope.scope_name == "Terminating":
        return charge.terminating
    if scope.scope_name == "NotTerminating":
        return not charge.terminating
    if scope.scope_name == "PriorityClass":
        named = charge.priority_class
        return {
            "In": named in scope.values,
            "NotIn": named not in scope.values,
            "Exists": bool(named),
            "DoesNotExist": not named,
        }.get(scope.operator, True)
    return True


def counts_gpus(tally: TallySpec) -> bool:
    """Whether a GpuQuota is among them, which needs to know the size of everything that a pod holds."""
    return any(not key.startswith(f"{RESOURCE_QUOTA_KIND}/") for key in tally.quotas)


def counts_names(tally: TallySpec) -> bool:
    """Whether a ResourceQuota is among them, which needs to know by which names a pod asked."""
    return any(key.startswith(f"{RESOURCE_QUOTA_KIND}/") for key in tally.quotas)
