"""Kubeconfig files: the current context of one, with all that it refers to."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec
import yaml
from msgspec import Meta

from gpuslice.kube.credentials import REMEDY, Credentials
from gpuslice.kube.errors import CredentialsError
from gpuslice.kube.tokens import FixedToken, NoToken, TokenFile, TokenProgram

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from gpuslice.kube.tokens import TokenSource

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


def load(path: Path) -> Credentials:
    """Raises CredentialsError if the file does not say how to reach a cluster."""
    try:
        file = msgspec.convert(yaml.load(path.read_bytes(), _LOADER), _File)  # noqa: S506 - a safe one, see below
        return _credentials(file, path)
    except OSError as error:
        reason = error.strerror or str(error)
    except (yaml.YAMLError, msgspec.ValidationError, ValueError, ssl.SSLError) as error:
        reason = " ".join(str(error).replace("`", "'").split())
    raise CredentialsError(f"kubeconfig {path} cannot be used ({reason}): {REMEDY}")


#: The one in C where there is one.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _credentials(file: _File, path: Path) -> Credentials:
    if not file.current_context:
        raise ValueError("current-context is not set")
    context = _named(file.contexts, file.current_context, "contexts").context
    cluster = _named(file.clusters, context.cluster, "clusters").cluster
    user = (_named(file.users, context.user, "users").user if context.user else None) or _User()
    if cluster.proxy_url:
        raise ValueError("proxy-url is not supported")
    return Credentials(
        server=cluster.server,
        tls=_tls(cluster, user, path.parent) if cluster.server.startswith("https:") else None,
        server_name=cluster.tls_server_name,
        token=_token(user, path.parent),
        namespace=context.namespace or "default",
    )


def _named(entries: Sequence[_Entry] | None, name: str, what: str) -> _Entry:
    found = next((entry for entry in entries or () if entry.name == name), None)
    if found is None:
        raise ValueError(f"{what} has none with the name {name!r}")
    return found


def _tls(cluster: _Cluster, user: _User, folder: Path) -> ssl.SSLContext:
    if cluster.insecure_skip_tls_verify:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif cluster.certificate_authority_data:
        pem = _decode(cluster.certificate_authority_data, "certificate-authority-data")
        context = ssl.create_default_context(cadata=pem.decode("ascii"))
    elif cluster.certificate_authority:
        context = ssl.create_default_context(cafile=str(folder / cluster.certificate_authority))
    else:
        context = ssl.create_default_context()
    certificate = _content(user.client_certificate_data, "client-certificate-data", folder, user.client_certificate)
    key = _content(user.client_key_data, "client-key-data", folder, user.client_key)
    if certificate is not None:
        with _as_file(certificate) as certificate_file, _as_file(key or certificate) as key_file:
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


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path to those bytes, which OpenSSL insists on; no key is written to a disk."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


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
