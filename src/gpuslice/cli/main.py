"""The command `gpuslice`: its groups, and how it fails.

A command is imported when it is called: starting `gpuslice` must not cost what the other commands need.
"""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
from typing import TYPE_CHECKING, Final, NoReturn

import click

from gpuslice.cli import standard_streams
from gpuslice.model.errors import GpusliceError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: name -> (module, one line for the list of commands)
_COMMANDS: Final = {
    "admit": ("gpuslice.cli.commands.admit", "What the admission webhook would make of manifests."),
    "agent": ("gpuslice.cli.commands.agent", "The agent of this node; also `gpusliced`."),
    "completion": ("gpuslice.cli.commands.completion", "What makes a shell complete these commands."),
    "config": ("gpuslice.cli.commands.config", "The configuration: checked, and shown with where it comes from."),
    "controller": ("gpuslice.cli.commands.controller", "What one process does for the whole cluster."),
    "manifests": ("gpuslice.cli.commands.manifests", "What to apply to a cluster to install gpuslice."),
    "ps": ("gpuslice.cli.commands.ps", "The sessions, and what they use."),
    "run": ("gpuslice.cli.commands.run", "Run a program inside its slice of a GPU."),
    "session": ("gpuslice.cli.commands.session", "Sessions made, changed and released by hand."),
    "sim": ("gpuslice.cli.commands.sim", "Simulated GPUs, for machines that have none."),
    "top": ("gpuslice.cli.commands.top", "Watch the GPUs and the sessions on them."),
    "webhook": ("gpuslice.cli.commands.webhook", "The admission webhook's server."),
}


#: As above, of the distribution gpuslice-cluster, which is for development and not where gpuslice runs.
_CLUSTER_COMMANDS: Final = {
    "cluster": ("gpuslice_cluster.command", "A real Kubernetes on this machine, with simulated GPUs."),
}


def _commands() -> dict[str, tuple[str, str]]:
    installed = importlib.util.find_spec("gpuslice_cluster") is not None
    return _COMMANDS | _CLUSTER_COMMANDS if installed else _COMMANDS


CONTEXT_SETTINGS: Final = {"help_option_names": ["-h", "--help"]}
version_option: Final = click.version_option(package_name="gpuslice", message="%(prog)s %(version)s")


class _LazyGroup(click.Group):
    """Knows its commands by name and imports the one that is called."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return sorted(_commands())

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        module, _ = _COMMANDS.get(name) or _commands().get(name) or ("", "")
        if not module and name in _CLUSTER_COMMANDS:
            raise click.UsageError(f"`gpuslice {name}` is for development: install gpuslice-cluster")
        if not module:
            return None
        command = importlib.import_module(module).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in sorted(_commands().items())])

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """As the class above has it, from what is known without importing the commands."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=line)
            for name, (_, line) in sorted(_commands().items())
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, context, incomplete)]


@click.command(cls=_LazyGroup, context_settings=CONTEXT_SETTINGS)
@version_option
def command() -> None:
    """GPU slicing: many workloads share a GPU, each inside its quota.

    \b
    Example:
      gpuslice run --limit 4GiB -- python train.py
      gpuslice admit -f pod.yaml --explain
      gpuslice manifests | kubectl apply -f -
    """


def main() -> None:
    """The command `gpuslice`."""
    run(command, "gpuslice")


def run(called: click.Command, name: str) -> NoReturn:
    """Runs a command to the end of this process. Exit codes: 0 done, 1 failed, 2 called wrongly."""
    standard_streams.prepare()
    try:
        code = called.main(prog_name=name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)  # the help: what to write, and no complaint
        sys.exit(2)
    except click.UsageError as error:
        hint = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
        _fail(f"{error.format_message()}{hint}", 2)
    except click.Abort:
        _fail("interrupted", 128 + signal.SIGINT)
    except click.ClickException as error:
        _fail(error.format_message(), 1)
    except GpusliceError as error:
        _fail(str(error), 1)
    except BrokenPipeError:
        standard_streams.give_up()  # the reader has what it wanted (`gpuslice ... | head`)
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        standard_streams.give_up()
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    sys.exit(code)


def _fail(text: str, code: int) -> NoReturn:
    from gpuslice.cli import output

    for line in output.plain_lines(text).splitlines():
        click.echo(f"error: {line}", err=True)
    sys.exit(code)
