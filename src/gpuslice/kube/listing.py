"""Lists of objects, page by page, as of one moment.

How large objects are is for their authors to choose: a page of pods can be gigabytes. So a page has a bound in bytes,
too. When it is longer, the rest of it is not read, and half as many objects are asked for, down to a single one; where
pages are short again, more are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuslice.kube.client import api as calls
from gpuslice.kube.decoding import decoder
from gpuslice.kube.errors import AnswerTooLongError, ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from gpuslice.kube.client.api import Api

_PAGE: Final = 500
#: Of a page with several objects. Reading one takes twice this, beside the other lists of the process; the webhook may
#: have 256 MiB for everything. A single object may be as long as the transport takes it.
PAGE_BYTES: Final = 16 * 1024 * 1024


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
    limit, whole, token = size, False, ""
    began_again = False
    first = True
    while True:
        parameters = dict(selectors or {})
        if not whole:
            parameters |= {"limit": str(limit), **({"continue": token} if token else {})}
        most_bytes = None if limit == 1 and not whole else PAGE_BYTES
        try:
            answer = await api.call("GET", path, parameters=parameters, accept=accept, most_bytes=most_bytes)
        except AnswerTooLongError:
            if most_bytes is None:
                raise
            limit, whole = (limit if whole else max(1, limit // 2)), False
            continue
        except ApiError as error:
            if not error.expired or not token or began_again:
                raise
            # The moment that the pages are of was forgotten while we read. All at once, then, if that is short enough.
            whole, token, first, began_again = True, "", True, True
            continue
        found = _decode(answer)
        token = found.metadata.continue_
        if len(answer) < PAGE_BYTES // 4:
            limit = min(size, 2 * limit)
        page = Page(found.items or [], found.metadata.resource_version, first)
        del answer, found
        yield page
        del page  # it is not in memory beside the next one
        if not token:
            return
        first = False
