"""Options that several commands share, and what they accept."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click

from gpuslice.model import sessions
from gpuslice.model.errors import GpusliceError
from gpuslice.model.values import durations, quantities

_T = TypeVar("_T")


class InputFile(click.File):
    """A file to read. That it cannot be read is a failure: the command was not called wrongly."""

    def fail(
        self, message: str, _parameter: click.Parameter | None = None, _context: click.Context | None = None
    ) -> NoReturn:
        raise GpusliceError(message)


class InputFiles(InputFile):
    """A file to read, or a folder: all manifests in it, by the ends of their names, and in the folders in it."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        parameter: click.Parameter | None,
        context: click.Context | None,
    ) -> Any:  # noqa: ANN401 - as click has it
        folder = Path(value) if isinstance(value, str) else None
        if folder is None or not folder.is_dir():
            return [super().convert(value, parameter, context)]
        found = sorted(path for path in folder.rglob("*") if path.suffix in _MANIFESTS and path.is_file())
        if not found:
            self.fail(f"{value}: no manifest is in this folder: none of its files ends in {', '.join(_MANIFESTS)}")
        return [super(InputFiles, self).convert(str(path), parameter, context) for path in found]


_MANIFESTS: Final = (".yaml", ".yml", ".json")

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
            size = quantities.parse_bytes(text)
        except ValueError as error:
            raise ValueError(f"{error}; or a part of the GPU, as 25%") from None
        sessions.check_limit(text, size)
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
    overcommit: bool


overcommit_option = click.option(
    "--overcommit", is_flag=True, help="Even if more of a GPU is promised to sessions then than it has."
)


def slice_options(function: Callable[..., _T]) -> Callable[..., _T]:
    """Gives the command the options of a new session, as its argument `wanted`."""

    @functools.wraps(function)
    def gathered(
        *,
        limit: str | None,
        memory: str | None,
        **others: Any,  # noqa: ANN401 - what the command itself declares
    ) -> _T:
        if limit is not None and memory is not None:
            raise click.UsageError("--limit and --memory are the same: give one of them")
        size = limit if limit is not None else memory
        if size is None:
            raise click.UsageError("how much memory? Give --limit, for example --limit 256MB, 4GiB or 25%")
        named = [field.name for field in dataclasses.fields(Wanted) if field.name != "limit"]
        wanted = Wanted(limit=size, **{name: others.pop(name) for name in named})
        if wanted.ttl_kill and wanted.ttl is None:
            raise click.UsageError("--ttl-kill needs a --ttl, for example --ttl 30m")
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
    overcommit_option,
)  # fmt: skip
