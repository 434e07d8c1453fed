"""What would become of pods, for people and for programs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click
import msgspec

from gpuslice.cli import output

if TYPE_CHECKING:
    from gpuslice.cli.replay.outcomes import Outcomes
    from gpuslice.cli.replay.quota_use import QuotaUse


def print_table(outcomes: Outcomes, quotas: QuotaUse | None = None) -> None:
    console = output.console()
    workloads = outcomes.workloads
    if workloads:
        table = output.table("Workload", "Pods", "Outcome", "Dialect", "Backend", "Slice", "Policy", "Why")
        for each in workloads:
            line = each.line
            why = "; ".join(filter(None, (line.why, *line.warnings)))
            cells = (line.dialect, line.backend, line.slice, line.policy, why)
            table.add_row(output.plain(line.workload), str(each.pods), line.outcome, *map(output.plain, cells))
        console.print(output.fit(table, console, ("Policy", "Backend")))
        console.print()
    counts: Counter[str] = Counter()
    for each in workloads:
        counts[each.line.outcome] += each.pods
    told = [f"{counts[outcome]} {outcome}" for outcome in sorted(counts)]
    console.print(f"Pods: {', '.join([*told, f'{outcomes.others} ask for no GPU'])}.")
    if quotas is not None:
        _print_quotas(quotas)


def _print_quotas(quotas: QuotaUse) -> None:
    uses = list(quotas.uses())
    if not uses:
        return
    console = output.console()
    table = output.table("Namespace", "Quota", "Resource", "", right=("Would use", "Allowed"))
    for use in uses:
        over = "too much" if use.over else ""
        table.add_row(use.namespace, output.plain(use.quota), output.plain(use.resource), over, use.used, use.hard)
    console.print()
    console.print(table)


def print_json(outcomes: Outcomes, quotas: QuotaUse, unread: tuple[str, ...]) -> None:
    workloads = [{"pods": each.pods, **msgspec.structs.asdict(each.line)} for each in outcomes.workloads]
    output.print_json(
        {
            "workloads": workloads,
            "podsWithoutGpu": outcomes.others,
            "quotas": list(quotas.uses()),
            "refusedByQuota": quotas.refused,
            "unread": unread,
        }
    )


def report(quotas: QuotaUse, unread: tuple[str, ...]) -> None:
    """On standard error: what could not be known, and what quotas refuse."""
    for told in unread:
        click.echo(f"warning: {output.plain_lines(told)}", err=True)
    for told in quotas.refused:
        click.echo(f"error: {output.plain_lines(told)}", err=True)
