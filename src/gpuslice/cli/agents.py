"""Finding the agent, and asking it for sessions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.model.errors import GpusliceError
from gpuslice.node.admin.client import AgentClient
from gpuslice.node.errors import AgentError

if TYPE_CHECKING:
    from pathlib import Path

    from gpuslice.cli.options.parameters import Wanted
    from gpuslice.node.admin.messages import SessionView

#: What the agent calls a field of a request -> what the user wrote it as.
_OPTIONS: Final = {
    "limit": "--limit",
    "gpus": "--gpu",
    "gpu": "--gpu",
    "name": "--name",
    "ttl_seconds": "--ttl",
    "grace_seconds": "--grace",
    "on_breach": "--on-breach",
}


class NoAgentError(GpusliceError):
    """Raised when a command needs an agent and none is running."""


def connect(state: Path | None) -> AgentClient:
    """The agent that is running."""
    client = AgentClient.discover(state)
    if not is_served(client):
        option = "" if state is None else f" --state {state}"
        raise NoAgentError(f"no agent is running at {client.path}: start one with `gpuslice agent{option}`")
    return client


def connect_or_start(state: Path | None) -> AgentClient:
    """The agent that is running; if there is none, and none was asked for by its folder, one for this process alone."""
    if state is not None:
        return connect(state)
    client = AgentClient.discover()
    if is_served(client):
        return client
    from gpuslice.cli.run.private_agent import start

    return start()


def is_served(client: AgentClient) -> bool:
    """Whether an agent listens. Only its absence is a no: the first request tells of other trouble."""
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.connect(str(client.path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
    return True


def ask_for_session(client: AgentClient, wanted: Wanted, *, owner_pid: int | None = None) -> SessionView:
    """Makes the session. It ends with its owner, if it has one."""
    try:
        return client.create(
            wanted.limit,
            gpus=wanted.gpus or _visible_gpus(client),
            name=wanted.name,
            ttl_seconds=wanted.ttl,
            ttl_kill=wanted.ttl_kill,
            grace_seconds=wanted.grace,
            on_breach=wanted.on_breach,
            owner_pid=owner_pid,
            overcommit=wanted.overcommit,
        )
    except AgentError as error:
        raise in_the_users_words(error) from None


def in_the_users_words(error: AgentError, **others: str) -> GpusliceError:
    """Names the option instead of the request's field. `others` are fields that this command calls differently."""
    option = (_OPTIONS | others).get(error.field)
    return GpusliceError(f"{option}: {error}") if option else error


def without_token(session: SessionView) -> dict[str, object]:
    """The session for showing: the token gives a right to its memory, so it is left out."""
    shown: dict[str, object] = msgspec.to_builtins(session)
    shown.pop("token", None)
    return shown


def _visible_gpus(client: AgentClient) -> list[str]:
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return []
    from gpuslice.cli.run.visible_devices import named_gpus

    return named_gpus(value, client.status().gpus, by_bus=os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID")
