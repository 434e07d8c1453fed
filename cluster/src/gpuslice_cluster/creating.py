"""Brings a whole cluster up: simulated GPUs, control plane, node and images, step by step."""

from __future__ import annotations

import contextlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuslice.simulator import configuration
from gpuslice.simulator import machine as machines
from gpuslice_cluster import control_plane, installation, reservations
from gpuslice_cluster import node as nodes
from gpuslice_cluster.clusters import Cluster, ClusterError, clusters_folder, new_layout
from gpuslice_cluster.images import catalogue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from gpuslice.simulator.machine import Machine
    from gpuslice_cluster.components import Status
    from gpuslice_cluster.images.catalogue import Built

DEFAULT_NAME: Final = "gpuslice"
DEFAULT_GPUS: Final = "8xA100-40GB"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_SECONDS_TO_JOIN: Final = 120
_NODE_STAGE: Final = 3


@dataclass(frozen=True)
class ClusterOptions:
    """What the user asks of `up`."""

    name: str = DEFAULT_NAME
    #: None for a control plane without a node.
    gpus: str | None = DEFAULT_GPUS
    #: Whether gpuslice is to be installed; only with a node.
    install: bool = True
    #: How the node offers its GPUs: by what the cluster serves, or as this says.
    node_backend: str = "auto"
    #: Where to keep it, if not with the user's other clusters.
    folder: Path | None = None
    #: The cluster ends when this process does.
    owner: int | None = None


def find(name: str) -> Cluster:
    """The user's cluster of this name, which may be down."""
    return Cluster(clusters_folder() / _check_name(name))


def create(options: ClusterOptions, say: Callable[[str], None]) -> Cluster:
    """Brings it up. If that fails, only logs are left; if gpuslice in it fails, the cluster stays, to be looked at."""
    cluster = Cluster(options.folder or clusters_folder() / _check_name(options.name))
    status = cluster.status()
    if status is not None and not status.failure:
        raise ClusterError(f"cluster {options.name!r} is up: take it down first, or choose another --name")
    if options.gpus is not None and os.geteuid() != 0:
        raise ClusterError("a node needs root: use sudo, or say --no-node for a control plane alone")
    cluster.remove()  # what a killed one left
    cluster.folder.mkdir(parents=True)
    with contextlib.ExitStack() as undo:
        undo.callback(cluster.stop)
        if options.gpus is None:
            cluster.start(control_plane.plan(new_layout(cluster.folder)), owner=options.owner, progress=_Progress(say))
            content = None
        else:
            content = _start_with_node(cluster, options, options.gpus, say)
        undo.pop_all()
    if content is not None and options.install:
        installation.install(cluster, _node(cluster).machine, content, options.node_backend, say)
    return cluster


def load_archives(cluster: Cluster, archives: Iterable[Path], say: Callable[[str], None]) -> None:
    """Puts images that the user built on the node."""
    node = _node(cluster)
    for path in archives:
        say(f"loading {path}")
        catalogue.load_archive(node.socket, path)


def install(cluster: Cluster, node_backend: str, say: Callable[[str], None]) -> None:
    """Makes the images anew, and installs or updates gpuslice from them."""
    node = _node(cluster)
    content = _load_images(node, _build_images(), say)
    installation.install(cluster, node.machine, content, node_backend, say)


def _build_images() -> list[Built]:
    return [catalogue.build(image) for image in catalogue.IMAGES]


def _load_images(node: nodes.Description, images: list[Built], say: Callable[[str], None]) -> str:
    """Returns a fingerprint of gpuslice's own image."""
    for built in images:
        say(f"loading {built.image.name}")
        catalogue.load(node.socket, built)
    return next(built.content for built in images if built.image.name == catalogue.GPUSLICE_IMAGE)


def _node(cluster: Cluster) -> nodes.Description:
    node = nodes.description(cluster.folder)
    if node is None:
        raise ClusterError("this cluster has no node: bring one up without --no-node")
    return node


def _start_with_node(cluster: Cluster, options: ClusterOptions, gpus: str, say: Callable[[str], None]) -> str:
    """Returns a fingerprint of gpuslice's image."""
    say(f"simulating {gpus}")
    machine_configuration = configuration.from_text(gpus, name=options.name)
    reservations.take_back_all()
    if options.name in {machine.name for machine in machines.machines()}:
        down = f"gpuslice sim down{machines.name_option(options.name)}"
        raise ClusterError(
            f"a simulated machine {options.name!r} is up: take it down with `{down}`, or use another --name"
        )
    claim, holding = reservations.take(cluster.folder, options.name)
    with contextlib.ExitStack() as held, contextlib.ExitStack() as undo:
        held.callback(os.close, holding)  # when all is well, the supervisor holds it
        undo.callback(reservations.give_back, cluster.folder)
        undo.callback(cluster.stop)
        machine = machines.create(machine_configuration)
        _bring_libraries(machine)
        layout = new_layout(cluster.folder, claim.network.host)
        node = nodes.Description(f"{options.name}-node", claim.network.number, machine.name)
        plan = (*control_plane.plan(layout), nodes.plan(layout, node, stage=_NODE_STAGE))
        with ThreadPoolExecutor(1) as background:
            images = background.submit(_build_images)
            cluster.start(plan, owner=options.owner, keep=holding, progress=_Progress(say))
            content = _load_images(node, images.result(), say)
        say("waiting for the node to join")
        cluster.kubectl("wait", "--for=condition=Ready", f"node/{node.name}", f"--timeout={_SECONDS_TO_JOIN}s")
        undo.pop_all()
    return content


def _bring_libraries(machine: Machine) -> None:
    """Copies the simulated driver into the machine's folder: containers see that, but not this installation."""
    for library in machine.libraries.iterdir():
        if library.readlink().is_absolute():
            content = library.read_bytes()
            library.unlink()
            library.write_bytes(content)
            library.chmod(0o755)


class _Progress:
    """Says each component once, when it is ready."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._ready: set[str] = set()

    def __call__(self, status: Status) -> None:
        for state in status.components:
            if state.state == "ready" and state.name not in self._ready:
                self._ready.add(state.name)
                self._say(f"{state.name} is ready")


def _check_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        allowed = "up to 40 lower-case letters, digits and '-', with a letter or digit at both ends"
        raise ClusterError(f"{name!r} cannot name a cluster: use {allowed}")
    return name
