"""Keys and certificates of a cluster: one authority that serving and client certificates come from."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gpuslice.pki import signing

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: A cluster for trying things out is thrown away long before.
_LIFETIME: Final = dt.timedelta(days=365)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into a folder. Made anew or opened, if the folder has one already."""

    def __init__(self, folder: Path, name: str = "gpuslice-cluster") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self.certificate: Final = folder / "ca.crt"
        key_file = folder / "ca.key"
        if not (self.certificate.exists() and key_file.exists()):
            now = dt.datetime.now(dt.UTC)
            certificate, key = signing.make_authority(name, now, now + _LIFETIME)
            _write_key(key_file, key)
            self.certificate.write_text(certificate)
        self._authority, self._key = self.certificate.read_text(), key_file.read_text()

    def issue(self, name: str, *, common_name: str, groups: Iterable[str] = (), hosts: Iterable[str] = ()) -> Pair:
        """A certificate for a client and, if there are hosts, for a server of these names and addresses."""
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        if pair.certificate.exists():
            return pair
        subject = signing.Subject(common_name=common_name, groups=tuple(groups), names=tuple(hosts), client=True)
        now = dt.datetime.now(dt.UTC)
        certificate, key = signing.issue(self._authority, self._key, subject, now, now + _LIFETIME)
        _write_key(pair.key, key)
        pair.certificate.write_text(certificate)
        return pair

    def signing_key(self, name: str) -> Path:
        """A key with no certificate: what service account tokens are signed with."""
        path = self._folder / f"{name}.key"
        if not path.exists():
            # The API server finds the public half of a service account key only in this older format.
            older = serialization.PrivateFormat.TraditionalOpenSSL
            key = ec.generate_private_key(ec.SECP256R1())
            pem = key.private_bytes(serialization.Encoding.PEM, older, serialization.NoEncryption())
            _write_key(path, pem.decode())
        return path


def _write_key(path: Path, pem: str) -> None:
    path.touch(mode=0o600)
    path.write_text(pem)
