"""Figures of a benchmark: a value, what it is compared with in the same run, and what we promise of either."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

_RESULTS: Final = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of a table."""

    name: str
    unit: str
    value: float
    #: What the value is compared with.
    baseline: float | None = None
    #: For the ratio if there is a baseline, else for the value. One of them at most.
    at_most: float | None = None
    at_least: float | None = None

    @property
    def ratio(self) -> float | None:
        return None if self.baseline is None else self.value / self.baseline

    @property
    def met(self) -> bool | None:
        """Whether it is as promised; None if nothing is."""
        judged = self.value if self.ratio is None else self.ratio
        if self.at_most is not None:
            return judged <= self.at_most
        return None if self.at_least is None else judged >= self.at_least

    @property
    def goal(self) -> str:
        unit = self.unit if self.baseline is None else "times"
        if self.at_most is not None:
            return f"≤ {self.at_most:g} {unit}"
        return "" if self.at_least is None else f"≥ {self.at_least:g} {unit}"


def publish(name: str, title: str, baseline: str, figures: Sequence[Figure]) -> None:
    """Shows a table, and writes it down in `bench/results`."""
    table = Table("figure", title=title, title_justify="left")
    for heading in ("value", baseline, "ratio", "goal"):
        table.add_column(heading, justify="right")
    for figure in figures:
        colour = {None: "", True: "[green]", False: "[red]"}[figure.met]
        table.add_row(
            figure.name,
            f"{'' if figure.baseline is not None else colour}{figure.value:,.4g} {figure.unit}",
            "" if figure.baseline is None else f"{figure.baseline:,.4g} {figure.unit}",
            "" if figure.ratio is None else f"{colour}{figure.ratio:.3g}",
            figure.goal,
        )
    Console().print(table)
    report = {
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "baseline": baseline,
        "figures": [asdict(figure) | {"ratio": figure.ratio, "met": figure.met} for figure in figures],
    }
    _RESULTS.mkdir(exist_ok=True)
    (_RESULTS / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")
