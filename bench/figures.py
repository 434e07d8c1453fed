"""Figures of a benchmark: a value, what it is compared with in the same run, and what we promise of either."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

_RESULTS: Final = Path(__file__).resolve().parent / "results"
_WIDTH: Final = 120


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of a table."""

    name: str
    unit: str
    value: float
    #: What the value is compared with.
    baseline: float | None = None
    #: For the ratio if there is a baseline, else for the value. One goal at most.
    at_most: float | None = None
    at_least: float | None = None
    #: For the value itself, where there is a baseline to show beside it.
    value_at_most: float | None = None
    #: For what the value has beyond its baseline.
    added_at_most: float | None = None
    #: How many times as long the slow turns took as those that count: see `bench.turns`.
    spread: float | None = None

    @property
    def ratio(self) -> float | None:
        return None if self.baseline is None else self.value / self.baseline

    @property
    def added(self) -> float | None:
        return None if self.baseline is None else self.value - self.baseline

    @property
    def met(self) -> bool | None:
        """Whether it is as promised; None if nothing is."""
        if self.added_at_most is not None:
            return self.added is not None and self.added <= self.added_at_most
        if self.value_at_most is not None:
            return self.value <= self.value_at_most
        judged = self.value if self.ratio is None else self.ratio
        if self.at_most is not None:
            return judged <= self.at_most
        return None if self.at_least is None else judged >= self.at_least

    @property
    def goal(self) -> str:
        if self.added_at_most is not None:
            return f"≤ {self.added_at_most:g} {self.unit} added"
        if self.value_at_most is not None:
            return f"≤ {self.value_at_most:g} {self.unit}"
        unit = self.unit if self.baseline is None else "times"
        if self.at_most is not None:
            return f"≤ {self.at_most:g} {unit}"
        return "" if self.at_least is None else f"≥ {self.at_least:g} {unit}"


def publish(name: str, title: str, baseline: str, figures: Sequence[Figure]) -> None:
    """Shows a table, and writes it down in `bench/results`."""
    table = Table("figure", title=title, title_justify="left")
    for heading in ("value", baseline, "added", "ratio", "spread", "goal"):
        table.add_column(heading, justify="right")
    for figure in figures:
        colour = {None: "", True: "[green]", False: "[red]"}[figure.met]
        by_added, by_value = figure.added_at_most is not None, figure.value_at_most is not None
        by_value = by_value or figure.baseline is None
        table.add_row(
            figure.name,
            f"{colour if by_value else ''}{figure.value:,.4g} {figure.unit}",
            "" if figure.baseline is None else f"{figure.baseline:,.4g} {figure.unit}",
            "" if figure.added is None else f"{colour if by_added else ''}{figure.added:,.3g}",
            "" if figure.ratio is None else f"{'' if by_added or by_value else colour}{figure.ratio:.3g}",
            "" if figure.spread is None else f"{figure.spread:.2f}",
            figure.goal,
        )
    # Where no width is set, a table is not folded to that of a terminal that is not there.
    console = Console()
    (console if console.is_terminal else Console(width=_WIDTH)).print(table)
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "baseline": baseline,
        "figures": [
            asdict(figure) | {"added": figure.added, "ratio": figure.ratio, "met": figure.met} for figure in figures
        ],
    }
    _RESULTS.mkdir(exist_ok=True)
    (_RESULTS / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")


def processor() -> str:
    """The model's name, as the kernel has it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
