"""`gpuslice ps`: the sessions of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpuslice.cli import agents, output
from gpuslice.cli.options import parameters

if TYPE_CHECKING:
    from pathlib import Path


@click.command("ps")
@click.option(
    "-o", "--output", "form", type=click.Choice(["table", "wide", "json"]), default="table", show_default=True,
    help="How to print.",
)  # fmt: skip
@parameters.state_option
def command(form: str, state: Path | None) -> None:
    """List the sessions: what they may use, what they use, and what was denied.

    \b
    Example:
      gpuslice ps
      gpuslice ps -o wide
      gpuslice ps -o json | jq '.[].gpus[].held_bytes'
    """
    sessions = agents.connect(state).list()
    if form == "json":
        output.print_json([agents.without_token(session) for session in sessions])
        return
    from gpuslice.cli.tables import session_tables

    session_tables.print_sessions(sessions, wide=form == "wide")
