"""`gpuslice top`: the GPUs and the sessions on them, live."""

from __future__ import annotations

import select
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from gpuslice.cli import agents, output, parameters

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import Console, Group

    from gpuslice.node.client import AgentClient


@click.command("top")
@click.option(
    "--interval", metavar="DURATION", callback=parameters.duration, default="1s", show_default=True,
    help="How often to look.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Show it once, and end.")
@parameters.state_option
def command(interval: float, once: bool, state: Path | None) -> None:
    """Watch the GPUs and the sessions on them.

    Leave with q or Ctrl-C. Into a pipe or a file, it prints one frame after the other.

    \b
    Example:
      gpuslice top
      gpuslice top --interval 5s
      gpuslice top --once
    """
    client = agents.connect(state)
    console = output.console()
    if once:
        console.print(_frame(client, console))
        return
    pause = max(interval, 0.1)
    try:
        if console.is_terminal and sys.stdin.isatty():
            _watch(client, console, pause)
        else:
            while True:
                console.print(_frame(client, console))
                time.sleep(pause)
    except KeyboardInterrupt:
        return


def _frame(client: AgentClient, console: Console) -> Group:
    from gpuslice.cli.top_frame import frame

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
