"""Entries for tests."""

from __future__ import annotations

import random

from gpuslice.accounting.charges import GPU_PARTS
from gpuslice.accounting.metering import HOUR_MS, NOBODY, Account, Entry, Gpu, Holder, Holding, Kind, Meter

#: The first of January 2027.
YEAR = 1_798_761_600_000
DAY = 24 * HOUR_MS


def charge(namespace: str, start: int, until: int, parts: int = GPU_PARTS, *, price: int = 0, gpu: str = "gpu",
           model: str = "A100-40GB", pod: str = "p") -> Entry:  # fmt: skip
    holder = Holder(f"claim-{namespace}", f"uid-{pod}", namespace, pod)
    return Entry(start, until, parts, Kind.CHARGE, gpu, "node", model, price, holder)


def idle(start: int, until: int, parts: int = GPU_PARTS, gpu: str = "gpu") -> Entry:
    return Entry(start, until, parts, Kind.IDLE, gpu, "node", "A100-40GB", 0, NOBODY)


def account(gpu: str, since: int, namespace: str = "team") -> Account:
    return Account(
        Gpu(gpu, "node", "A100-40GB", price=7), since, {"c": Holding("c", namespace, 500_000, (("u", "p"),))}
    )


def days_of_entries(days: int, seed: int = 16) -> list[Entry]:
    """As a meter makes them: two GPUs, four namespaces that come and go, at any millisecond."""
    dice = random.Random(seed)  # noqa: S311 - the same every time
    meter, now, entries = Meter(), YEAR, []
    while now < YEAR + days * DAY:
        gpu = Gpu(dice.choice(["one", "two"]), "node", "A100-40GB", price=dice.choice([0, 2_500_000]))
        held = [
            Holding(name, name, dice.randrange(1, GPU_PARTS), ((f"u-{name}", f"p-{name}"),))
            for name in dice.sample(["a", "b", "c", "d"], dice.randrange(4))
        ]
        entries += meter.observe(gpu, held, now) + meter.cut(now)
        now += dice.randrange(1, 2 * HOUR_MS)
    return entries + meter.remove("one", now) + meter.remove("two", now)
