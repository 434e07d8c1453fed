"""`gpuslice sim`: simulated machines, up and down."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuslice.simulator import configuration as configurations
from gpuslice.simulator import machine as machines
from gpuslice.simulator.configuration import ConfigurationError
from gpuslice.simulator.machine import Machine, SimulatorError

if TYPE_CHECKING:
    from gpuslice.simulator.configuration import Configuration
    from gpuslice.simulator.driver import MachineStatus

_name_option = click.option("--name", metavar="NAME", help="Which machine.  [default: $GPUSLICE_SIM, else default]")
_output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)


@click.group()
def command() -> None:
    """Simulated GPUs, for machines that have none.

    \b
    Example:
      gpuslice sim up --gpus 2xA100-40GB
      eval "$(gpuslice sim env)"
      python -c 'from numba import cuda; cuda.detect()'
      gpuslice sim down
    """


@command.command()
@click.option("--gpus", metavar="GPUS", help=f"For example 2xA100-40GB,1xT4.  [default: {configurations.DEFAULT_GPUS}]")
@click.option(
    "-f", "--file", metavar="FILE", type=click.Path(path_type=Path), help="A TOML file that describes the machine."
)
@click.option("--name", metavar="NAME", help="What to call it.  [default: the file's name for it, else default]")
def up(gpus: str | None, file: Path | None, name: str | None) -> None:
    """Start a simulated machine.

    \b
    Example:
      gpuslice sim up --gpus 2xA100-40GB
      gpuslice sim up -f examples/machine.toml --name lab
    """
    if gpus is not None and file is not None:
        raise click.UsageError("--gpus and -f both say which GPUs: give one of them")
    configuration = _from_options(gpus, name) if file is None else configurations.from_file(file, name=name)
    machines.create(configuration)
    count = len(configuration.gpus)
    click.echo(f"Machine {configuration.name!r} is up with {count} simulated GPU{'s' if count > 1 else ''}.")
    click.echo(f'Use it in this shell:  eval "$(gpuslice sim env{machines.name_option(configuration.name)})"')


def _from_options(gpus: str | None, name: str | None) -> Configuration:
    try:
        return configurations.from_text(
            configurations.DEFAULT_GPUS if gpus is None else gpus, name=name or configurations.DEFAULT_NAME
        )
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None


@command.command()
@_name_option
@_output_option
def status(name: str | None, output: str) -> None:
    """Show a machine's GPUs and what runs on them.

    \b
    Example:
      gpuslice sim status
      gpuslice sim status -o json | jq '.gpus[].used_bytes'
    """
    from gpuslice.simulator import driver

    found = driver.status(machines.find(name))
    if output == "json":
        click.echo(json.dumps(dataclasses.asdict(found), indent=2))
        return
    from gpuslice.cli.tables import sim_tables

    sim_tables.print_status(found)


@command.command()
@_name_option
@click.option("--all", "everything", is_flag=True, help="Every machine that is up.")
@click.option("--force", is_flag=True, help="Even while processes use it, or when it cannot be read.")
def down(name: str | None, everything: bool, force: bool) -> None:
    """Remove a simulated machine.

    Refuses while processes have contexts on its GPUs.

    \b
    Example:
      gpuslice sim down
      gpuslice sim down --all --force
    """
    if everything and name is not None:
        raise click.UsageError("--all and --name both say which machine: give one of them")
    from gpuslice.simulator import driver

    for machine in machines.machines() if everything else [machines.find(name)]:
        if not force:
            _refuse_in_use(machine, driver.in_own_process(driver.status, machine))
        machine.destroy()
        click.echo(f"Machine {machine.name!r} is down.")


def _refuse_in_use(machine: Machine, found: MachineStatus) -> None:
    if found.processes:
        users = ", ".join(f"{process.pid} ({process.name})" for process in found.processes)
        raise SimulatorError(f"machine {machine.name!r} is in use by {users}: end them, or say --force")


@command.command()
@_name_option
@click.option("--shell", type=click.Choice(["sh", "fish", "json"]), default="sh", show_default=True, help="Which form.")
def env(name: str | None, shell: str) -> None:
    """Print what puts a process on a machine.

    \b
    Example:
      eval "$(gpuslice sim env)"
      gpuslice sim env --shell fish | source
    """
    variables = machines.find(name).environment(os.environ)
    if shell == "json":
        click.echo(json.dumps(variables, indent=2))
        return
    for variable, value in variables.items():
        quoted = shlex.quote(value)
        click.echo(f"set -gx {variable} {quoted}" if shell == "fish" else f"export {variable}={quoted}")


@command.command()
@_name_option
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where the container runtime looks for CDI specs.  [default: /var/run/cdi]",
)
def cdi(name: str | None, output: Path | None) -> None:
    """Give containers a machine's GPUs: write the CDI spec of its devices.

    Stands for `nvidia-ctk cdi generate` on a machine with GPUs: a device per GPU and per MIG device, named by UUID, and
    one for all of them. Write it again when MIG devices were made or destroyed.

    \b
    Example:
      gpuslice sim cdi
      ctr run --device nvidia.com/gpu=all ...
    """
    from gpuslice.simulator import cdi as specs
    from gpuslice.simulator import driver

    machine = machines.find(name)
    found = driver.status(machine).gpus
    uuids = [uuid for gpu in found for uuid in (gpu.uuid, *(device.uuid for device in gpu.mig_devices))]
    path = specs.write(machine, uuids, output or specs.DEFAULT_FOLDER)
    click.echo(f"{path}: {len(uuids)} device{'s' if len(uuids) != 1 else ''} of kind {specs.KIND}, and `all`.")


@command.command("list")
@_output_option
def list_(output: str) -> None:
    """List the machines that are up.

    \b
    Example:
      gpuslice sim list
    """
    rows = []
    for machine in machines.machines():
        description = machine.description()
        models = [description.gpus[index].model.decode() for index in range(description.gpu_count)]
        rows.append({"name": machine.name, "directory": str(machine.directory), "gpus": models})
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    from gpuslice.cli.tables import sim_tables

    sim_tables.print_machines(rows)


@command.command()
@_name_option
@click.option("--gpu", type=click.IntRange(0), required=True, help="The GPU's index.")
@click.option(
    "--xid", type=click.IntRange(1, 2**32 - 1), required=True, help="The error; 79 takes the GPU off the bus."
)
def inject(name: str | None, gpu: int, xid: int) -> None:
    """Make a GPU report an error (an XID).

    \b
    Example:
      gpuslice sim inject --gpu 0 --xid 79
    """
    from gpuslice.simulator import driver

    driver.inject_xid(machines.find(name), gpu, xid)
    click.echo(f"GPU {gpu} reported XID {xid}.")


@command.command()
@_output_option
def presets(output: str) -> None:
    """List the GPU models that can be simulated by name.

    \b
    Example:
      gpuslice sim presets
    """
    from gpuslice.model.gpus import PRESETS

    if output == "json":
        click.echo(json.dumps([dataclasses.asdict(model) for model in PRESETS.values()], indent=2))
        return
    from gpuslice.cli.tables import sim_tables

    sim_tables.print_presets(PRESETS.values())
