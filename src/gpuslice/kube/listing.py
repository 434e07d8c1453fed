"""Lists of objects, page by page, as of one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuslice.kube import api as calls
from gpuslice.kube.decoding import decoder
from gpuslice.kube.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from gpuslice.kube.api import Api

_PAGE: Final = 500


class Page(NamedTuple):
    """Some of the objects, undecoded. The version is the same on all pages of a list."""

    items: list[msgspec.Raw]
    version: str
    #: The list begins again with this page: what came before it does not count.
    first: bool


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


_decode: Final = decoder(_List)


async def pages(
    api: Api, path: str, selectors: Mapping[str, str] | None = None, *, accept: str = calls.JSON, size: int = _PAGE
) -> AsyncIterator[Page]:
    """Every object at that address. What is listed is never older than the call."""
    parameters = {**(selectors or {}), "limit": str(size)}
    first = True
    while True:
        try:
            found = _decode(await api.call("GET", path, parameters=parameters, accept=accept))
        except ApiError as error:
            if not error.expired or "continue" not in parameters:
                raise
            # The moment that the pages are of was forgotten while we read. All at once, then.
            parameters = dict(selectors or {})
            first = True
            continue
        yield Page(found.items or [], found.metadata.resource_version, first)
        first = False
        if not found.metadata.continue_:
            return
        parameters |= {"continue": found.metadata.continue_}
