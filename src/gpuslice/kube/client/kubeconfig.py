"""Kubeconfig files: the current context, with all that it refers to.

Several files are merged as kubectl does it: of each cluster, user and context the first file that names it counts, and
of `current-context` the first that has one; a path is relative to the file that it stands in; files that are missing
are left out, as long as one is there.
"""

from __future__ import annotations

import base64
import binascii
import errno
import os
import ssl
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Generic, TypeVar

import msgspec
import yaml
from msgspec import Meta

from gpuslice.kube.client.credentials import REMEDY, Credentials
from gpuslice.kube.client.tokens import FixedToken, NoToken, TokenFile, TokenProgram
from gpuslice.kube.errors import CredentialsError
from gpuslice.system.memory_files import memory_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpuslice.kube.client.tokens import TokenSource

_EXEC_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class _Part(msgspec.Struct, frozen=True, rename="kebab"):
    """Fields that we do not know are for other programs."""


class _Cluster(_Part, frozen=True, rename="kebab"):
    server: Annotated[str, Meta(pattern="^https?://")]
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _Variable(msgspec.Struct, frozen=True):
    name: str
    value: str


class _Exec(msgspec.Struct, frozen=True, rename="camel"):
    command: str
    api_version: str
    args: list[str] | None = None
    env: list[_Variable] | None = None


class _User(_Part, frozen=True, rename="kebab"):
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: _Exec | None = None
    username: str = ""
    auth_provider: dict[str, object] | None = None


class _Context(_Part, frozen=True, rename="kebab"):
    cluster: str
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: _Cluster


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: _User | None = None


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: _Context


_Entry = TypeVar("_Entry", _NamedCluster, _NamedUser, _NamedContext)


class _File(_Part, frozen=True, rename="kebab"):
    current_context: str = ""
    contexts: list[_NamedContext] | None = None
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None


@dataclass(frozen=True, slots=True)
class _Found(Generic[_Entry]):
    """An entry, and the folder that its paths are relative to."""

    entry: _Entry
    folder: Path


@dataclass(slots=True)
class _Merged:
    """What several files say together."""

    current_context: str = ""
    contexts: dict[str, _Found[_NamedContext]] = field(default_factory=dict)
    clusters: dict[str, _Found[_NamedCluster]] = field(default_factory=dict)
    users: dict[str, _Found[_NamedUser]] = field(default_factory=dict)

    def add(self, file: _File, folder: Path) -> None:
        """What files that were added before say stands."""
        self.current_context = self.current_context or file.current_context
        _add(self.contexts, file.contexts, folder)
        _add(self.clusters, file.clusters, folder)
        _add(self.users, file.users, folder)


def _add(known: dict[str, _Found[_Entry]], entries: Sequence[_Entry] | None, folder: Path) -> None:
    for entry in entries or ():
        known.setdefault(entry.name, _Found(entry, folder))


def load(*paths: Path) -> Credentials:
    """Raises CredentialsError if the files do not say how to reach a cluster."""
    merged, found = _Merged(), False
    for path in paths:
        with _reasons(path), suppress(FileNotFoundError):
            content = path.read_bytes()
            found = True
            merged.add(msgspec.convert(yaml.load(content, _LOADER) or {}, _File), path.parent)  # noqa: S506 - safe
    with _reasons(*paths):
        if not found:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return _credentials(merged)


@contextmanager
def _reasons(*paths: Path) -> Iterator[None]:
    """What goes wrong is told as an error that names the file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
    except (yaml.YAMLError, msgspec.ValidationError, ValueError) as error:
        reason = " ".join(str(error).replace("`", "'").split())
    else:
        return
    raise CredentialsError(f"kubeconfig {':'.join(map(str, paths))} cannot be used ({reason}): {REMEDY}")


#: The one in C where there is one.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _credentials(merged: _Merged) -> Credentials:
    if not merged.current_context:
        raise ValueError("current-context is not set")
    context = _named(merged.contexts, merged.current_context, "contexts").entry.context
    found_cluster = _named(merged.clusters, context.cluster, "clusters")
    cluster = found_cluster.entry.cluster
    found_user = _named(merged.users, context.user, "users") if context.user else _Found(_NamedUser(""), Path())
    user = found_user.entry.user or _User()
    if cluster.proxy_url:
        raise ValueError("proxy-url is not supported")
    secure = cluster.server.startswith("https:")
    return Credentials(
        server=cluster.server,
        tls=_tls(cluster, found_cluster.folder, user, found_user.folder) if secure else None,
        server_name=cluster.tls_server_name,
        token=_token(user, found_user.folder),
        namespace=context.namespace or "default",
    )


def _named(entries: Mapping[str, _Found[_Entry]], name: str, what: str) -> _Found[_Entry]:
    found = entries.get(name)
    if found is None:
        raise ValueError(f"{what} has none with the name {name!r}")
    return found


def _tls(cluster: _Cluster, cluster_folder: Path, user: _User, user_folder: Path) -> ssl.SSLContext:
    if cluster.insecure_skip_tls_verify:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif cluster.certificate_authority_data:
        pem = _decode(cluster.certificate_authority_data, "certificate-authority-data")
        context = ssl.create_default_context(cadata=pem.decode("ascii"))
    elif cluster.certificate_authority:
        context = ssl.create_default_context(cafile=str(cluster_folder / cluster.certificate_authority))
    else:
        context = ssl.create_default_context()
    certificate = _content(
        user.client_certificate_data, "client-certificate-data", user_folder, user.client_certificate
    )
    key = _content(user.client_key_data, "client-key-data", user_folder, user.client_key)
    if certificate is not None:
        with memory_file(certificate) as certificate_file, memory_file(key or certificate) as key_file:
            context.load_cert_chain(certificate_file, key_file, password="")
    return context


def _content(data: str, field: str, folder: Path, file: str) -> bytes | None:
    """What is in the file itself, or in one that it names relative to it."""
    if data:
        return _decode(data, field)
    return (folder / file).read_bytes() if file else None


def _decode(data: str, field: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{field} is not base64") from None


def _token(user: _User, folder: Path) -> TokenSource:
    if user.token_file:
        return TokenFile(folder / user.token_file)
    if user.token:
        return FixedToken(user.token)
    if user.exec is not None:
        if user.exec.api_version not in _EXEC_VERSIONS:
            raise ValueError(f"exec.apiVersion is {user.exec.api_version}, not {' or '.join(_EXEC_VERSIONS)}")
        variables = {variable.name: variable.value for variable in user.exec.env or ()}
        # A path with a slash is relative to the file; a name without is looked for in $PATH.
        program = str(folder / user.exec.command) if "/" in user.exec.command else user.exec.command
        return TokenProgram([program, *(user.exec.args or ())], variables, user.exec.api_version)
    if user.username or user.auth_provider is not None:
        raise ValueError("its user has a password or an auth-provider, which API servers do not take any more")
    return NoToken()
