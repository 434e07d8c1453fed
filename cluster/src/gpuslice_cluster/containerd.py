"""The container runtime of a node: containerd, with runc, CDI devices and the pods' network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuslice_cluster import network as networks
from gpuslice_cluster.binaries import MissingProgramError, installed, program
from gpuslice_cluster.components import Component, Probe

if TYPE_CHECKING:
    from gpuslice_cluster.network import Network

#: Inside the node.
SOCKET: Final = "/run/containerd/containerd.sock"
#: What holds a pod's namespaces open. There is no registry, so it is never pulled.
PAUSE_IMAGE: Final = "gpuslice.io/pause:dev"
_PLUGINS: Final = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")

_CONFIGURATION: Final = """\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
# What a node of this kind has no use for.
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.differ.v1.erofs",
  "io.containerd.nri.v1.nri",
  "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
]

[grpc]
address = "{socket}"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
# Root may lack the right to make a process less likely to be killed for its memory (CAP_SYS_RESOURCE).
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{plugins}"]
conf_dir = "{networks}"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"""


def component(folder: Path, network: Network, *, stage: int) -> Component:
    """Writes the configuration into the folder, and returns how to run it."""
    configured = folder / "cni"
    configured.mkdir(exist_ok=True)
    bridge = networks.bridge_configuration(network, folder / "leases")
    (configured / "10-pods.conflist").write_text(json.dumps(bridge, indent=2))
    text = _CONFIGURATION.format(
        socket=SOCKET, pause=PAUSE_IMAGE, plugins=_network_plugins(), networks=configured, runc=installed("runc")
    )
    path = folder / "containerd.toml"
    path.write_text(text)
    # containerd finds its shim, and the shim runc, by PATH.
    search_path = f"{program('containerd-shim-runc-v2').parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    return Component(
        "containerd",
        (str(program("containerd")), "--config", str(path)),
        environment={"PATH": search_path},
        ready=Probe(socket=SOCKET),
        stage=stage,
    )


def _network_plugins() -> str:
    for folder in _PLUGINS:
        if (Path(folder) / "bridge").exists():
            return folder
    raise MissingProgramError(
        "no CNI plugins in /usr/lib/cni; in a checkout of gpuslice, run: tools/debian-packages cluster"
    )
