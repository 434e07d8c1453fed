"""Whatever is wrong with the session: memory is denied, one line says why, and the program goes on."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import pytest

from gpuslice.node.sessions import page
from gpuslice.node.sessions.cells import SEALS
from tests.interposer.node import MIB, OUT_OF_MEMORY, Tenant
from tests.native.inside import python_path
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from tests.interposer.node import Node

KINDS = ["linear", "managed", "pitched", "async", "default-pool", "own-pool", "physical", "array-2d", "array-3d"]
KINDS += ["mipmap", "graph", "graph-node", "capture"]


def denies_everything(node: Node, tenant: Tenant, reason: str) -> None:
    for kind in KINDS:
        assert tenant.take(kind, 2 * MIB) == OUT_OF_MEMORY, kind
    assert tenant.info()[0] == 0
    assert node.used() == [0]
    assert tenant.do("synchronize") == 0
    lines = tenant.close().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"gpuslice: no GPU memory for process {tenant.process.pid}: ")
    assert reason in lines[0]
    assert tenant.process.returncode == 0


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"GPUSLICE_IPC_SOCK": "/nonexistent/socket"}, "no agent answers at /nonexistent/socket"),
        ({"GPUSLICE_IPC_SOCK": ""}, "GPUSLICE_IPC_SOCK is not set"),
        ({"GPUSLICE_IPC_SOCK": "/" + "x" * 200}, "too long for a socket path"),
        ({"GPUSLICE_IPC_TOKEN": "wrong"}, "refused session"),
        ({"GPUSLICE_IPC_TOKEN": ""}, "GPUSLICE_IPC_TOKEN is not set"),
        ({"GPUSLICE_SESSION": "nobody"}, "refused session nobody"),
        ({"GPUSLICE_SESSION": ""}, "GPUSLICE_SESSION is not set"),
        ({"GPUSLICE_SESSION": "x" * 100}, "GPUSLICE_SESSION is not set"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_session_that_cannot_be_had(changed: dict[str, str], reason: str, node: Node) -> None:
    denies_everything(node, node.tenant(node.session(), extra=changed), reason)


def test_a_program_whose_stderr_is_not_read_does_not_stop(node: Node) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    try:
        program = node.start([node.tenant_program], node.session(), {"GPUSLICE_IPC_TOKEN": "wrong"}, errors=writer)
        tenant = Tenant(program)
        assert tenant.ask("device 0") == "0"
        assert tenant.take("linear", MIB) == OUT_OF_MEMORY
    finally:
        os.close(reader)
        os.close(writer)


def test_an_agent_that_is_gone(node: Node) -> None:
    session = node.session()
    assert node.agent is not None
    node.agent.kill()
    denies_everything(node, node.tenant(session), "no agent answers")


def test_nvml_shows_no_gpu_and_says_why_once(node: Node) -> None:
    program = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount(), n.nvmlDeviceGetCount())"
    done = node.run([sys.executable, "-c", program], node.session(), {"GPUSLICE_IPC_TOKEN": "wrong"} | python_path())
    assert done.stdout == "0 0\n"
    assert done.stderr.count("\n") == 1
    assert "refused session" in done.stderr


def test_a_process_that_was_refused_is_let_in_when_the_agent_is_there(node: Node) -> None:
    session = node.session()
    assert node.agent is not None
    node.agent.kill()
    tenant = node.tenant(session)
    assert tenant.take("linear", MIB) == OUT_OF_MEMORY
    assert tenant.take("async", MIB) == OUT_OF_MEMORY
    node.agent.start()
    eventually(lambda: tenant.take("async", MIB) == 0, "the second try")
    tenant.fill("linear", MIB, times=1)


def test_a_process_that_is_told_to_ask_again_does(node: Node) -> None:
    session = node.session()
    path, real = node.folder / "busy", node.folder / "real"
    os.link(session.socket, real)
    asked = 0

    def refuse_twice() -> tuple[bytes, list[int]]:
        nonlocal asked
        asked += 1
        if asked == 2:
            real.rename(path)  # from here on the agent itself answers
        return answer(status=page.ATTACH_BUSY, slot=page.NO_SLOT), []

    with Impostor(path, refuse_twice):
        tenant = node.tenant(session, extra={"GPUSLICE_IPC_SOCK": str(path)})
        assert tenant.take("linear", MIB) == 0
    assert asked == 2
    assert tenant.close() == ""


# ---- an agent that answers nonsense ----


class Impostor:
    """Answers every attach with the same bytes and descriptors."""

    def __init__(self, path: Path, answer: Callable[[], tuple[bytes, list[int]]]) -> None:
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._kept: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for connection in [self._listener, *self._kept]:
            connection.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.recv(1024)
            content, descriptors = self._answer()
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            if content:
                connection.sendmsg([content], rights)
                self._kept.append(connection)
            else:
                connection.close()
            for descriptor in descriptors:
                os.close(descriptor)


def memory(content: bytes, size: int, seals: int = 0) -> int:
    descriptor = os.memfd_create("page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def control(**changes: int) -> bytes:
    made = page.Control(magic=page.MAGIC, version=page.VERSION, gpu_count=1)
    for name, value in changes.items():
        setattr(made, name, value)
    return bytes(made)


def answer(**changes: int) -> bytes:
    made = page.Attached(magic=page.ATTACH_MAGIC, version=page.VERSION, status=page.ATTACH_OK, slot=0, gpu_count=1)
    for name, value in changes.items():
        setattr(made, name, value)
    return bytes(made)


def pages(
    content: bytes,
    *,
    control_bytes: int = page.CONTROL_BYTES,
    cells: int = page.cells_bytes(1),
    seals: int = SEALS,
    other: bool = False,
) -> list[int]:
    """A control page and cells, which the page names unless it is to name others."""
    made = [memory(content, control_bytes), memory(b"", cells, seals)]
    inode = os.fstat(made[1]).st_ino + other
    if control_bytes == page.CONTROL_BYTES:
        os.pwrite(made[0], inode.to_bytes(8, sys.byteorder), page.Control.cells_inode.offset)
    return made


NONSENSE: dict[str, tuple[Callable[[], tuple[bytes, list[int]]], str]] = {
    "nothing": (lambda: (b"", []), "did not answer"),
    "half an answer": (lambda: (answer()[:50], []), "did not answer"),
    "another magic": (lambda: (answer(magic=1), pages(control())), "did not answer"),
    "another version": (lambda: (answer(version=99), pages(control())), "did not answer"),
    "no descriptors": (lambda: (answer(), []), "makes no sense"),
    "one descriptor": (lambda: (answer(), pages(control())[:1]), "makes no sense"),
    "no GPU": (lambda: (answer(gpu_count=0), pages(control())), "makes no sense"),
    "too many GPUs": (lambda: (answer(gpu_count=17), pages(control())), "makes no sense"),
    "a slot that is none": (lambda: (answer(slot=512), pages(control())), "makes no sense"),
    "a page cut off": (lambda: (answer(), pages(control(), control_bytes=100)), "page is broken"),
    "cells cut off": (lambda: (answer(), pages(control(), cells=64)), "page is broken"),
    "cells that can be cut off": (lambda: (answer(), pages(control(), seals=0)), "page is broken"),
    "cells that can be unsealed": (lambda: (answer(), pages(control(), seals=SEALS & ~1)), "page is broken"),
    "cells that do not count": (lambda: (answer(), pages(control(), other=True)), "page is broken"),
    "a page with another magic": (lambda: (answer(), pages(control(magic=1))), "page is broken"),
    "a page of another version": (lambda: (answer(), pages(control(version=99))), "page is broken"),
    "a page with other GPUs": (lambda: (answer(), pages(control(gpu_count=2))), "page is broken"),
    "a file that is none": (lambda: (answer(), list(os.pipe())), "page is broken"),
    "no slot": (lambda: (answer(slot=page.NO_SLOT), pages(control())), "makes no sense"),
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_an_agent_that_answers_nonsense(nonsense: str, node: Node) -> None:
    give, reason = NONSENSE[nonsense]
    session = node.session()
    with Impostor(node.folder / "impostor", give):
        extra = {"GPUSLICE_IPC_SOCK": str(node.folder / "impostor")}
        denies_everything(node, node.tenant(session, extra=extra), reason)
