"""`gpuslice config`: the configuration file, checked and shown."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Final

import click

from gpuslice.cli.options.configuration import VARIABLE, Configured, of_command
from gpuslice.configuration import effective, reading, showing
from gpuslice.configuration.effective import Layer
from gpuslice.configuration.problems import ConfigurationError

#: The commands that a configuration is for.
_PROGRAMS: Final = ("webhook", "controller", "agent", "manifests")


@click.group()
def command() -> None:
    """Check a configuration file, or show what is in force.

    \b
    Example:
      gpuslice config check deploy/configuration.yaml
      gpuslice config show --config deploy/configuration.yaml
    """


@command.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
def check(file: Path) -> int:
    """Tell every problem of a configuration file. The exit code is 1 if there is one.

    \b
    Example:
      gpuslice config check deploy/configuration.yaml
    """
    try:
        effective.load([Layer(str(file), reading.read_file(file))])
    except ConfigurationError as error:
        click.echo("\n".join(map(str, error.problems)), err=True)
        return 1
    click.echo(f"{file}: no problem")
    return 0


@command.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--config", "config_file", metavar="FILE", type=click.Path(path_type=Path), envvar=VARIABLE,
              help=f"The file.  [default: ${VARIABLE}, else none]")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="Form.")
@click.argument("program", metavar="[COMMAND ARGS...]", nargs=-1, type=click.UNPROCESSED)
def show(config_file: Path | None, output: str, program: tuple[str, ...]) -> None:
    """Print the configuration in force, with where each value comes from: a flag, the file or the default.

    With a command, what would be in force if that were called with these arguments. What is printed can be used as a
    file.

    \b
    Example:
      gpuslice config show --config deploy/configuration.yaml
      gpuslice config show -o json
      gpuslice config show webhook --config deploy/configuration.yaml --port 9443
    """
    if program:
        name, *arguments = program
        if name not in _PROGRAMS:
            raise click.UsageError(f"{name!r} has no configuration; write one of {', '.join(_PROGRAMS)}")
        if config_file is not None:
            arguments = ["--config", str(config_file), *arguments]
        found = of_command(importlib.import_module(f"gpuslice.cli.commands.{name}").command, arguments)
    else:
        found = Configured().take({"config_file": config_file})
    click.echo(showing.as_json(found) if output == "json" else showing.as_yaml(found), nl=output == "json")
