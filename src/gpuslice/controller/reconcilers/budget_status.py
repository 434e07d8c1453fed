"""Says in each GPUBudget's status what is used and left, for how long it lasts, and what follows; Events at each step.

Admission goes by this status. While the ledger cannot be used, the status stays as it was, and says so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
from prometheus_client.core import GaugeMetricFamily

from gpuslice.accounting.budgets import budget as reading
from gpuslice.accounting.budgets.budget import BudgetError, Unit
from gpuslice.accounting.budgets.ladder import STEPS, Step, exhausted_at, is_over, judge
from gpuslice.accounting.budgets.schema import GPU_BUDGETS, KIND, BudgetStatus, NamespaceStatus, StoredBudget
from gpuslice.accounting.ledger.database import LedgerError
from gpuslice.accounting.metering import HOUR_MS
from gpuslice.kube.errors import ApiError
from gpuslice.kube.events import Regarding
from gpuslice.kube.reconciler import Reconciler, Trigger
from gpuslice.kube.resources import NAMESPACES, ObjectMetadata
from gpuslice.policies.schema import GROUP, VERSION
from gpuslice.policies.stored_policies import Condition
from gpuslice.system import timestamps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.core import Metric

    from gpuslice.accounting.budgets.balance import Balance
    from gpuslice.accounting.budgets.budget import Budget
    from gpuslice.accounting.budgets.ladder import Verdict
    from gpuslice.controller.timekeeper import Timekeeper
    from gpuslice.kube.client.api import Api
    from gpuslice.kube.events import Recorder
    from gpuslice.kube.informers import Informer, Informers

ACCEPTED: Final = "Accepted"
METERED: Final = "Metered"
#: The budget that the configuration asks for, as an object.
DEFAULT_BUDGET: Final = "gpuslice-default"
_FROM_CONFIGURATION: Final = "gpuslice.io/from-configuration"
#: The key under which it is kept.
_DEFAULT: Final = ""
#: Between two looks at a budget. Numbers alone are written less often than what follows from them.
LOOK_SECONDS: Final = 10.0
_WRITE_SECONDS: Final = 60.0
#: In a status, those that used most: an object of the API server has a limit.
_MOST_NAMESPACES: Final = 1000
#: One GPU for a second.
_GPU_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class FollowedBudget:
    """None: it cannot be what its author meant."""

    uid: str
    generation: int
    budget: Budget | None
    complaint: str
    spec: bytes
    ours: bool
    status: BudgetStatus


def follow(found: StoredBudget) -> FollowedBudget:
    budget, complaint = None, ""
    try:
        budget = reading.read(found)
    except BudgetError as error:
        complaint = str(error)
    metadata = found.metadata
    ours = (metadata.labels or {}).get(_FROM_CONFIGURATION) == "true"
    return FollowedBudget(metadata.uid, metadata.generation, budget, complaint, bytes(found.spec), ours, found.status)


class BudgetStatuses(Reconciler[str]):
    """Keys are budgets, by name. Without a timekeeper nothing is metered, and budgets are told so."""

    name: ClassVar[str] = "budget-status"
    longest_wait: ClassVar[float] = 30.0

    def __init__(
        self,
        api: Api,
        informers: Informers,
        recorder: Recorder,
        timekeeper: Timekeeper | None,
        default: Mapping[str, Any] | None,
        *,
        look_seconds: float = LOOK_SECONDS,
        write_seconds: float = _WRITE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._recorder = recorder
        self._timekeeper = timekeeper
        self._default = default
        self._look_seconds = look_seconds
        self._write_seconds = write_seconds
        self._clock = clock
        self._written: dict[str, float] = {}
        self.budgets: Final[Informer[FollowedBudget]] = informers.informer(GPU_BUDGETS, StoredBudget, follow)
        self._namespaces: Informer[dict[str, str]] = informers.informer(
            NAMESPACES, ObjectMetadata, lambda found: found.metadata.labels or {}
        )

    def triggers(self) -> Iterator[Trigger[str]]:
        yield Trigger(self.budgets, _changed)
        yield Trigger(self._namespaces, lambda _key, _old, _new: ())

    def first_keys(self) -> Iterable[str]:
        return (_DEFAULT,)

    async def reconcile(self, key: str) -> float | None:
        if key == _DEFAULT:
            await self._keep_default()
            return None
        if key == DEFAULT_BUDGET:
            await self._keep_default()
        followed = self.budgets.store.get("", key)
        if followed is None:
            self._written.pop(key, None)
            return None
        budget = followed.budget
        if budget is None:
            await self._refuse(key, followed)
            return None
        if self._timekeeper is None:
            why = "the controller has no ledger, so that nothing is metered: set ledger.address in its configuration"
            await self._write(key, followed, _with(followed, _accepted(followed), _metered(followed, "NoLedger", why)))
            return None
        try:
            wanted = await self._status(key, followed, budget, self._timekeeper)
        except LedgerError as error:
            failed = _metered(followed, "LedgerUnavailable", f"{error}. Numbers are those of before")
            await self._write(key, followed, _with(followed, _accepted(followed), failed))
            return self._look_seconds
        late = self._clock() - self._written.get(key, float("-inf")) >= self._write_seconds
        if late or _decides(wanted) != _decides(followed.status):
            await self._write(key, followed, wanted)
            self._written[key] = self._clock()
        return self._look_seconds

    def metrics(self) -> Iterator[Metric]:
        labels = ["budget", "namespace"]
        used = GaugeMetricFamily("gpuslice_budget_used_percent", "What is used of a budget.", labels=labels)
        step = GaugeMetricFamily(
            "gpuslice_budget_step", "0 within, 1 warned, 2 low priority, 3 gated, 4 evictable.", labels=labels
        )
        for (_, name), followed in self.budgets.store.items():
            for each in followed.status.namespaces:
                used.add_metric([name, each.name], each.percent)
                step.add_metric([name, each.name], STEPS.get(each.step, Step.WITHIN))
        yield from (used, step)

    async def _status(
        self, name: str, followed: FollowedBudget, budget: Budget, timekeeper: Timekeeper
    ) -> BudgetStatus:
        meant = [key[1] for key, labels in self._namespaces.store.items() if budget.means(key[1], labels)]
        balances, now = await timekeeper.balances(budget, meant)
        before = {each.name: each for each in followed.status.namespaces}
        found = []
        over = 0
        for namespace, balance in balances.items():
            status, verdict = _judge(budget, namespace, balance, before.get(namespace), timekeeper, now)
            self._tell(name, followed, budget, before.get(namespace), status, verdict)
            over += verdict.step >= Step.LOWER
            if balance.used > 0 or verdict.step > Step.WITHIN:
                found.append(status)
        found.sort(key=lambda each: (-each.percent, each.name))
        return BudgetStatus(
            namespaces=tuple(found[:_MOST_NAMESPACES]),
            summary=f"{found[0].name} {found[0].percent}%" if found else "",
            over=over,
            counted=len(meant),
            observed_generation=followed.generation,
            conditions=(_accepted(followed), _metered(followed, "", "")),
        )

    def _tell(
        self,
        name: str,
        followed: FollowedBudget,
        budget: Budget,
        before: NamespaceStatus | None,
        after: NamespaceStatus,
        verdict: Verdict,
    ) -> None:
        """An Event in the namespace, where its people see it, when a step is reached or left."""
        old_step = STEPS.get(before.step, Step.WITHIN) if before is not None else Step.WITHIN
        old_percent = before.percent if before is not None else 0
        warned = max((each for each in budget.ladder.warn if old_percent >= each), default=0)
        if verdict.step > old_step or (verdict.warned or 0) > warned:
            kind, reason = ("Warning" if verdict.step >= Step.LOWER else "Normal"), f"Budget{verdict.step.word}"
        elif verdict.step < Step.LOWER <= old_step:
            kind, reason = "Normal", "BudgetRefilled"
        else:
            return
        note = f"{KIND} {name}: {after.reason}" + (" (a dry run: nothing happens)" if budget.dry_run else "")
        about = Regarding(api_version="v1", kind="Namespace", name=after.name, namespace=after.name)
        self._recorder.record(about, kind, reason, "Meter", note)  # type: ignore[arg-type]
        own = Regarding(api_version=f"{GROUP}/{VERSION}", kind=KIND, name=name, uid=followed.uid)
        self._recorder.record(own, kind, reason, "Meter", f"{after.name}: {after.reason}")  # type: ignore[arg-type]

    async def _refuse(self, name: str, followed: FollowedBudget) -> None:
        known = next((each for each in followed.status.conditions if each.type == ACCEPTED), None)
        if known is None or known.observed_generation != followed.generation:
            regarding = Regarding(api_version=f"{GROUP}/{VERSION}", kind=KIND, name=name, uid=followed.uid)
            self._recorder.record(regarding, "Warning", "Refused", "Read", followed.complaint)
        await self._write(name, followed, _with(followed, _accepted(followed)))

    async def _write(self, name: str, followed: FollowedBudget, wanted: BudgetStatus) -> None:
        if wanted == followed.status:
            return
        changes: dict[str, Any] = msgspec.to_builtins(wanted)
        # A merge patch keeps what it does not name, and structs leave out what is as by default.
        whole = {"namespaces": [], "summary": "", "over": 0, "counted": 0, "conditions": []} | changes
        try:
            await self._api.merge(GPU_BUDGETS, name, {"status": whole}, part="status")
        except ApiError as error:
            if not error.not_found:
                raise

    async def _keep_default(self) -> None:
        """The object that the configuration's line stands for."""
        known = self.budgets.store.get("", DEFAULT_BUDGET)
        if self._default is None:
            if known is not None and known.ours:
                await self._api.delete(GPU_BUDGETS, DEFAULT_BUDGET)
            return
        if known is None:
            document = {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": KIND,
                "metadata": {"name": DEFAULT_BUDGET, "labels": {_FROM_CONFIGURATION: "true"}},
                "spec": dict(self._default),
            }
            try:
                await self._api.create(GPU_BUDGETS, document)
            except ApiError as error:
                if not error.conflict:
                    raise
        elif known.ours and msgspec.json.decode(known.spec) != self._default:
            spec = dict.fromkeys(msgspec.json.decode(known.spec)) | dict(self._default)
            await self._api.merge(GPU_BUDGETS, DEFAULT_BUDGET, {"spec": spec})


def _changed(key: tuple[str, str], old: FollowedBudget | None, new: FollowedBudget | None) -> Iterable[str]:
    """A change of the status is our own."""
    if old is not None and new is not None and (old.generation, old.uid) == (new.generation, new.uid):
        return ()
    return (key[1],)


def _judge(
    budget: Budget,
    namespace: str,
    balance: Balance,
    before: NamespaceStatus | None,
    timekeeper: Timekeeper,
    now: int,
) -> tuple[NamespaceStatus, Verdict]:
    per_hour = budget.units({price: parts * HOUR_MS for price, parts in timekeeper.rates(namespace).items()})
    exhausted = exhausted_at(balance, per_hour, budget.window, now)
    since = (_moment(before.over_since) if before is not None else None) or now
    over_since = since if is_over(budget, balance) else None
    verdict = judge(budget, balance, over_since, exhausted, now)
    return NamespaceStatus(
        name=namespace,
        used=budget.show(balance.used),
        left=budget.show(balance.left),
        percent=balance.percent,
        step=verdict.step.word,
        reason=verdict.reason,
        window_ends=None if balance.window_end is None else timestamps.time(balance.window_end / 1000),
        exhausted=None if exhausted is None else timestamps.time(exhausted / 1000),
        left_gpu_seconds=max(0, balance.left // _GPU_SECOND) if budget.unit is Unit.TIME else None,
        over_since=None if over_since is None else timestamps.time(over_since / 1000),
    ), verdict


def _decides(status: BudgetStatus) -> object:
    """What is not only a number that grows: it is written at once."""
    return (
        [(each.name, each.percent, each.step, each.window_ends) for each in status.namespaces],
        (status.over, status.counted, status.observed_generation),
        [(each.type, each.status, each.reason) for each in status.conditions],
    )


def _with(followed: FollowedBudget, *conditions: Condition) -> BudgetStatus:
    """What is known, with other conditions."""
    kept = [each for each in followed.status.conditions if each.type not in {new.type for new in conditions}]
    return msgspec.structs.replace(
        followed.status, conditions=(*conditions, *kept), observed_generation=followed.generation
    )


def _accepted(followed: FollowedBudget) -> Condition:
    reason = "Refused" if followed.complaint else "Accepted"
    return _dated(followed, ACCEPTED, not followed.complaint, reason, followed.complaint or "it is in force")


def _metered(followed: FollowedBudget, reason: str, why: str) -> Condition:
    return _dated(followed, METERED, not why, reason or "Metered", why or "the numbers are of now")


def _dated(followed: FollowedBudget, type_: str, holds: bool, reason: str, message: str) -> Condition:  # noqa: FBT001
    status = "True" if holds else "False"
    known = next((each for each in followed.status.conditions if (each.type, each.status) == (type_, status)), None)
    return Condition(
        type=type_,
        status=status,
        reason=reason,
        message=message[:1024],
        last_transition_time=known.last_transition_time if known is not None else timestamps.time(),
        observed_generation=followed.generation,
    )


def _moment(text: str | None) -> int | None:
    return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1000)
