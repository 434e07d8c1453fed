"""What another user makes where a command looks for its agent: the command must not tell it the token."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice.node.admin import trust
from gpuslice.node.admin.client import AgentClient
from tests.node.conftest import as_root, folder
from tests.node.support import clean_environment, read_line

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["as_root", "folder"]  # fixtures of tests/node

pytestmark = pytest.mark.usefixtures("as_root")

VICTIM, THIEF = 61001, 61002

#: Listens at the path as the user, and prints whatever it is sent.
THIEF_SERVER = """
import os, socket, sys
from pathlib import Path
path, uid = Path(sys.argv[1]), int(sys.argv[2])
os.setgid(uid)
os.setuid(uid)
path.parent.mkdir(exist_ok=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind(str(path))
path.chmod(0o777)
listener.listen()
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    if line := connection.recv(65536):  # nothing, if a command only looks whether it can connect
        print("received", line, flush=True)
        connection.sendall(b'{"ok":true,"result":[]}\\n')
"""

#: How the victim is another user who can read this interpreter, which may be in root's home.
AS_VICTIM = (
    "setpriv", f"--reuid={VICTIM}", f"--regid={VICTIM}", "--clear-groups",
    "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
)  # fmt: skip


@contextmanager
def thief(path: Path, uid: int = THIEF) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", THIEF_SERVER, str(path), str(uid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert read_line(process) == "ready"
            yield process
        finally:
            process.kill()


def received(process: subprocess.Popen[str]) -> str:
    """What it was sent, after it has ended."""
    process.kill()
    return process.communicate()[0]


def ps(gpuslice_command: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`gpuslice ps` of the victim, who has the token of root's agent in the environment."""
    environment = clean_environment(GPUSLICE_IPC_TOKEN="supersecret", **variables)  # noqa: S106
    command = [*AS_VICTIM, str(gpuslice_command), "ps"]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=60)


@pytest.fixture
def open_folder(folder: Path) -> Path:
    """A folder that every user can write, as /tmp."""
    made = folder / "tmp"
    made.mkdir()
    made.chmod(0o1777)
    return made


@pytest.fixture
def usual_folder() -> Iterator[Path]:
    """Where a command of the victim looks for its agent."""
    usual = Path(f"/tmp/gpuslice-{VICTIM}")  # noqa: S108 - the folder in question
    shutil.rmtree(usual, ignore_errors=True)
    yield usual
    shutil.rmtree(usual, ignore_errors=True)


def test_the_usual_folder_of_another_user_is_not_used(usual_folder: Path, gpuslice_command: Path) -> None:
    with thief(usual_folder / "admin.sock") as process:
        done = ps(gpuslice_command)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"error: {usual_folder} belongs to uid {THIEF}" in done.stderr
        assert "--state" in done.stderr
        assert "supersecret" not in received(process)


def test_a_folder_that_cannot_be_entered_is_an_error_with_a_remedy(usual_folder: Path, gpuslice_command: Path) -> None:
    usual_folder.mkdir(mode=0o700)
    os.chown(usual_folder, THIEF, THIEF)
    done = ps(gpuslice_command)
    assert done.returncode == 1
    assert f"error: {usual_folder} belongs to uid {THIEF}" in done.stderr


def test_a_link_to_another_user_s_folder_is_not_followed(open_folder: Path, gpuslice_command: Path) -> None:
    with thief(open_folder / "theirs" / "admin.sock") as process:
        (open_folder / "mine").symlink_to(open_folder / "theirs")
        os.chown(open_folder / "mine", VICTIM, VICTIM, follow_symlinks=False)
        done = ps(gpuslice_command, GPUSLICE_STATE=str(open_folder / "mine"))
        assert done.returncode == 1
        assert f"belongs to uid {THIEF}" in done.stderr
        assert "supersecret" not in received(process)


def test_the_token_file_of_another_user_s_folder_is_not_read(open_folder: Path) -> None:
    state = open_folder / "state"
    state.mkdir()
    os.mkfifo(state / "token")  # whose reader would wait for ever
    os.chown(state, THIEF, THIEF)
    with pytest.raises(trust.UntrustedAgentError, match=f"belongs to uid {THIEF}"):
        AgentClient.discover(state, {})


def test_a_folder_that_others_can_write_is_not_used(open_folder: Path) -> None:
    with pytest.raises(trust.UntrustedAgentError, match="can be written by other users"):
        AgentClient.discover(open_folder, {})


def test_another_user_s_socket_in_ones_own_folder_is_not_used(open_folder: Path) -> None:
    with thief(open_folder / "admin.sock") as process:
        open_folder.chmod(0o755)
        with pytest.raises(trust.UntrustedAgentError, match=f"admin.sock belongs to uid {THIEF}"):
            AgentClient(open_folder / "admin.sock", "supersecret").list()
        os.chown(open_folder / "admin.sock", 0, 0)
        with pytest.raises(trust.UntrustedAgentError, match=f"is served by uid {THIEF}"):
            AgentClient(open_folder / "admin.sock", "supersecret").list()
        assert "supersecret" not in received(process)


def test_an_agent_of_ones_own_is_asked(gpuslice_command: Path) -> None:
    own = Path(tempfile.mkdtemp(prefix="gpuslice-test-"))
    try:
        os.chown(own, VICTIM, VICTIM)
        with thief(own / "admin.sock", VICTIM) as process:
            done = ps(gpuslice_command, GPUSLICE_STATE=str(own))
            assert done.returncode == 0, done.stderr
            assert "supersecret" in received(process)
    finally:
        shutil.rmtree(own)
