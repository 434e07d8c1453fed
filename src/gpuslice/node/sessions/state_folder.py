"""The state folder: where it is, who may use it, and that one agent has it at a time."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuslice.node.errors import AgentError
from gpuslice.system.files import write_durably

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE: Final = "GPUSLICE_STATE"
TOKEN_VARIABLE: Final = "GPUSLICE_IPC_TOKEN"  # noqa: S105 - the variable's name


def default_folder(environment: Mapping[str, str]) -> Path:
    """$GPUSLICE_STATE, else the usual place for this user."""
    if named := environment.get(VARIABLE):
        return Path(named).absolute()
    if os.geteuid() == 0:
        return Path("/run/gpuslice")
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "gpuslice"
    return Path(f"/tmp/gpuslice-{os.geteuid()}")  # noqa: S108 - made 0700, and refused if another user's


@dataclass(frozen=True)
class StateFolder:
    """The paths in a state folder."""

    folder: Path

    @property
    def attach_socket(self) -> Path:
        return self.folder / "agent.sock"

    @property
    def tenants(self) -> Path:
        """What containers may see of the folder: the attach socket, by a second name, and nothing else."""
        return self.folder / "tenants"

    @property
    def claims(self) -> Path:
        return self.folder / "claims"

    @property
    def prepared(self) -> Path:
        """A file per claim that says what exists for it (gpuslice.node.claims.checkpoint)."""
        return self.folder / "prepared"

    @property
    def single_checkpoint(self) -> Path:
        """Where that was in one file, before."""
        return self.folder / "claims.json"

    @property
    def partitions(self) -> Path:
        return self.folder / "partitions"

    @property
    def health(self) -> Path:
        return self.folder / "health"

    @property
    def admin_socket(self) -> Path:
        return self.folder / "admin.sock"

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    @property
    def sessions(self) -> Path:
        return self.folder / "sessions"

    @property
    def totals(self) -> Path:
        return self.folder / "totals"

    @property
    def lock_file(self) -> Path:
        return self.folder / "lock"

    def prepare(self) -> int:
        """Makes the folder if need be, and takes its lock. The lock is the returned descriptor's."""
        try:
            if not self.folder.exists():
                self.folder.parent.mkdir(parents=True, exist_ok=True)
                self.folder.mkdir(mode=0o700)
                # Others must reach the sockets of a root agent; sessions and token are closed to them.
                self.folder.chmod(0o755 if os.geteuid() == 0 else 0o700)
            self._check_owner()
            lock = self._lock()
            self.sessions.mkdir(mode=0o700, exist_ok=True)
            self.sessions.chmod(0o700)
        except OSError as error:
            raise AgentError(
                "state_folder",
                f"the state folder {self.folder} cannot be used ({error.strerror})",
                remedy="give another with --state, or make it writable",
            ) from None
        return lock

    def _check_owner(self) -> None:
        found = self.folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise AgentError(
                "state_folder",
                f"the state folder {self.folder} is not a folder that this user owns and no other user can write",
                remedy="give another with --state",
            )

    def _lock(self) -> int:
        lock = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "?"
            os.close(lock)
            raise AgentError(
                "in_use",
                f"another agent (pid {holder}) serves the state folder {self.folder}",
                remedy="use that one, end it, or give this one a folder of its own with --state",
            ) from None
        with suppress(OSError):  # a full disk: the lock is taken all the same, only its holder's number is not told
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return lock

    def agent_token(self, environment: Mapping[str, str]) -> str:
        """What a client must know to manage sessions: from the environment, else from a file that is made here."""
        if given := environment.get(TOKEN_VARIABLE):
            self.token_file.unlink(missing_ok=True)
            return given
        if (found := self.read_token()) is not None:
            return found
        import secrets  # not for every command that only reads it: it loads OpenSSL

        token = secrets.token_urlsafe(32)
        write_durably(self.token_file, f"{token}\n".encode())
        return token

    def read_token(self) -> str | None:
        """The token in the file, if this user can read it."""
        try:
            return self.token_file.read_text().strip() or None
        except (OSError, UnicodeDecodeError):
            return None
