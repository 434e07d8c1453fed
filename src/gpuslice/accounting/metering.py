"""From what is held of each GPU to entries of the ledger. Pure: whoever calls it says what time it is.

An account is one GPU: since when it has been as it is, and who holds how much of it. When anything about it changes,
the time until then is closed: one entry for each holder, and one for what nobody held. So the entries of a GPU add up
to its time by construction, to the millisecond, whatever comes and goes. Entries end at full hours (UTC) at the latest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from gpuslice.accounting.charges import GPU_PARTS, apportion, divide

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

HOUR_MS: Final = 3_600_000


class Kind(StrEnum):
    """What became of a GPU's time."""

    CHARGE = "charge"
    #: Nobody held it, and somebody could have.
    IDLE = "idle"
    #: Nobody held it, and nobody could have: the GPU was unhealthy, or its node offered it no more.
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Gpu:
    """What is metered. Slots of a device plugin are not known by GPU: the GPUs of such a node are one account."""

    name: str
    node: str = ""
    model: str = ""
    #: A million for each GPU.
    parts: int = GPU_PARTS
    #: Of an hour of one GPU, in millionths of the currency.
    price: int = 0
    usable: bool = True


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """A pod with a claim, or with slots: then the pod is the claim."""

    claim: str
    pod: str
    namespace: str = field(compare=False)
    pod_name: str = field(compare=False, default="")


@dataclass(frozen=True, slots=True)
class Holding:
    """What is held of one GPU by one claim, and for which pods: they share the charge."""

    claim: str
    namespace: str
    weight: int
    #: UID and name of each. A claim that is allocated for no pod any more is charged to its namespace alone.
    pods: tuple[tuple[str, str], ...] = ()
    #: When it began, in milliseconds since 1970, if that is known.
    since: int | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """So many parts of a GPU over a time. Claim, pod, GPU and start tell it apart from all others, for ever."""

    start: int
    until: int
    parts: int
    kind: Kind
    gpu: str
    node: str
    model: str
    price: int
    holder: Holder

    @property
    def amount(self) -> int:
        """Parts times milliseconds."""
        return self.parts * (self.until - self.start)


NOBODY: Final = Holder("", "", "", "")


@dataclass(slots=True)
class Account:
    """One GPU as it has been since a time."""

    gpu: Gpu
    since: int
    holdings: Mapping[str, Holding]
    #: Who is charged how many parts, all the while.
    shares: dict[Holder, int] = field(init=False)

    def __post_init__(self) -> None:
        self.shares = dict(_shares(self.gpu.parts, self.holdings))

    def entries(self, until: int) -> Iterator[Entry]:
        """What there is to say of the time until then."""
        gpu = self.gpu
        unheld = gpu.parts - sum(self.shares.values())
        rest = Kind.IDLE if gpu.usable else Kind.SYSTEM
        for start, end in hours_between(self.since, until):
            for holder, parts in self.shares.items():
                yield Entry(start, end, parts, Kind.CHARGE, gpu.name, gpu.node, gpu.model, gpu.price, holder)
            if unheld:
                yield Entry(start, end, unheld, rest, gpu.name, gpu.node, gpu.model, gpu.price, NOBODY)


def _shares(most: int, holdings: Mapping[str, Holding]) -> Iterator[tuple[Holder, int]]:
    found = [holdings[claim] for claim in sorted(holdings)]
    for holding, parts in zip(found, apportion([each.weight for each in found], most), strict=True):
        pods = sorted(holding.pods) or [("", "")]
        for (uid, name), own in zip(pods, divide(parts, len(pods)), strict=True):
            yield Holder(holding.claim, uid, holding.namespace, name), own


def hours_between(start: int, until: int) -> Iterator[tuple[int, int]]:
    """The time cut at full hours."""
    while start < until:
        end = min(until, (start // HOUR_MS + 1) * HOUR_MS)
        yield start, end
        start = end


class Meter:
    """All accounts. Each change returns the entries that it closes."""

    def __init__(self) -> None:
        self.accounts: Final[dict[str, Account]] = {}
        #: What namespaces hold now, parts by price: kept here so that asking costs nothing.
        self._rates: dict[str, dict[int, int]] = {}

    def observe(self, gpu: Gpu, holdings: Iterable[Holding], now: int) -> list[Entry]:
        """The GPU is so now, and held so. A time before the account's is taken for the account's."""
        held = {each.claim: each for each in holdings}
        account = self.accounts.get(gpu.name)
        if account is None:
            self._open(Account(gpu, now, held))
            return []
        if account.gpu == gpu and _same(account.holdings, held):
            return []
        return self._change(account, max(now, account.since), gpu, held)

    def remove(self, name: str, now: int) -> list[Entry]:
        """The GPU is gone, and nobody holds it."""
        account = self.accounts.pop(name, None)
        if account is None:
            return []
        self._count(account, -1)
        return list(account.entries(max(now, account.since)))

    def cut(self, now: int) -> list[Entry]:
        """Closes the hours that are over."""
        boundary = now // HOUR_MS * HOUR_MS
        closed: list[Entry] = []
        for account in self.accounts.values():
            if account.since < boundary:
                closed += account.entries(boundary)
                account.since = boundary
        return closed

    def resume(self, accounts: Sequence[Account], sampled: int) -> None:
        """Begins with what another process knew when it last looked, at `sampled`."""
        self.accounts.clear()
        self._rates.clear()
        for account in accounts:
            account.since = min(account.since, sampled)
            self._open(account)

    def reconcile(self, gpu: Gpu, holdings: Iterable[Holding], sampled: int, now: int) -> list[Entry]:
        """The first look at a GPU since `sampled`. Who was there and is not any more ended then, as far as anybody
        knows; who is new began when it says so, within the time in which nobody looked.
        """
        held = {each.claim: each for each in holdings}
        account = self.accounts.get(gpu.name)
        if account is None:
            return self.observe(gpu, held.values(), now)
        stayed = {claim: each for claim, each in account.holdings.items() if claim in held}
        closed = self.observe(account.gpu, stayed.values(), sampled)
        begun = {
            claim: min(now, max(sampled, now if each.since is None else each.since))
            for claim, each in held.items()
            if claim not in stayed
        }
        for claim in sorted(begun, key=lambda each: (begun[each], each)):
            stayed = stayed | {claim: held[claim]}
            closed += self.observe(account.gpu, stayed.values(), begun[claim])
        return closed + self.observe(gpu, held.values(), now)

    def rates(self, namespace: str) -> Mapping[int, int]:
        """Parts that the namespace is charged now, by price."""
        return self._rates.get(namespace, {})

    def running(self, start: int, now: int) -> dict[str, dict[int, int]]:
        """What was charged since `start` and is not in an entry yet: amounts by namespace and price."""
        found: dict[str, dict[int, int]] = {}
        for account in self.accounts.values():
            time = now - max(start, account.since)
            if time <= 0:
                continue
            for holder, parts in account.shares.items():
                by_price = found.setdefault(holder.namespace, {})
                by_price[account.gpu.price] = by_price.get(account.gpu.price, 0) + parts * time
        return found

    def _change(self, account: Account, now: int, gpu: Gpu, held: Mapping[str, Holding]) -> list[Entry]:
        closed = list(account.entries(now))
        self._count(account, -1)
        self._open(Account(gpu, now, held))
        return closed

    def _open(self, account: Account) -> None:
        self.accounts[account.gpu.name] = account
        self._count(account, 1)

    def _count(self, account: Account, sign: int) -> None:
        for holder, parts in account.shares.items():
            by_price = self._rates.setdefault(holder.namespace, {})
            left = by_price.get(account.gpu.price, 0) + sign * parts
            if left:
                by_price[account.gpu.price] = left
            else:
                by_price.pop(account.gpu.price, None)
                if not by_price:
                    del self._rates[holder.namespace]


def _same(one: Mapping[str, Holding], other: Mapping[str, Holding]) -> bool:
    """Whether the same is charged; when a holding began is not a part of it."""
    return one.keys() == other.keys() and all(
        (each.weight, each.pods, each.namespace) == (other[claim].weight, other[claim].pods, other[claim].namespace)
        for claim, each in one.items()
    )
