"""Puts the pods of a cluster through admission once more. Nothing is written to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from gpuslice.admission.cluster.claims_of_pods import ClaimsOfPods
from gpuslice.admission.context import Context, UnknownClaimsError
from gpuslice.admission.decision import Outcome
from gpuslice.cli.manifests.admitted import admit_object
from gpuslice.cli.replay import stored_pods
from gpuslice.cli.replay.cluster_reading import ClusterReading
from gpuslice.cli.replay.outcomes import Outcomes
from gpuslice.cli.replay.quota_use import QuotaUse
from gpuslice.kube.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpuslice.kube.client.api import Api

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Replayed:
    """All that there is to tell."""

    outcomes: Outcomes
    quotas: QuotaUse
    context: Context
    unread: tuple[str, ...]

    @property
    def refuses(self) -> bool:
        """Whether any of the pods could not be made anew."""
        return (
            any(each.line.outcome == Outcome.DENIED for each in self.outcomes.workloads)
            or bool(self.quotas.refused)
            or any(use.over for use in self.quotas.uses())
        )


async def replay(api: Api, namespace: str, given: Context, excluded: Collection[str]) -> Replayed:
    """Of one namespace or, if that is empty, of all. Admission is not asked about pods of the excluded ones."""
    reading = ClusterReading(api, namespace)
    context = await reading.context(given)
    claims = ClaimsOfPods(api, context.settings.gpu_classes)
    context = replace(context, claimed_gpus=claims.gpus)
    quotas = QuotaUse(await reading.quotas(context), context)
    outcomes = Outcomes()
    async for pod in reading.pods():
        if stored_pods.is_mirror(pod):
            continue
        workload, before = stored_pods.owner(pod), stored_pods.as_created(pod)
        place = pod["metadata"]["namespace"]
        if place in excluded:
            outcomes.leave(workload, "admission is not asked in this namespace", admit_object(before, place, given))
            continue
        admitted = await _knowing(partial(admit_object, before, place), context, claims, reading)
        outcomes.add(workload, admitted)
        if not admitted.left_out and not stored_pods.has_ended(pod):
            await _knowing(partial(quotas.add, place, admitted.title, admitted.after), context, claims, reading)
    return Replayed(outcomes, quotas, context, tuple(reading.unread))


async def _knowing(
    answer: Callable[[Context], _Answer], context: Context, claims: ClaimsOfPods, reading: ClusterReading
) -> _Answer:
    """Claims of a pod's own are looked at when a policy or a quota needs to know them."""
    while True:
        try:
            return answer(context)
        except UnknownClaimsError as unknown:
            try:
                await claims.learn(unknown)
            except ApiError as error:
                reading.say_unread("claims of pods", error, "each is for any number of GPUs")
                context = replace(context, claimed_gpus=Context().claimed_gpus)
