"""`gpuslice cluster`: a real Kubernetes on this machine, with simulated GPUs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuslice.cli import output
from gpuslice_cluster import creating

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice_cluster.clusters import Cluster

_name_option = click.option(
    "--name", metavar="NAME", default=creating.DEFAULT_NAME, show_default=True, help="Which cluster."
)
_backend_option = click.option(
    "--node-backend",
    type=click.Choice(["auto", "dra", "extended"]),
    default="auto",
    show_default=True,
    help="Have the node offer its GPUs for claims (dra) or in slots (extended); auto is what the cluster serves.",
)


@click.group()
def command() -> None:
    """A real Kubernetes on this machine: control plane, and a node with simulated GPUs.

    \b
    Example:
      gpuslice cluster up
      gpuslice cluster kubectl get nodes
      gpuslice cluster down
    """


@command.command()
@_name_option
@click.option(
    "--gpus",
    metavar="GPUS",
    default=creating.DEFAULT_GPUS,
    show_default=True,
    help="What the node has: 2xA100-40GB,1xT4.",
)
@click.option("--no-node", is_flag=True, help="Only a control plane; needs no root.")
@click.option("--bare", is_flag=True, help="Without gpuslice in it; `gpuslice cluster install` brings it later.")
@_backend_option
def up(name: str, gpus: str, no_node: bool, bare: bool, node_backend: str) -> None:
    """Bring a cluster up.

    \b
    Example:
      gpuslice cluster up
      gpuslice cluster up --name lab --gpus 8xH100-80GB
      gpuslice cluster up --no-node
    """
    with _Steps() as steps:
        options = creating.ClusterOptions(
            name=name, gpus=None if no_node else gpus, install=not bare, node_backend=node_backend
        )
        cluster = creating.create(options, steps)
    option = "" if name == creating.DEFAULT_NAME else f" --name {name}"
    click.echo(f"Cluster {name!r} is up.")
    click.echo(f"Use it:  gpuslice cluster kubectl{option} get nodes")
    click.echo(f"or:      export KUBECONFIG={cluster.kubeconfig}")
    click.echo(f"End it:  gpuslice cluster down{option}")


@command.command()
@_name_option
@_backend_option
def install(name: str, node_backend: str) -> None:
    """Install gpuslice into a cluster, or bring it up to date with the sources.

    \b
    Example:
      gpuslice cluster install
    """
    cluster = _running(name)
    with _Steps() as steps:
        creating.install(cluster, node_backend, steps)


@command.command()
@_name_option
def down(name: str) -> None:
    """End a cluster and remove everything of it, also after a crash.

    \b
    Example:
      gpuslice cluster down
    """
    cluster = creating.find(name)
    if not cluster.folder.exists():
        raise click.ClickException(f"there is no cluster {name!r}: {_known()}")
    cluster.remove()
    click.echo(f"Cluster {name!r} is down.")


@command.command()
@_name_option
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print.",
)
def status(name: str, form: str) -> None:
    """Show the components of a cluster and how they do.

    \b
    Example:
      gpuslice cluster status
    """
    states = _running(name).states()
    if form == "json":
        output.print_json(states)
        return
    table = output.table("COMPONENT", "STATE", "DETAIL", right=("PID", "RESTARTS"))
    for state in states:
        table.add_row(state.name, state.state, output.plain(state.detail), str(state.pid or "-"), str(state.restarts))
    output.console().print(table)


@command.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, add_help_option=False
)
@_name_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def kubectl(name: str, arguments: tuple[str, ...]) -> None:
    """Run kubectl on a cluster, as its administrator.

    \b
    Example:
      gpuslice cluster kubectl get pods --all-namespaces
      gpuslice cluster kubectl --name lab apply -f examples/
    """
    from gpuslice_cluster.binaries import program

    path = program("kubectl")
    cluster = creating.find(name) if _asks_for_help(arguments) else _running(name)
    os.execve(path, ["kubectl", *arguments], os.environ | {"KUBECONFIG": str(cluster.kubeconfig)})  # noqa: S606


def _asks_for_help(arguments: tuple[str, ...]) -> bool:
    """Whether kubectl is to tell about itself, for which it needs no cluster."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return not arguments or arguments[0] == "help" or bool({"-h", "--help"}.intersection(own))


@command.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_name_option
@click.argument("arguments", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
def node(name: str, arguments: tuple[str, ...]) -> None:
    """Run a command on the node of a cluster, or a shell.

    \b
    Example:
      gpuslice cluster node
      gpuslice cluster node ls /var/run/cdi
    """
    from gpuslice_cluster import node as nodes

    cluster = _running(name)
    if nodes.description(cluster.folder) is None:
        raise click.ClickException(f"cluster {name!r} has no node")
    command_line = nodes.inside(cluster.folder, *(arguments or ("/bin/bash",)))
    os.execv(command_line[0], command_line)  # noqa: S606


@command.command()
@_name_option
def kubeconfig(name: str) -> None:
    """Print the path of the administrator's kubeconfig.

    \b
    Example:
      export KUBECONFIG=$(gpuslice cluster kubeconfig)
    """
    click.echo(_running(name).kubeconfig)


@command.command()
@_name_option
@click.argument("component")
@click.option("-f", "--follow", is_flag=True, help="Go on as it grows.")
def logs(name: str, component: str, follow: bool) -> None:
    """Print what a component of a cluster has said.

    \b
    Example:
      gpuslice cluster logs kubelet --follow
    """
    from gpuslice_cluster.components import LOGS

    folder = creating.find(name).folder / LOGS
    file = folder / f"{component}.log"
    if not file.is_file():
        there = ", ".join(sorted(each.stem for each in folder.glob("*.log"))) or "none"
        raise click.ClickException(f"there is no log of {component!r}; those of {name!r} are: {there}")
    arguments = ["tail", "--lines=+1", *(["--follow"] if follow else []), str(file)]
    os.execvp("tail", arguments)  # noqa: S606, S607  # the system's


@command.group()
def images() -> None:
    """Container images of a cluster; there is no registry.

    \b
    Example:
      docker save --output my-image.tar my-image
      gpuslice cluster images load my-image.tar
    """


@images.command()
@_name_option
@click.argument("archives", nargs=-1, required=True, type=click.Path(path_type=Path))
def load(name: str, archives: tuple[Path, ...]) -> None:
    """Load images into the node, from archives as `docker save` makes them.

    \b
    Example:
      gpuslice cluster images load my-image.tar
    """
    for archive in archives:
        archive.open("rb").close()  # before anything is asked of a cluster
    cluster = _running(name)
    with _Steps() as steps:
        creating.load_archives(cluster, archives, steps)


class _Steps:
    """Shows progress: a line for each step and, on a terminal, that something is still happening."""

    def __init__(self) -> None:
        self._console = output.console()
        self._started = time.monotonic()
        self._waiting = self._console.status("starting")

    def __enter__(self) -> Callable[[str], None]:
        self._waiting.start()  # shows nothing without a terminal
        return self._say

    def __exit__(self, *_: object) -> None:
        self._waiting.stop()

    def _say(self, text: str) -> None:
        self._console.print(f"{time.monotonic() - self._started:6.1f} s  {text}")
        self._waiting.update(text)


def _running(name: str) -> Cluster:
    cluster = creating.find(name)
    if cluster.status() is None:
        raise click.ClickException(f"cluster {name!r} is not up: start it with `gpuslice cluster up`; {_known()}")
    return cluster


def _known() -> str:
    from gpuslice_cluster.clusters import clusters_folder

    names = sorted(folder.name for folder in clusters_folder().glob("*"))
    return f"there are {', '.join(names)}" if names else "there is none"
