"""What the controller does about GPU time: meters it, and holds namespaces to their budgets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuslice.accounting.charges import ChargeBy
from gpuslice.accounting.published_gpus import SlotParts
from gpuslice.controller.followed_gpus import FollowedGpus
from gpuslice.controller.reconcilers.budget_status import BudgetStatuses
from gpuslice.controller.reconcilers.gpu_meter import GpuMeter
from gpuslice.controller.timekeeper import Timekeeper

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.kube.client.api import Api
    from gpuslice.kube.events import Recorder
    from gpuslice.kube.informers import Informers
    from gpuslice.kube.reconciler import Reconciler


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """Where GPU time is kept, and how it is charged."""

    address: str
    charge_by: ChargeBy = ChargeBy.MAXIMUM
    #: Of an hour, by model, in millionths of the currency.
    prices: Mapping[str, int] = field(default_factory=dict)
    slots: SlotParts = field(default_factory=SlotParts)
    sample_seconds: float = 5.0
    keep_entries_ms: int = 35 * 86_400_000
    keep_hours_ms: int = 100 * 86_400_000
    #: The budget of every namespace, if there is one.
    gpu_minutes_per_namespace: int | None = None
    period: str = "month"
    time_zone: str = "UTC"

    def default_budget(self) -> dict[str, Any] | None:
        """As the spec of a GPUBudget."""
        if self.gpu_minutes_per_namespace is None:
            return None
        return {
            "amount": {"gpuMinutes": self.gpu_minutes_per_namespace},
            "window": {"calendar": {"period": self.period, "timeZone": self.time_zone}},
        }


def reconcilers(
    api: Api, informers: Informers, recorder: Recorder, settings: LedgerSettings | None
) -> list[Reconciler[Any]]:
    """Without a ledger, budgets are told so."""
    if settings is None:
        return [BudgetStatuses(api, informers, recorder, None, None)]
    timekeeper = Timekeeper(
        settings.address, keep_entries_ms=settings.keep_entries_ms, keep_hours_ms=settings.keep_hours_ms
    )
    followed = FollowedGpus(informers, settings.slots, settings.charge_by, settings.prices)
    return [
        GpuMeter(followed, timekeeper, sample_seconds=settings.sample_seconds),
        BudgetStatuses(api, informers, recorder, timekeeper, settings.default_budget()),
    ]
