"""`--config FILE`, and the flags that override single values of the file.

A command names its flags and the fields that they stand for; the form, the default and the help of a flag are the
field's (see configuration/schema.py). A value from a flag is checked as one from the file is.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from msgspec import Struct

from gpuslice.configuration import effective, fields
from gpuslice.configuration.effective import Effective, Layer, Override
from gpuslice.configuration.problems import ConfigurationError
from gpuslice.configuration.schema import Configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpuslice.configuration.fields import Field

_T = TypeVar("_T")

VARIABLE: Final = "GPUSLICE_CONFIG"
_FILE: Final = "config_file"


class Flag(Struct, frozen=True):
    """A flag for one field."""

    #: As `--port`.
    name: str
    #: As `webhook.port`.
    path: str
    #: Other spellings of the flag.
    also: tuple[str, ...] = ()
    #: Of an entry of a mapping, as `GPU=MODE`.
    metavar: str = ""
    #: Instead of the field's description.
    help: str = ""

    @property
    def parameter(self) -> str:
        """What click calls it."""
        return f"field_{self.path.replace('.', '__')}"

    def option(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        field = fields.at(Configuration, self.path)
        names = (self.parameter, *self.also, self.name)
        if field.kind is bool:
            names = (self.parameter, f"{self.name}/--no-{self.name[2:]}")
        return click.option(
            *names,
            default=None,
            type=click.Choice(field.choices) if field.choices else None,
            metavar=None if field.choices or field.kind is bool else self.metavar or field.form.metavar,
            multiple=field.is_list or field.is_mapping,
            help=self.help or _help(field),
        )

    def override(self, given: Any) -> Override | None:  # noqa: ANN401 - as click has it
        """None if it was not given."""
        field = fields.at(Configuration, self.path)
        if given is None or (given == () and (field.is_list or field.is_mapping)):
            return None
        return Override(self.name, self.path, self._value(field, given))

    def _value(self, field: Field, given: Any) -> Any:  # noqa: ANN401 - as click has it, and as a file has it
        if field.is_mapping:
            return dict(map(self._entry, given))
        if field.is_list:
            return list(given)
        return int(given) if field.kind is int and given.strip().lstrip("-").isdecimal() else given

    def _entry(self, text: str) -> tuple[str, str]:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{self.name} {text!r}: write {self.metavar}, for example 0=mig")
        return key, value


def _help(field: Field) -> str:
    text = field.description
    if field.is_list or field.is_mapping:
        text = f"{text.rstrip('.')}; may be given several times."
    if "[default:" in text or field.default in (None, "", (), False, {}):
        return text
    return f"{text}  [default: {field.default}]"


class Configured(Struct, frozen=True):
    """How a command's configuration is made of what it is called with."""

    flags: tuple[Flag, ...] = ()
    #: Whether the command reads pods, or prints what does.
    dialects: bool = True

    def options(self) -> Iterator[Callable[[Callable[..., Any]], Callable[..., Any]]]:
        yield click.option(
            "--config",
            _FILE,
            metavar="FILE",
            type=click.Path(path_type=Path),
            envvar=VARIABLE,
            help=f"The configuration, as deploy/configuration.yaml; flags override single values.  "
            f"[default: ${VARIABLE}, else none]",
        )
        for flag in self.flags:
            yield flag.option()

    def take(self, parameters: dict[str, Any], *, dialects: bool | None = None) -> Effective:
        """What is in force, of the parameters that click found. Takes them away."""
        file: Path | None = parameters.pop(_FILE)
        found = [flag.override(parameters.pop(flag.parameter)) for flag in self.flags]
        try:
            layers = [] if file is None else [_layer(file)]
            overrides = [each for each in found if each is not None]
            return effective.load(layers, overrides, dialects=self.dialects if dialects is None else dialects)
        except ConfigurationError as error:
            if all(problem.is_of_flag for problem in error.problems):
                raise click.UsageError("; ".join(map(str, error.problems))) from None
            raise


def _layer(file: Path) -> Layer:
    from gpuslice.configuration import reading

    return Layer(str(file), reading.read_file(file))


def configured(*flags: Flag, dialects: bool = True) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """Gives the command `--config` and those flags, and what is in force as its argument `effective`."""
    configured = Configured(flags, dialects)

    def decorate(function: Callable[..., _T]) -> Callable[..., _T]:
        @functools.wraps(function)
        def gathered(**parameters: Any) -> _T:  # noqa: ANN401 - what the command itself declares
            found = configured.take(parameters)
            return function(effective=found, **parameters)

        command: Callable[..., _T] = gathered
        command.__dict__["configured"] = configured
        for option in reversed(list(configured.options())):
            command = option(command)
        return command

    return decorate


def of_command(command: click.Command, arguments: list[str]) -> Effective:
    """What would be in force if the command were called with these. Raises UsageError if it has no configuration."""
    configured = getattr(command.callback, "configured", None)
    if not isinstance(configured, Configured):
        raise click.UsageError(f"{command.name} has no configuration; webhook, controller and agent have one")
    parameters: Mapping[str, Any] = command.make_context(command.name, list(arguments)).params
    return configured.take(dict(parameters), dialects=True)
