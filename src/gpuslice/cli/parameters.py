"""Options that several commands share, and what they accept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpuslice.model import durations, quantities, sessions

if TYPE_CHECKING:
    from collections.abc import Callable


class _Checked(click.ParamType):
    """An option that a function reads; its complaint is the user's."""

    def __init__(self, name: str, read: Callable[[str], object]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> object:  # noqa: ANN401 - as click declares it
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), parameter, context)


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


MEMORY: Final = _Checked("memory", _memory)
DURATION: Final = _Checked("duration", durations.parse_seconds)
NAME: Final = _Checked("name", sessions.check_name)

state_option = click.option(
    "--state", metavar="FOLDER", type=click.Path(path_type=Path),
    help="The agent's state folder.  [default: $GPUSLICE_STATE, else the user's]",
)  # fmt: skip
output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)


def slice_options(function: Callable[..., object]) -> Callable[..., object]:
    """What a new session is to be. Each option's name is that of an argument of `gpuslice.cli.agents.ask_for_session`."""
    for option in reversed(_SLICE_OPTIONS):
        function = option(function)
    return function


_SLICE_OPTIONS: Final = (
    click.option("--limit", metavar="SIZE", type=MEMORY, help="Memory on each GPU: 256MB, 4GiB, or 25% of the GPU."),
    click.option("--memory", metavar="SIZE", type=MEMORY, help="The same as --limit."),
    click.option(
        "--gpu", "gpus", metavar="GPU", multiple=True,
        help="An index or a UUID; may be given several times.  [default: what CUDA_VISIBLE_DEVICES names, else all]",
    ),
    click.option("--name", metavar="NAME", type=NAME, default="", help="What to call the session."),
    click.option("--ttl", metavar="DURATION", type=DURATION, help="Deny new memory after this time, as 30m or 1h30m."),
    click.option("--ttl-kill", is_flag=True, help="When the --ttl is over, end the session's processes."),
    click.option(
        "--grace", metavar="DURATION", type=DURATION, default="10s", show_default=True,
        help="How long memory is still given when the agent is gone.",
    ),
    click.option(
        "--on-breach", type=click.Choice([choice.value for choice in sessions.OnBreach]), default="report",
        show_default=True, help="What to do about a process that takes memory past its limit.",
    ),
)  # fmt: skip
