"""`gpuslice session`: sessions made, shown, changed and released by hand."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import click

from gpuslice.cli import agents, output
from gpuslice.cli.options import parameters
from gpuslice.node.errors import AgentError

if TYPE_CHECKING:
    from pathlib import Path

    from gpuslice.node.admin.messages import SessionView


@click.group()
def command() -> None:
    """Sessions by hand; `gpuslice run` makes and releases its own.

    \b
    Example:
      eval "$(gpuslice session create --limit 4GiB --name train -o env)"
      python train.py
      gpuslice session limit train 8GiB
      gpuslice session release train
    """


@command.command()
@parameters.slice_options
@click.option(
    "-o", "--output", "form", type=click.Choice(["table", "env", "json"]), default="table", show_default=True,
    help="How to print; env gives lines for a shell.",
)  # fmt: skip
@parameters.state_option
def create(wanted: parameters.Wanted, form: str, state: Path | None) -> None:
    """Make a session and print its id.

    It stays until it is released, or until its --ttl is over and no process is in it.

    \b
    Example:
      gpuslice session create --limit 4GiB --gpu 0
      eval "$(gpuslice session create --limit 25% --ttl 1h -o env)"
    """
    from gpuslice.cli.run import preload

    preload.library_folder()
    session = agents.ask_for_session(agents.connect(state), wanted)
    if form == "json":
        output.print_json(session)
    elif form == "env":
        for variable, value in preload.environment(session, os.environ).items():
            click.echo(f"export {variable}={shlex.quote(value)}")
    else:
        click.echo(session.id)


@command.command()
@click.argument("session_id", metavar="ID")
@parameters.output_option
@parameters.state_option
def show(session_id: str, output: str, state: Path | None) -> None:
    """Show everything about a session.

    \b
    Example:
      gpuslice session show train
    """
    _print(agents.connect(state).show(session_id), output)


@command.command()
@click.argument("session_id", metavar="ID")
@click.argument("limit", metavar="SIZE", callback=parameters.memory)
@click.option("--gpu", metavar="GPU", help="Only on this GPU of the session: an index or a UUID.")
@parameters.overcommit_option
@parameters.output_option
@parameters.state_option
def limit(session_id: str, limit: str, gpu: str | None, overcommit: bool, output: str, state: Path | None) -> None:
    """Change a session's limit, also while programs run in it.

    Below what is held, the limit takes nothing away: new memory is denied until enough is freed.

    \b
    Example:
      gpuslice session limit train 512MB
      gpuslice session limit train 50% --gpu 1
    """
    client = agents.connect(state)
    try:
        changed = client.limit(session_id, limit, gpu=gpu, overcommit=overcommit)
    except AgentError as error:
        raise agents.in_the_users_words(error, limit="SIZE") from None
    _print(changed, output)


@command.command()
@click.argument("session_id", metavar="ID")
@click.option("--force", is_flag=True, help="Even while processes are in it: they keep what they hold and get no more.")
@parameters.output_option
@parameters.state_option
def release(session_id: str, force: bool, output: str, state: Path | None) -> None:
    """End a session.

    \b
    Example:
      gpuslice session release train
      gpuslice session release train --force
    """
    released = agents.connect(state).release(session_id, force=force)
    if output == "json":
        _print(released, output)
    else:
        click.echo(f"Session {released.id} is released.")


def _print(session: SessionView, form: str) -> None:
    if form == "json":
        output.print_json(agents.without_token(session))
        return
    from gpuslice.cli.tables import session_tables

    session_tables.print_session(session)
