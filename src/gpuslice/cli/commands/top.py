"""`gpuslice top`: the GPUs and the sessions on them, live."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click
import msgspec

from gpuslice.cli import agents, output
from gpuslice.cli.options import parameters
from gpuslice.node.admin.client import AgentUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import Console, RenderableType

    from gpuslice.node.admin.client import AgentClient
    from gpuslice.node.admin.messages import AgentView, SessionView


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

    Leave with q or Ctrl-C. Into a pipe, a file or a terminal that cannot be drawn on, it prints one frame after the
    other. When the agent ends it waits for the next.

    \b
    Example:
      gpuslice top
      gpuslice top --interval 5s
      gpuslice top --once -o json | jq '.sessions[].id'
    """
    client = agents.connect(state)
    pause = max(interval, _SHORTEST_PAUSE)
    console = output.console(on_screen=True)
    drawn = console.is_terminal and not console.is_dumb_terminal and sys.stdin.isatty()
    with suppress(KeyboardInterrupt):
        if once:
            _print(_Look.at(client), form, output.console())
        elif form == "table" and drawn:
            _watch(client, console, pause)
        else:
            _print_forever(client, form, pause)


@dataclass(frozen=True)
class _Look:
    """What the agent said at one time."""

    time: float
    agent: AgentView
    sessions: list[SessionView]

    @classmethod
    def at(cls, client: AgentClient) -> _Look:
        return cls(time.time(), client.status(), client.list())


def _print(look: _Look, form: str, console: Console) -> None:
    if form == "json":
        sessions = [agents.without_token(session) for session in look.sessions]
        click.echo(json.dumps({"time": look.time, "agent": msgspec.to_builtins(look.agent), "sessions": sessions}))
        return
    from gpuslice.cli.tables.top_frame import frame

    console.print(frame(look.agent, look.sessions, console))


def _print_forever(client: AgentClient, form: str, pause: float) -> None:
    away = False
    while True:
        try:
            _print(_Look.at(client), form, output.console())
            away = False
        except AgentUnreachableError as error:
            if not away:
                click.echo(f"warning: {error}; waiting for it", err=True)
            away = True
        time.sleep(pause)


def _watch(client: AgentClient, console: Console, pause: float) -> None:
    from rich.live import Live

    with _ending_signals() as ending:
        with (
            _single_keys(),
            Live(_drawn(client, console), console=console, screen=True, auto_refresh=False) as live,
        ):
            while not _ends(ending, pause):
                live.update(_drawn(client, console), refresh=True)
        if _is_readable(ending):
            sys.exit(128 + os.read(ending, 1)[0])


def _drawn(client: AgentClient, console: Console) -> RenderableType:
    """As much as there is room for; while no agent answers, that."""
    from rich.text import Text

    from gpuslice.cli.tables.top_frame import frame

    try:
        look = _Look.at(client)
    except AgentUnreachableError as error:
        return Text(output.plain(f"gpuslice top  {time.strftime('%H:%M:%S')}  {error}; waiting for it"))
    return frame(look.agent, look.sessions, console, height=console.height)


def _ends(ending: int, pause: float) -> bool:
    """Waits for a key or a signal, or until it is time to look again."""
    readable, _, _ = select.select([sys.stdin, ending], [], [], pause)
    # At the terminal's end there is nothing more to wait for.
    return ending in readable or (sys.stdin in readable and sys.stdin.read(1) in ("q", "Q", ""))


def _is_readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


@contextmanager
def _ending_signals() -> Iterator[int]:
    """A descriptor from which to read the signals that would end this process: it gives the terminal back first."""
    ending, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGHUP)}
    signal.set_wakeup_fd(told)
    try:
        yield ending
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(ending)
        os.close(told)


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
