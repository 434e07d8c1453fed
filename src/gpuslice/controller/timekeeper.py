"""The meter and its ledger in one process: what happened since the last write, and what is written.

The ledger has a thread of its own, so that a slow disk stops nothing else. Writes and balances take turns: a balance
sees each charge either in the ledger or as open, never in both and never in neither. What cannot be written is kept in
memory and written later; when that is too much, nothing new is observed, and what was open goes on as it was.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from gpuslice.accounting.budgets.balance import Balances, OpenUse
from gpuslice.accounting.ledger.database import LedgerError, LedgerUnavailableError
from gpuslice.accounting.ledger.ledger import Ledger
from gpuslice.accounting.metering import Kind, Meter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gpuslice.accounting.budgets.balance import Balance
    from gpuslice.accounting.budgets.budget import Budget
    from gpuslice.accounting.metering import Entry, Gpu, Holding

T = TypeVar("T")

#: About 60 MiB.
_MOST_UNWRITTEN: Final = 200_000
#: A gap that a person should hear of. A new leader needs about 15 seconds.
_LONG_GAP_MS: Final = 120_000


class MeterClock:
    """Milliseconds since 1970: the wall clock of the beginning, and from then on a clock that nobody sets."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] | None = None) -> None:
        self._wall = wall
        self._steady = steady or (lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
        self._begun, self._at = round(wall() * 1000), self._steady()

    def start(self, not_before: int) -> None:
        """Anew. Time that is in the ledger already is not there a second time, whatever the wall clock says."""
        self._begun, self._at = max(not_before, round(self._wall() * 1000)), self._steady()

    def now(self) -> int:
        return self._begun + round((self._steady() - self._at) * 1000)


class Timekeeper:
    """Used on the event loop alone."""

    def __init__(
        self,
        address: str,
        *,
        clock: MeterClock | None = None,
        keep_entries_ms: int = 35 * 86_400_000,
        keep_hours_ms: int = 100 * 86_400_000,
    ) -> None:
        self.clock: Final = clock or MeterClock()
        self.meter: Final = Meter()
        #: Why the ledger could not be used at the last try; empty if it could.
        self.complaint = ""
        self.entries_written = 0
        self._address = address
        self._keep = keep_entries_ms, keep_hours_ms
        self._ledger: Ledger | None = None
        self._balances: Balances | None = None
        self._thread = ThreadPoolExecutor(1, "ledger")
        self._turn = asyncio.Lock()
        self._begun = False
        self._unwritten: list[Entry] = []
        self._changed: set[str] = set()
        self._forgot_until = 0
        self._log = structlog.get_logger()

    @property
    def begun(self) -> bool:
        return self._begun

    @property
    def unwritten(self) -> int:
        return len(self._unwritten)

    @property
    def overflowing(self) -> bool:
        """So much is unwritten that nothing new is observed."""
        return len(self._unwritten) >= _MOST_UNWRITTEN

    async def begin(
        self,
        names: Collection[str],
        look: Callable[[str], tuple[Gpu, list[Holding]] | None],
        is_held: Callable[[str], bool],
    ) -> None:
        """Goes on from where the ledger's last writer ended, with all that the cluster has now."""
        async with self._turn:
            accounts, sampled = await self._call(lambda ledger: ledger.begin())
            self.clock.start(sampled)
            now = self.clock.now()
            self._unwritten.clear()
            self._changed.clear()
            self.meter.resume(accounts, sampled)
            if sampled and now - sampled > _LONG_GAP_MS:
                self._log.warning(
                    "nobody metered for a while: what ended meanwhile is charged until then, and what both began and "
                    "ended is not charged",
                    seconds=(now - sampled) // 1000,
                )
            for name in {*names, *self.meter.accounts}:
                found = look(name)
                self._changed.add(name)
                if found is not None:
                    self._unwritten += self.meter.reconcile(*found, sampled or now, now)
                else:
                    self._unwritten += self._without_gpu(name, is_held, sampled or now)
            self._begun = True

    def observe(
        self,
        name: str,
        look: Callable[[str], tuple[Gpu, list[Holding]] | None],
        is_held: Callable[[str], bool],
    ) -> None:
        """The account may have changed."""
        if self.overflowing:
            return
        found, now = look(name), self.clock.now()
        if found is not None:
            self._unwritten += self.meter.observe(*found, now)
        else:
            self._unwritten += self._without_gpu(name, is_held, now)
        self._changed.add(name)

    async def write(self, *, looked: bool) -> None:
        """Writes what is not written. `looked`: what is known of the cluster is of now.

        Raises LedgerError if it cannot be written; nothing of it is lost.
        """
        async with self._turn:
            now = self.clock.now()
            closed = self.meter.cut(now)
            if closed:
                self._changed.update(self.meter.accounts)
            entries, changed = [*self._unwritten, *closed], self._changed
            # What comes while the ledger works is for the next time.
            self._unwritten, self._changed = [], set()
            accounts = [copy.copy(self.meter.accounts[name]) for name in changed if name in self.meter.accounts]
            removed = [name for name in changed if name not in self.meter.accounts]
            try:
                await self._call(lambda ledger: ledger.append(entries, accounts, removed, now if looked else 0))
            except BaseException:
                self._unwritten, self._changed = entries + self._unwritten, changed | self._changed
                raise
            self.entries_written += len(entries)
            await self._forget(now)

    async def balances(self, budget: Budget, namespaces: Collection[str]) -> tuple[dict[str, Balance], int]:
        """And the moment for which they hold."""
        async with self._turn:
            if not self._begun:
                raise LedgerUnavailableError(self.complaint or "ledger: nothing was metered yet")
            now, uses = self.clock.now(), self._open_uses()

            def work(ledger: Ledger) -> dict[str, Balance]:
                if self._balances is None:
                    self._balances = Balances(ledger)
                return self._balances.of(budget, namespaces, uses, ledger.credits(budget.name), now)

            return await self._call(work), now

    async def ask(self, work: Callable[[Ledger], T]) -> T:
        """Something else of the ledger, in its thread and in turn."""
        async with self._turn:
            return await self._call(work)

    def rates(self, namespace: str) -> Mapping[int, int]:
        """Parts of GPUs that the namespace is charged now, by price."""
        return self.meter.rates(namespace)

    async def close(self) -> None:
        """What is not written by now is charged by the next writer, from what is open."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def _without_gpu(self, name: str, is_held: Callable[[str], bool], ended: int) -> Sequence[Entry]:
        """Its node offers it no more. Claims that were given it hold it nevertheless."""
        account = self.meter.accounts.get(name)
        if account is None:
            return ()
        held = [each for claim, each in account.holdings.items() if is_held(claim)]
        if not held:
            return self.meter.remove(name, ended)
        return self.meter.observe(dataclasses.replace(account.gpu, usable=False), held, ended)

    def _open_uses(self) -> list[OpenUse]:
        now = self.clock.now()
        sums: dict[tuple[str, int, int, int], int] = {}
        for account in self.meter.accounts.values():
            for holder, parts in account.shares.items():
                key = holder.namespace, account.gpu.price, account.since, max(now, account.since)
                sums[key] = sums.get(key, 0) + parts
        for entry in self._unwritten:
            if entry.kind is Kind.CHARGE:
                key = entry.holder.namespace, entry.price, entry.start, entry.until
                sums[key] = sums.get(key, 0) + entry.parts
        return [
            OpenUse(namespace, price, parts, start, until) for (namespace, price, start, until), parts in sums.items()
        ]

    async def _forget(self, now: int) -> None:
        """Once an hour: what is old enough."""
        if now // 3_600_000 == self._forgot_until:
            return
        entries, hours = self._keep
        await self._call(lambda ledger: ledger.forget(now - entries, now - hours))
        self._forgot_until = now // 3_600_000

    async def _call(self, work: Callable[[Ledger], T]) -> T:
        def run() -> T:
            if self._ledger is None:
                self._ledger = Ledger.open(self._address)
                self._balances = None
            return work(self._ledger)

        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._thread, run)
        except LedgerError as error:
            self.complaint = str(error)
            raise
        self.complaint = ""
        return answer
