"""Certificates from files: loaded at the start, and again whenever the files change.

A mounted Secret changes by swapping a link, which is why the files are looked at and not the folder watched: one look
a second costs nothing and cannot be lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from gpuslice.admission.server.identity import CertificateError

if TYPE_CHECKING:
    from pathlib import Path

    from gpuslice.admission.server.identity import Identity

_LOOK_SECONDS: Final = 1.0


class CertificateFiles:
    """A certificate and its key, as two PEM files."""

    def __init__(self, certificate: Path, key: Path, identity: Identity) -> None:
        self._paths: Final = (certificate, key)
        self._identity = identity
        self._seen: object = None
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

    def load(self) -> None:
        """Takes what the files hold. Raises CertificateError and changes nothing if that is no use."""
        # Looked at before it is read: a change in between is found the next time.
        self._seen = self._look()
        try:
            certificate, key = (path.read_bytes() for path in self._paths)
        except OSError as error:
            raise CertificateError(f"{error.filename} cannot be read: {error.strerror}") from None
        try:
            self._identity.set_certificate(certificate, key)
        except CertificateError as error:
            raise CertificateError(f"{error} ({self._paths[0]}, {self._paths[1]})") from None

    async def follow(self) -> None:
        """Loads the files again after each change, for ever."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._look() == self._seen:
                continue
            try:
                self.load()
            except CertificateError as error:
                self._log.warning("certificate not changed", reason=str(error))
            else:
                self._log.info("certificate changed", expires=self._identity.expires)

    def _look(self) -> object:
        try:
            found = [path.stat() for path in self._paths]
        except OSError as error:
            return error.errno
        return [(each.st_dev, each.st_ino, each.st_mtime_ns, each.st_size) for each in found]
