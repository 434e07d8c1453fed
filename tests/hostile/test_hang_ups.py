"""What a connection has in it when it is read or closed, under kernels that cannot refuse descriptors, too."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from gpuslice.system.hang_ups import HangUps
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR = 3600


@pytest.fixture
def guarded() -> HangUps:
    """As under a kernel before 6.16."""
    return HangUps(guarded=True)


@pytest.fixture
def poisoned() -> Iterator[socket.socket]:
    """A connection with a socket in it whose close takes an hour, or until its peer is gone."""
    ours, theirs = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sent = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    sent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, HOUR))
    sent.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        while True:
            sent.send(bytes(65536))
    theirs.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sent.fileno()]))])
    sent.close()
    yield ours
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()  # which resets the connection, so that the close of the other end returns
    theirs.close()
    ours.close()


def test_what_has_descriptors_in_it_is_not_read(guarded: HangUps, poisoned: socket.socket) -> None:
    assert guarded.receive(poisoned, 100) == b""


def test_what_comes_before_descriptors_is_read_and_no_more(guarded: HangUps) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"first")
        theirs.sendmsg([b"second"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))])
        assert guarded.receive(ours, 100) in (b"first", b"")
        assert guarded.receive(ours, 100) == b""


def test_a_connection_that_is_slow_to_close_keeps_no_other_open(guarded: HangUps, poisoned: socket.socket) -> None:
    guarded.close(poisoned)
    others = [socket.socketpair() for _ in range(20)]
    for ours, _ in others:
        guarded.close(ours)
    for _, theirs in others:
        with theirs:
            theirs.settimeout(60)
            assert theirs.recv(1) == b""


@pytest.mark.parametrize("guards", [True, False])
def test_plain_connections_are_read_and_closed(guards: bool) -> None:  # noqa: FBT001 - a parameter of the test
    hang_ups = HangUps(guarded=guards)
    ours, theirs = socket.socketpair()
    with theirs:
        ours.settimeout(0)
        with pytest.raises(BlockingIOError):
            hang_ups.receive(ours, 10)
        theirs.sendall(b"a request")
        assert hang_ups.receive(ours, 4) + hang_ups.receive(ours, 100) == b"a request"
        hang_ups.close(ours)
        theirs.settimeout(60)
        assert theirs.recv(1) == b""
    eventually(lambda: hang_ups.backlog == 0)


def test_this_kernel_is_asked() -> None:
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    assert HangUps()._guarded is (release < (6, 16))
