"""The addresses of a cluster's node and pods, and the link that joins the node's network to this machine's.

A node has a network namespace of its own. Its only way out is a pair of virtual interfaces; everything else (the pods'
bridge, the rules of services) is inside and goes with it. What else a cluster needs one of on this machine goes by the
number of its block (see reservations.py).
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

from gpuslice.model.errors import GpusliceError
from gpuslice_cluster.binaries import installed

#: Cut into blocks of two times 256 addresses: one for the link, one for the pods.
POOL: Final = IPv4Network("10.214.0.0/16")
_BLOCK_PREFIX: Final = 23
#: How many blocks there are.
COUNT: Final = 2 ** (_BLOCK_PREFIX - POOL.prefixlen)
#: Short, because socket addresses have room for about a hundred characters, which a state folder may not leave.
CLAIMS: Final = Path("/run/gpuslice-cluster")
#: The node's end of the link. Every namespace may have one of this name.
NODE_INTERFACE: Final = "eth0"


class NetworkError(GpusliceError):
    """Raised when a network command fails."""


@dataclass(frozen=True)
class Network:
    """A block of addresses, by its number in the pool."""

    number: int

    @property
    def block(self) -> IPv4Network:
        size = 2 ** (32 - _BLOCK_PREFIX)
        return IPv4Network((int(POOL.network_address) + self.number * size, _BLOCK_PREFIX))

    @property
    def host(self) -> str:
        """By which the node and its pods reach this machine."""
        return str(self.block[1])

    @property
    def node(self) -> str:
        return str(self.block[2])

    @property
    def pods(self) -> IPv4Network:
        return list(self.block.subnets(1))[1]

    @property
    def label(self) -> str:
        """What the interface on this machine, and the control groups, are called."""
        return f"gpuslice{self.number}"

    @property
    def claim(self) -> Path:
        """There as long as a cluster has the number."""
        return CLAIMS / str(self.number)

    @property
    def runtime_folder(self) -> Path:
        """What is /run inside the node."""
        return self.claim / "run"


def routed() -> list[IPv4Network]:
    """What this machine has routes to, the default route aside."""
    routes = json.loads(_ip("-json", "-4", "route", "show", "table", "all"))
    found = [ipaddress.ip_network(route["dst"]) for route in routes if route["dst"] != "default"]
    return [network for network in found if isinstance(network, IPv4Network)]


def join(network: Network, outside: int) -> None:
    """From inside the node's namespace: makes the link. `outside` is a descriptor of this machine's namespace."""
    remove(network, outside)
    elsewhere = f"/proc/self/fd/{outside}"
    _ip("link", "set", "lo", "up")
    peer = ("peer", "name", network.label, "netns", elsewhere)
    _ip("link", "add", NODE_INTERFACE, "type", "veth", *peer, descriptor=outside)
    _ip("address", "add", f"{network.node}/30", "dev", NODE_INTERFACE)
    _ip("link", "set", NODE_INTERFACE, "up")
    _ip("route", "add", "default", "via", network.host)
    _ip_outside(outside, "address", "add", f"{network.host}/30", "dev", network.label)
    _ip_outside(outside, "link", "set", network.label, "up")
    _ip_outside(outside, "route", "add", str(network.pods), "via", network.node)


def remove(network: Network, outside: int | None = None) -> None:
    """Removes the link if there is one. The kernel does it too when the namespace ends, but a moment later."""
    command = ("link", "delete", network.label)
    try:
        _ip(*command) if outside is None else _ip_outside(outside, *command)
    except NetworkError as error:
        if "Cannot find device" not in str(error):
            raise


def bridge_configuration(network: Network, leases: Path) -> dict[str, object]:
    """The CNI configuration of the pods' network, for the container runtime."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": str(network.pods)}]], "dataDir": str(leases)}
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods",
                "isDefaultGateway": True,
                # A pod may reach itself through a service.
                "hairpinMode": True,
                "ipam": addresses,
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def _ip_outside(outside: int, *arguments: str) -> str:
    return _run((installed("nsenter"), f"--net=/proc/self/fd/{outside}", installed("ip"), *arguments), outside)


def _ip(*arguments: str, descriptor: int | None = None) -> str:
    return _run((installed("ip"), *arguments), descriptor)


def _run(command: tuple[str, ...], descriptor: int | None) -> str:
    passed = () if descriptor is None else (descriptor,)
    result = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=passed)
    if result.returncode:
        raise NetworkError(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout
