"""Meters every GPU of the cluster: what changes of it is observed at once, and written a moment later."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gpuslice.accounting.ledger.ledger import TermOverError
from gpuslice.kube.reconciler import Reconciler, Trigger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.core import Metric

    from gpuslice.accounting.published_gpus import AllocatedClaim
    from gpuslice.controller.followed_gpus import FollowedGpus
    from gpuslice.controller.timekeeper import Timekeeper
    from gpuslice.kube.store import Key

#: The key under which is written what was observed.
_WRITE: Final = ""
#: What is known of the cluster is of now if the API server spoke of it within this time. Where nothing changes, it
#: speaks once a minute.
_FRESH_SECONDS: Final = 120.0


class GpuMeter(Reconciler[str]):
    """Keys are GPUs, by UUID, and nodes with slots."""

    name: ClassVar[str] = "gpu-meter"
    longest_wait: ClassVar[float] = 10.0

    def __init__(self, followed: FollowedGpus, timekeeper: Timekeeper, *, sample_seconds: float = 5.0) -> None:
        self._followed = followed
        self._timekeeper = timekeeper
        self._sample_seconds = sample_seconds
        self._add: Callable[[str], None] = lambda _key: None
        self._missed = False
        self._term_over = ""

    def triggers(self) -> Iterator[Trigger[str]]:
        followed = self._followed
        yield Trigger(followed.slices, followed.accounts_of_slice)
        yield Trigger(followed.claims, self._accounts_of_claim)
        yield Trigger(followed.nodes, followed.accounts_of_node)
        yield Trigger(followed.pods, followed.accounts_of_pod)

    def first_keys(self) -> Iterable[str]:
        return (_WRITE,)

    def attach(self, add: Callable[[str], None]) -> None:
        self._add = add

    async def reconcile(self, key: str) -> float | None:
        if not self._timekeeper.begun:
            await self._timekeeper.begin(self._followed.names(), self._followed.look, self._followed.is_held)
        if key != _WRITE:
            self._missed = self._missed or self._timekeeper.overflowing
            self._timekeeper.observe(key, self._followed.look, self._followed.is_held)
            return None
        try:
            await self._timekeeper.write(looked=self._followed.heard_within(_FRESH_SECONDS))
        except TermOverError as error:
            self._term_over = str(error)
            raise
        if self._missed:
            self._missed = False
            for name in {*self._followed.names(), *self._timekeeper.meter.accounts}:
                self._add(name)
        return self._sample_seconds

    def _accounts_of_claim(self, key: Key, old: AllocatedClaim | None, new: AllocatedClaim | None) -> set[str]:
        found = self._followed.accounts_of_claim(key, old, new)
        if found or old is None:
            return found
        # Its GPU is published no more.
        return {name for name, account in self._timekeeper.meter.accounts.items() if old.uid in account.holdings}

    def unhealthy(self) -> str:
        """What another process has written is not known here: a new process begins with it."""
        return self._term_over

    def unready(self) -> str:
        return self._timekeeper.complaint

    def metrics(self) -> Iterator[Metric]:
        keeper = self._timekeeper
        yield CounterMetricFamily(
            "gpuslice_ledger_entries_written", "Entries that were written.", value=keeper.entries_written
        )
        yield GaugeMetricFamily(
            "gpuslice_ledger_unwritten", "Entries that could not be written yet.", value=keeper.unwritten
        )
        yield GaugeMetricFamily(
            "gpuslice_ledger_up", "1 if the ledger could be used at the last try.", value=int(not keeper.complaint)
        )
        yield GaugeMetricFamily("gpuslice_metered_gpus", "GPUs that are metered.", value=len(keeper.meter.accounts))
