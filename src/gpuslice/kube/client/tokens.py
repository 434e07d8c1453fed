"""Bearer tokens: given once, read from a file that the kubelet replaces, or made by a program."""

from __future__ import annotations

import asyncio
import json
import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from gpuslice.kube.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: How long a token from a file is used before the file is read again.
_REREAD_SECONDS: Final = 60.0
#: How long before its end a token is not used any more.
_MARGIN_SECONDS: Final = 10.0
_PROGRAM_SECONDS: Final = 60.0


class TokenSource(Protocol):
    """Gives the token for a call."""

    async def token(self) -> str:
        """Empty if there is none. Raises UnreachableError if it cannot be had now."""

    def refused(self) -> bool:
        """The server did not take it. Whether the next may be another one."""


class NoToken:
    """A certificate says who we are."""

    async def token(self) -> str:
        return ""

    def refused(self) -> bool:
        return False


class FixedToken:
    """One that never changes."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token

    def refused(self) -> bool:
        return False


class TokenFile:
    """Read again every minute, and when the server refuses what it held."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = ""
        self._read_at = float("-inf")

    def read(self) -> str:
        self._token = self._path.read_text().strip()
        self._read_at = time.monotonic()
        return self._token

    async def token(self) -> str:
        if time.monotonic() - self._read_at < _REREAD_SECONDS:
            return self._token
        try:
            return self.read()
        except OSError as error:
            raise UnreachableError(f"the token file {self._path} cannot be read ({error.strerror})") from None

    def refused(self) -> bool:
        self._read_at = float("-inf")
        return True


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    expiration_timestamp: datetime | None = None


class _Credential(msgspec.Struct, rename="camel"):
    status: _Status


class TokenProgram:
    """A plugin that prints an ExecCredential, as those of cloud providers do."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], version: str) -> None:
        self._command = command
        information = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
        self._variables = {**variables, "KUBERNETES_EXEC_INFO": json.dumps(information)}
        self._token = ""
        self._ends = float("inf")
        self._lock = asyncio.Lock()

    async def token(self) -> str:
        async with self._lock:
            if not self._token or time.time() > self._ends - _MARGIN_SECONDS:
                await self._run()
            return self._token

    def refused(self) -> bool:
        self._token = ""
        return True

    async def _run(self) -> None:
        name = self._command[0]
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env=os.environ | self._variables,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise UnreachableError(f"the credential plugin {name} cannot be run ({error.strerror})") from None
        try:
            async with asyncio.timeout(_PROGRAM_SECONDS):
                output, complaint = await process.communicate()
        except TimeoutError:
            raise UnreachableError(f"the credential plugin {name} does not answer") from None
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode:
            said = complaint.decode(errors="replace").strip()[-200:]
            raise UnreachableError(f"the credential plugin {name} failed with {process.returncode}: {said}")
        try:
            status = msgspec.json.decode(output, type=_Credential).status
        except msgspec.DecodeError as error:
            raise UnreachableError(f"the credential plugin {name} printed no ExecCredential ({error})") from None
        if not status.token:
            raise UnreachableError(f"the credential plugin {name} gave no token, and nothing else is understood")
        self._token = status.token
        ends = status.expiration_timestamp
        self._ends = ends.replace(tzinfo=ends.tzinfo or UTC).timestamp() if ends is not None else float("inf")
