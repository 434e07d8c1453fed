"""Who may read the agent's metrics: they name every namespace, pod and session of the node.

In a cluster the API server decides, as it does for its own /metrics: it is asked whose the bearer token is
(TokenReview) and whether that account may get /metrics (SubjectAccessReview). Without its answer no account may.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from gpuslice.kube.errors import ApiError, UnreachableError
from gpuslice.kube.resources import Resource

if TYPE_CHECKING:
    import structlog

    from gpuslice.kube.client.api import Api

PATH: Final = "/metrics"
_TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews")
_ACCESS_REVIEWS: Final = Resource("authorization.k8s.io", "v1", "subjectaccessreviews")
_KEEP_SECONDS: Final = 60.0
_MOST_KEPT: Final = 256
_LONGEST_TOKEN: Final = 1 << 15
#: Reviews in a second for tokens that were not good before: a flood of them must not become one of the API server.
_NEW_TOKENS: Final = 5


class MetricsAccess(StrEnum):
    """What a scraper must have."""

    OPEN = "open"
    TOKEN = "token"  # noqa: S105 - the word, not one


class Reviewer(Protocol):
    """Decides on a bearer token."""

    async def review(self, token: str) -> HTTPStatus:
        """OK, or what to answer instead."""


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)


class _TokenReview(msgspec.Struct):
    status: _TokenStatus = msgspec.field(default_factory=_TokenStatus)


class _AccessStatus(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus = msgspec.field(default_factory=_AccessStatus)


@dataclass(slots=True)
class _Decision:
    answer: HTTPStatus
    until: float


class ClusterReviewer:
    """Asks the API server, and keeps its answers for a minute. Tokens are kept as hashes."""

    def __init__(self, api: Api, log: structlog.typing.FilteringBoundLogger) -> None:
        self._api = api
        self._log = log
        self._decisions: OrderedDict[bytes, _Decision] = OrderedDict()
        self._new: list[float] = []  # when tokens were reviewed that were not good before
        self._complaint = ""

    async def review(self, token: str) -> HTTPStatus:
        if len(token) > _LONGEST_TOKEN:
            return HTTPStatus.UNAUTHORIZED
        key, now = hashlib.sha256(token.encode()).digest(), time.monotonic()
        known = self._decisions.get(key)
        if known is not None and known.until > now:
            return known.answer
        if (known is None or known.answer is not HTTPStatus.OK) and not self._has_room(now):
            return HTTPStatus.TOO_MANY_REQUESTS
        try:
            answer = await self._ask(token)
        except (ApiError, UnreachableError, msgspec.MsgspecError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                self._log.warning("no account may read metrics: the API server does not decide", reason=str(error))
            return HTTPStatus.SERVICE_UNAVAILABLE
        self._complaint = ""
        self._keep(key, _Decision(answer, now + _KEEP_SECONDS))
        return answer

    def _has_room(self, now: float) -> bool:
        self._new = [moment for moment in self._new if moment > now - 1.0]
        if len(self._new) >= _NEW_TOKENS:
            return False
        self._new.append(now)
        return True

    def _keep(self, key: bytes, decision: _Decision) -> None:
        """Of too many, those that were refused go first: others cannot push out a scraper's."""
        self._decisions[key] = decision
        self._decisions.move_to_end(key)
        while len(self._decisions) > _MOST_KEPT:
            refused = (key for key, kept in self._decisions.items() if kept.answer is not HTTPStatus.OK)
            del self._decisions[next(refused, next(iter(self._decisions)))]

    async def _ask(self, token: str) -> HTTPStatus:
        kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
        answer = await self._api.create(_TOKEN_REVIEWS, kind | {"spec": {"token": token}})
        whose = msgspec.json.decode(answer, type=_TokenReview).status
        if not whose.authenticated:
            return HTTPStatus.UNAUTHORIZED
        user = whose.user
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups,
            "extra": user.extra,
            "nonResourceAttributes": {"path": PATH, "verb": "get"},
        }
        kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
        answer = await self._api.create(_ACCESS_REVIEWS, kind | {"spec": spec})
        allowed = msgspec.json.decode(answer, type=_AccessReview).status.allowed
        return HTTPStatus.OK if allowed else HTTPStatus.FORBIDDEN
