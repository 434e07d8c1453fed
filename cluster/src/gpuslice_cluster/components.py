"""What a supervisor runs: programs in an order, each with a way to tell that it is ready; and how they are doing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: In a supervisor's folder: what it is to run, and how that goes.
PLAN: Final = "plan.json"
STATUS: Final = "status.json"
LOGS: Final = "logs"


class Probe(msgspec.Struct, frozen=True, omit_defaults=True):
    """Ready when this URL answers 200, or when this unix socket or file is there."""

    url: str = ""
    authority: str = ""
    certificate: str = ""
    key: str = ""
    socket: str = ""
    file: str = ""


class Component(msgspec.Struct, frozen=True, omit_defaults=True):
    """One program that runs for as long as the cluster does."""

    name: str
    arguments: tuple[str, ...]
    environment: dict[str, str] = {}
    ready: Probe = Probe()
    #: Those of the same stage are started together; a stage waits until all of the one before are ready.
    stage: int = 0
    #: How long it may take to stop by itself.
    stop_seconds: float = 10.0
    #: Run when it is stopped for good, whether or not it had ever been started. Earlier stages still run.
    after: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True):
    components: tuple[Component, ...]


class State(msgspec.Struct, frozen=True):
    """How one component is doing."""

    name: str
    state: str
    pid: int = 0
    restarts: int = 0
    detail: str = ""


class Status(msgspec.Struct, frozen=True):
    """What a supervisor writes, whole, whenever something changes."""

    supervisor: int
    components: tuple[State, ...]
    #: Why it gave up, if it did.
    failure: str = ""

    @property
    def is_ready(self) -> bool:
        return not self.failure and all(component.state == "ready" for component in self.components)


def write(path: Path, value: Plan | Status) -> None:
    """Replaces the file in one step."""
    beside = path.with_name(f".{path.name}")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    beside.replace(path)


def read_plan(folder: Path) -> Plan:
    return msgspec.json.decode((folder / PLAN).read_bytes(), type=Plan)


def read_status(folder: Path) -> Status | None:
    """What the supervisor of the folder says, or None if it has said nothing."""
    try:
        return msgspec.json.decode((folder / STATUS).read_bytes(), type=Status)
    except FileNotFoundError:
        return None


def last_lines(folder: Path, component: str, count: int = 15) -> Sequence[str]:
    """The end of a component's log, for a message."""
    with contextlib.suppress(FileNotFoundError):
        return (folder / LOGS / f"{component}.log").read_text(errors="replace").splitlines()[-count:]
    return ()


async def is_ready(probe: Probe) -> bool:
    """Asks once."""
    try:
        async with asyncio.timeout(5):
            return await _ask(probe)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, ssl.SSLError):
        return False


async def _ask(probe: Probe) -> bool:
    if probe.file:
        return os.path.exists(probe.file)  # noqa: ASYNC240, PTH110  # a look at a file does not block
    if probe.socket:
        _, writer = await asyncio.open_unix_connection(probe.socket)
        writer.close()
        return True
    if probe.url:
        return await _answers(probe)
    return True


async def _answers(probe: Probe) -> bool:
    """One request by hand: the supervisor stays small, and imports no HTTP library for it."""
    target = urlsplit(probe.url)
    context = None
    if target.scheme == "https":
        context = ssl.create_default_context(cafile=probe.authority)
        if probe.certificate:
            context.load_cert_chain(probe.certificate, probe.key)
    reader, writer = await asyncio.open_connection(target.hostname, target.port, ssl=context)
    try:
        path = target.path or "/"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {target.netloc}\r\nConnection: close\r\n\r\n".encode())
        status = await reader.readline()
        return status.split(b" ")[1:2] == [b"200"]
    finally:
        writer.close()
