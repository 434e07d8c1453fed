"""`gpuslice top`: the GPUs and the sessions on them, live."""

from __future__ import annotations

import json
import select
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click
import msgspec

from gpuslice.cli import agents, output
from gpuslice.cli.options import parameters

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import Console, Group

    from gpuslice.node.admin.client import AgentClient


_SHORTEST_PAUSE: Final = 0.1


@click.command("top")
@click.option(
    "--interval", metavar="DURATION", callback=parameters.duration, default="1s", show_default=True,
    help="How often to look.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Show it once, and end.")
@click.option(
    "-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", show_default=True,
    help="How to print; as JSON, each look is a line.",
)  # fmt: skip
@parameters.state_option
def command(interval: float, once: bool, form: str, state: Path | None) -> None:
    """Watch the GPUs and the sessions on them.

    Leave with q or Ctrl-C. Into a pipe or a file, it prints one frame after the other.

    \b
    Example:
      gpuslice top
      gpuslice top --interval 5s
      gpuslice top --once -o json | jq '.sessions[].id'
    """
    client = agents.connect(state)
    console = output.console()
    pause = max(interval, _SHORTEST_PAUSE)
    with suppress(KeyboardInterrupt):
        if form == "table" and not once and console.is_terminal and sys.stdin.isatty():
            _watch(client, console, pause)
            return
        while True:
            if form == "json":
                click.echo(json.dumps(_look(client)))
            else:
                console.print(_frame(client, console))
            if once:
                return
            time.sleep(pause)


def _look(client: AgentClient) -> dict[str, object]:
    return {
        "time": time.time(),
        "agent": msgspec.to_builtins(client.status()),
        "sessions": [agents.without_token(session) for session in client.list()],
    }


def _frame(client: AgentClient, console: Console) -> Group:
    from gpuslice.cli.tables.top_frame import frame

    return frame(client.status(), client.list(), console)


def _watch(client: AgentClient, console: Console, pause: float) -> None:
    from rich.live import Live

    with _single_keys(), Live(_frame(client, console), console=console, screen=True, auto_refresh=False) as live:
        while not _pressed_q(pause):
            live.update(_frame(client, console), refresh=True)


def _pressed_q(pause: float) -> bool:
    """Waits for a key or until it is time to look again."""
    readable, _, _ = select.select([sys.stdin], [], [], pause)
    # At the terminal's end there is nothing more to wait for.
    return bool(readable) and sys.stdin.read(1) in ("q", "Q", "")


@contextmanager
def _single_keys() -> Iterator[None]:
    """The terminal hands over each key as it is pressed, and does not show it."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
