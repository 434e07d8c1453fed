"""Options that several commands share, and what they accept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from gpuslice.model import durations, quantities, sessions

_T = TypeVar("_T")


_Callback = Callable[[click.Context, click.Parameter, str | None], Any]


def _checked(read: Callable[[str], object]) -> _Callback:
    """Reads an option's text with that function; what it complains about is said of the option."""

    def callback(_context: click.Context, _parameter: click.Parameter, text: str | None) -> object:
        try:
            return None if text is None else read(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


def _memory(text: str) -> str:
    """As it is written: what a percentage means depends on the GPU, and the agent knows it."""
    if text.strip().endswith("%"):
        quantities.parse_percent(text)
    else:
        try:
            quantities.parse_bytes(text)
        except ValueError as error:
            raise ValueError(f"{error}; or a part of the GPU, as 25%") from None
    return text.strip()


memory: Final = _checked(_memory)
duration: Final = _checked(durations.parse_seconds)
_name: Final = _checked(lambda text: text and sessions.check_name(text))

state_option = click.option(
    "--state", metavar="FOLDER", type=click.Path(path_type=Path),
    help="The agent's state folder.  [default: $GPUSLICE_STATE, else the user's]",
)  # fmt: skip
output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a new session is to be."""

    limit: str
    gpus: tuple[str, ...]
    name: str
    ttl: float | None
    ttl_kill: bool
    grace: float
    on_breach: str


def slice_options(function: Callable[..., _T]) -> Callable[..., _T]:
    """Gives the command the options of a new session, as its argument `wanted`."""

    @functools.wraps(function)
    def gathered(
        *,
        limit: str | None,
        memory: str | None,
        gpus: tuple[str, ...],
        name: str,
        ttl: float | None,
        ttl_kill: bool,
        grace: float,
        on_breach: str,
        **others: Any,  # noqa: ANN401 - what the command itself declares
    ) -> _T:
        if limit is not None and memory is not None:
            raise click.UsageError("--limit and --memory are the same: give one of them")
        size = limit if limit is not None else memory
        if size is None:
            raise click.UsageError("how much memory? Give --limit, for example --limit 256MB, 4GiB or 25%")
        if ttl_kill and ttl is None:
            raise click.UsageError("--ttl-kill needs a --ttl, for example --ttl 30m")
        wanted = Wanted(limit=size, gpus=gpus, name=name, ttl=ttl, ttl_kill=ttl_kill, grace=grace, on_breach=on_breach)
        return function(wanted=wanted, **others)

    command: Callable[..., _T] = gathered
    for option in reversed(_SLICE_OPTIONS):
        command = option(command)
    return command


_SLICE_OPTIONS: Final = (
    click.option("--limit", metavar="SIZE", callback=memory, help="Memory on each GPU: 256MB, 4GiB or 25%."),
    click.option("--memory", metavar="SIZE", callback=memory, help="The same as --limit."),
    click.option(
        "--gpu", "gpus", metavar="GPU", multiple=True,
        help="An index or a UUID; may be given several times.  [default: what CUDA_VISIBLE_DEVICES names, else all]",
    ),
    click.option("--name", metavar="NAME", callback=_name, default="", help="What to call the session."),
    click.option("--ttl", metavar="DURATION", callback=duration, help="Deny new memory after that time: 30m, 1h30m."),
    click.option("--ttl-kill", is_flag=True, help="When the --ttl is over, end the session's processes."),
    click.option(
        "--grace", metavar="DURATION", callback=duration, default="10s", show_default=True,
        help="How long memory is still given when the agent is gone.",
    ),
    click.option(
        "--on-breach", type=click.Choice([choice.value for choice in sessions.OnBreach]), default="report",
        show_default=True, help="What to do about a process that takes memory past its limit.",
    ),
)  # fmt: skip
