"""Which Kubernetes the API server is of, and what gpuslice can do there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from gpuslice.kube.decoding import decoder
from gpuslice.kube.errors import ApiError, UnreachableError

if TYPE_CHECKING:
    from gpuslice.kube.client.api import Api

#: The oldest that we test on. Before it, device plugins could not name CDI devices.
OLDEST: Final = (1, 31)
#: The first whose claims can ask for parts of a device, unless feature gates say otherwise.
FIRST_WITH_CLAIMS: Final = (1, 36)


class ServerVersion(msgspec.Struct, frozen=True, rename="camel"):
    """As the API server tells it."""

    major: str = ""
    minor: str = ""
    git_version: str = ""

    @property
    def number(self) -> tuple[int, int]:
        """Providers append to the minor version, as in `33+`. Raises ValueError if it is none."""
        return int(self.major), int(self.minor.rstrip("+"))


async def ask(api: Api) -> ServerVersion | None:
    """None if the server does not tell, or nothing that makes sense."""
    try:
        found = decoder(ServerVersion)(await api.call("GET", "/version"))
        found.number  # noqa: B018 - whether there is one
    except (ApiError, UnreachableError, msgspec.DecodeError, ValueError) as error:
        structlog.get_logger().warning("the API server's version is not known", reason=str(error))
        return None
    return found


def check(version: ServerVersion | None) -> None:
    """Says in the log which Kubernetes this is, and whether it is older than what we promise."""
    if version is None:
        return
    log = structlog.get_logger()
    if version.number < OLDEST:
        log.error(
            "this Kubernetes is older than gpuslice works on: upgrade the cluster",
            version=version.git_version,
            oldest=_text(OLDEST),
        )
    else:
        log.info("the API server's version", version=version.git_version)


def has_claims(version: ServerVersion | None) -> bool:
    """Whether its claims can usually ask for parts of a device. What is not known counts as new."""
    return version is None or version.number >= FIRST_WITH_CLAIMS


def _text(number: tuple[int, int]) -> str:
    return ".".join(map(str, number))
