"""Calls to the API server. Objects go in as JSON-like values and come out as bytes, or as the struct that is asked for.

Structs name only the fields that are needed, so that a large object costs no more than a small one to keep.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Self, TypeVar
from urllib.parse import urlencode

import msgspec

from gpuslice.kube.client import credentials, transport
from gpuslice.kube.client.transport import Transport, TransportError
from gpuslice.kube.decoding import decoder
from gpuslice.kube.errors import AnswerTooLongError, ApiError, CredentialsError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from gpuslice.kube.client.credentials import Credentials
    from gpuslice.kube.resources import Resource

T = TypeVar("T")

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
#: Answers without spec and status, for those who need only labels or annotations.
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

_PATIENCE_SECONDS: Final = 10.0


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = 0


class Api:
    """One cluster. Use as a context manager, or call `close`."""

    def __init__(self, found: Credentials, component: str) -> None:
        try:
            self._transport = Transport(found.server, found.tls, found.server_name)
        except ValueError as error:
            raise CredentialsError(f"the API server's address makes no sense: {error}") from None
        self.namespace: Final = found.namespace
        self._token = found.token
        self._refused: str | None = None
        self._headers = {"User-Agent": f"gpuslice-{component}"}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def get(self, resource: Resource, name: str, kind: type[T], *, namespace: str = "", accept: str = JSON) -> T:
        return self._read(await self.call("GET", resource.path(namespace, name), accept=accept), kind)

    async def create(self, resource: Resource, document: object, *, namespace: str = "") -> bytes:
        return await self.call("POST", resource.path(namespace), body=document)

    async def replace(self, resource: Resource, name: str, document: object, *, namespace: str = "") -> bytes:
        """Fails with a conflict unless the object still has the resourceVersion that the document has."""
        return await self.call("PUT", resource.path(namespace, name), body=document)

    async def merge(
        self, resource: Resource, name: str, changes: object, *, namespace: str = "", part: str = ""
    ) -> bytes:
        """Changes the fields that are given; null removes one. A metadata.resourceVersion is a precondition."""
        return await self.call("PATCH", resource.path(namespace, name, part), body=changes, content=MERGE_PATCH)

    async def delete(
        self, resource: Resource, name: str, *, namespace: str = "", preconditions: Mapping[str, str] | None = None
    ) -> None:
        """Preconditions are a uid or a resourceVersion that the object must have."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions} if preconditions else None
        await self.call("DELETE", resource.path(namespace, name), body=body)

    async def call(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, str] | None = None,
        body: object = None,
        content: str = JSON,
        accept: str = JSON,
        most_bytes: int | None = None,
    ) -> bytes:
        """One call. Raises ApiError for an answer that says no, UnreachableError for none, and AnswerTooLongError for
        one of more bytes.
        """
        encoded = msgspec.json.encode(body) if body is not None else None
        typed = {"Content-Type": content} if body is not None else {}
        target = _target(path, parameters)
        while True:
            headers = typed | await self._identify(accept)
            try:
                answer = await self._transport.call(
                    method, target, headers, encoded, silence=_PATIENCE_SECONDS, most_bytes=most_bytes
                )
            except transport.AnswerTooLongError as error:
                raise AnswerTooLongError(f"{method} {path}: {error}") from None
            except TransportError as error:
                raise _unreachable(method, path, error) from None
            if answer.status == 401 and self._try_again(headers):
                continue
            if not 200 <= answer.status < 300:
                raise _refusal(answer.status, answer.body)
            return answer.body

    @asynccontextmanager
    async def stream(
        self, path: str, parameters: Mapping[str, str], *, accept: str, silence_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer that does not end by itself. Silence for too long counts as a lost connection."""
        headers = await self._identify(accept)
        try:
            async with self._transport.stream(
                _target(path, parameters), headers, patience=_PATIENCE_SECONDS, silence=silence_seconds
            ) as (status, pieces):
                if status == 401:
                    self._try_again(headers)
                if not 200 <= status < 300:
                    raise _refusal(status, b"".join([piece async for piece in pieces]))
                yield _lines(pieces)
        except TransportError as error:
            raise _unreachable("GET", path, error) from None

    async def _identify(self, accept: str) -> dict[str, str]:
        token = await self._token.token()
        identity = {"Authorization": f"Bearer {token}"} if token else {}
        return {**self._headers, "Accept": accept, **identity}

    def _try_again(self, headers: dict[str, str]) -> bool:
        """Whether there may be a token by now that the server takes. Asked once for each that it did not."""
        refused = headers.get("Authorization")
        again = self._token.refused() and refused != self._refused
        self._refused = refused
        return again

    @staticmethod
    def _read(answer: bytes, kind: type[T]) -> T:
        try:
            return decoder(kind)(answer)
        except msgspec.DecodeError as error:
            raise ApiError(200, "Undecodable", f"the API server's answer makes no sense: {error}") from None


def connect(kubeconfig: Path | None, environment: Mapping[str, str], component: str) -> Api:
    """The cluster that the file, the environment or the pod's service account names. Calls nothing yet."""
    return Api(credentials.load(kubeconfig, environment), component)


def _target(path: str, parameters: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(parameters)}" if parameters else path


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Split at newlines and nothing else: text may hold characters that Python takes for the end of a line (U+0085)."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def status_error(document: bytes | msgspec.Raw) -> ApiError:
    """The error that a Status object tells of."""
    return _refusal(500, bytes(document))


def _refusal(code: int, body: bytes) -> ApiError:
    try:
        status = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # What stands between us and the server answers in words of its own.
        status = _Status(message=body[:200].decode(errors="replace").strip())
    return ApiError(status.code or code, status.reason, status.message)


def _unreachable(method: str, path: str, error: Exception) -> UnreachableError:
    return UnreachableError(f"{method} {path}: the API server does not answer ({str(error) or type(error).__name__})")
