"""What quotas would count of the pods that there are, once all of them were admitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpuslice.admission.quota_charges import charging
from gpuslice.admission.quota_charges.charging import ChargedPod, UnsizedError
from gpuslice.admission.restrictions.other_claims import OtherClaims
from gpuslice.admission.webhook.quota_reviews import terms_of
from gpuslice.quotas import tally
from gpuslice.quotas.schema import TallySpec
from gpuslice.quotas.tally import Counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuslice.admission.context import Context
    from gpuslice.quotas.schema import Count


class Use(msgspec.Struct, frozen=True):
    """One resource of one quota."""

    namespace: str
    quota: str
    resource: str
    used: str
    hard: str
    #: More than the quota allows: some of the pods would be refused when they are made anew.
    over: bool


class QuotaUse:
    """Takes pods after admission, and counts them as the controller does."""

    def __init__(self, quotas: Mapping[str, Mapping[str, Count]], context: Context) -> None:
        self._quotas = quotas
        self._terms = terms_of(context)
        self._pods: dict[str, list[Counted]] = {}
        #: Pods of which a GpuQuota cannot tell how much they hold, and why.
        self.refused: list[str] = []

    def add(self, namespace: str, title: str, pod: Mapping[str, Any], context: Context) -> None:
        """Raises UnknownClaimsError, having counted nothing, if it has to be known what the pod claims."""
        if namespace not in self._quotas:
            return
        charged = msgspec.convert(pod, ChargedPod)
        if not charging.is_charged(charged):
            return
        if tally.counts_gpus(TallySpec(dict(self._quotas[namespace]))):
            try:
                charging.check_sized(charged, self._terms, OtherClaims(charged.spec, namespace, context).gpus)
            except UnsizedError as error:
                self.refused.append(f"{title}: {error}")
        counted = self._pods.setdefault(namespace, [])
        counted.append(Counted(str(len(counted)), title, charging.charge(charged, self._terms)))

    def uses(self) -> Iterator[Use]:
        for namespace, quotas in sorted(self._quotas.items()):
            found = tally.recount(quotas, self._pods.get(namespace, []), TallySpec(), ())
            for key, count in sorted(found.quotas.items()):
                for name, hard in count.hard.items():
                    used = count.used[name]
                    yield Use(namespace, key, name, tally.show(name, used), tally.show(name, hard), used > hard)
