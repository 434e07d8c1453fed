"""`gpuslice run`: a program inside its slice of a GPU."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from gpuslice.cli import agents
from gpuslice.cli.options import parameters
from gpuslice.cli.run import preload, program
from gpuslice.model.errors import GpusliceError

if TYPE_CHECKING:
    from pathlib import Path

    from gpuslice.node.admin.client import AgentClient
    from gpuslice.node.admin.messages import SessionView


@click.command("run", context_settings={"allow_interspersed_args": False})
@parameters.slice_options
@parameters.state_option
@click.argument("arguments", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(wanted: parameters.Wanted, arguments: tuple[str, ...], state: Path | None) -> int:
    """Run a program that gets no more GPU memory than its limit.

    All processes that it starts share the limit. The exit code is the program's. With no agent running, one is started
    for this program alone.

    \b
    Example:
      gpuslice run --limit 256MB -- python train.py
      gpuslice run --memory 25% --gpu 0 --ttl 30m -- ./simulate --steps 1000
    """
    try:
        program.check(arguments[0])
        preload.library_folder()
        client = agents.connect_or_start(state)
        session = agents.ask_for_session(client, wanted, owner_pid=os.getpid())
        try:
            return program.Program(arguments, _environment(session, narrowed=bool(wanted.gpus))).wait()
        finally:
            _release(client, session)
    except program.ProgramError as error:
        click.echo(f"error: {error}", err=True)
        return error.code


def _environment(session: SessionView, *, narrowed: bool) -> dict[str, str]:
    inside = os.environ | preload.environment(session, os.environ)
    if narrowed:
        # The program counts from the first GPU that it was given; of the others it could have nothing.
        inside["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in session.gpus)
    return inside


def _release(client: AgentClient, session: SessionView) -> None:
    """Gives the session back. If processes that outlive the program are in it, the agent does when they have ended."""
    with suppress(GpusliceError):
        client.release(session.id)
