"""Certificates from files: loaded at the start, and again whenever the files change.

A mounted Secret changes by swapping a link, which is why the files are looked at and not the folder watched: one look
a second costs nothing and cannot be lost.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

import structlog

from gpuslice.http.client_authority import CertificateError, ClientAuthority

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gpuslice.http.serving_certificate import ServingCertificate

_LOOK_SECONDS: Final = 1.0


class _Files(ABC):
    """Files that are loaded together."""

    #: What they are, for the log.
    what: str

    def __init__(self, *paths: Path) -> None:
        self._paths: Final = paths
        self._seen: object = None
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

    def load(self) -> None:
        """Takes what the files hold. Raises CertificateError and changes nothing if that is no use."""
        # Looked at before it is read: a change in between is found the next time.
        self._seen = self._look()
        try:
            contents = [path.read_bytes() for path in self._paths]
        except OSError as error:
            raise CertificateError(f"{error.filename} cannot be read: {error.strerror}") from None
        try:
            self._take(*contents)
        except CertificateError as error:
            raise CertificateError(f"{error} ({', '.join(map(str, self._paths))})") from None

    async def follow(self) -> None:
        """Loads the files again after each change, for ever."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._look() == self._seen:
                continue
            try:
                self.load()
            except CertificateError as error:
                self._log.warning(f"{self.what} not changed", reason=str(error))
            else:
                self._log.info(f"{self.what} changed", **self._details())

    @abstractmethod
    def _take(self, *contents: bytes) -> None:
        """Puts them in force, or raises CertificateError."""

    def _details(self) -> dict[str, object]:
        return {}

    def _look(self) -> object:
        try:
            found = [path.stat() for path in self._paths]
        except OSError as error:
            return error.errno
        return [(each.st_dev, each.st_ino, each.st_mtime_ns, each.st_size) for each in found]


class CertificateFiles(_Files):
    """A certificate and its key, as two PEM files."""

    what = "certificate"

    def __init__(self, certificate: Path, key: Path, identity: ServingCertificate) -> None:
        super().__init__(certificate, key)
        self._identity = identity

    def _take(self, *contents: bytes) -> None:
        certificate, key = contents
        self._identity.set_certificate(certificate, key)

    def _details(self) -> dict[str, object]:
        return {"expires": self._identity.expires}


class ClientAuthorityFile(_Files):
    """The authority of the API servers' certificates, as a PEM file.

    A ConfigMap that may be missing is mounted as a folder, empty or not: so a file that is not there yet is no error,
    and one that goes away changes nothing.
    """

    what = "client authority"

    def __init__(self, path: Path, names: Iterable[str], identity: ServingCertificate) -> None:
        super().__init__(path)
        self._path = path
        self._names: Final = frozenset(names)
        self._identity = identity

    def load_if_there(self) -> None:
        """As `load`, if there is something to load."""
        if self._path.exists() or not self._path.parent.is_dir():
            self.load()
        else:
            self._seen = self._look()

    def _take(self, *contents: bytes) -> None:
        try:
            text = contents[0].decode("ascii")
        except UnicodeDecodeError:
            raise CertificateError("the clients' authority cannot be used: it is not written as PEM") from None
        self._identity.set_client_authority(ClientAuthority(certificates=text, names=self._names))
