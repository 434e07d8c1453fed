"""What the server answers on which path."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from gpuslice.admission.context import UnknownError, UnknownNamespaceError
from gpuslice.admission.decision import NO_GPU, Outcome
from gpuslice.admission.review import ReviewError, UnreadableError, examine, read_request
from gpuslice.admission.webhook import validation
from gpuslice.admission.webhook.large_reviews import LargeReviews
from gpuslice.admission.webhook.metrics import Refusal
from gpuslice.admission.webhook.quota_reviews import QuotaReviews
from gpuslice.http.responses import JSON, Response, plain
from gpuslice.model.errors import GpusliceError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from gpuslice.admission.review import Reviewed
    from gpuslice.admission.webhook.cluster_view import Cluster
    from gpuslice.admission.webhook.metrics import Metrics
    from gpuslice.admission.webhook.validation import Verdict
    from gpuslice.http.connection import Handler
    from gpuslice.http.requests import BadRequestError, Request
    from gpuslice.system.supervised.health import Answer, Health

_T = TypeVar("_T")

#: A review above this is examined in a thread: the worst take a tenth of a second and more, and others must not wait
#: for them. Nearly all are a hundredth of this, and a thread would cost them more than their review. Bytes.
LARGE_REVIEW: Final = 256 * 1024
#: As Kubernetes calls them.
_TOO_MUCH: Final = {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "RequestEntityTooLarge",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailable",
}
#: Of a review that cannot be decoded, the uid is looked for in so much: an API server writes it first.
_BEGINNING_BYTES: Final = 4096
#: How long a review waits for a server that has only just started. The API server waits three seconds.
_SECONDS_TO_SYNC: Final = 2.0
#: How often a review asks for something of the cluster. What it has learned can be out of date before it goes on.
_MOST_TO_LEARN: Final = 4
_SECONDS_BETWEEN_LOOKS: Final = 0.05
_METRICS_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


class _UnknownPolicyError(GpusliceError):
    """Raised when it is unknown which policy is meant for a pod: admitted as it is, it could exceed that policy."""


class _NotSyncedError(Exception):
    """Raised when a pod may ask for a GPU, and the policies of the cluster have not all been seen yet."""


class Routes:
    """Answers requests by path, and refuses a wrong request before a handler sees its body."""

    def __init__(self) -> None:
        self._handlers: dict[bytes, tuple[bytes, Handler]] = {}

    def get(self, path: bytes, handler: Handler) -> None:
        self._handlers[path] = b"GET", handler

    def post(self, path: bytes, handler: Handler) -> None:
        """Takes JSON."""
        self._handlers[path] = b"POST", handler

    def __call__(self, request: Request) -> Response | Coroutine[Any, Any, Response]:
        found = self._handlers.get(request.path)
        if found is None:
            paths = ", ".join(path.decode() for path in self._handlers)
            return plain(HTTPStatus.NOT_FOUND, f"gpuslice: nothing is served here; there is {paths}")
        method, handler = found
        if request.method != method and (method, request.method) != (b"GET", b"HEAD"):
            return plain(
                HTTPStatus.METHOD_NOT_ALLOWED, f"gpuslice: send a {method.decode()}", b"Allow: %b\r\n" % method
            )
        if method == b"POST" and not request.content_type.startswith(JSON):
            return plain(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"gpuslice: send {JSON.decode()}")
        return handler(request)


def add_probes(routes: Routes, health: Health) -> None:
    """/healthz and /readyz, answered by the loop that reviews: one that is stuck gives no answer."""
    routes.get(b"/healthz", lambda _: _probe(health.alive()))
    routes.get(b"/readyz", lambda _: _probe(health.ready()))


def _probe(answer: Answer) -> Response:
    return plain(answer.status, answer.text)


class Reviews:
    """The four kinds of reviews: each from a whole request to its answer, its numbers and its line in the log."""

    def __init__(self, cluster: Cluster, metrics: Metrics) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._large = LargeReviews()
        self._quotas = QuotaReviews(cluster, metrics, self._large)
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

    def add_to(self, routes: Routes) -> None:
        routes.post(b"/mutate", self.mutate)
        routes.post(b"/validate", self._validator("pod", self._validate_pod))
        routes.post(b"/validate-policy", self._validator("policy", validation.validate_policy))
        routes.post(b"/validate-quota", self._validate_quota)

    def refuse(self, beginning: bytes, fault: BadRequestError) -> Response | None:
        """The answer to a review that is too large, alone or beside the others."""
        reason = _TOO_MUCH.get(fault.status)
        denied = validation.deny_unread(beginning, str(fault), fault.status, reason) if reason else None
        if denied is None:
            return None
        self._log.info("refused", kind="unread", uid=denied.uid, message=denied.message)
        return _proper(denied.body)

    def close(self) -> None:
        self._large.close()

    def mutate(self, request: Request) -> Response | Coroutine[Any, Any, Response]:
        """The rewrite. Answers at once, unless there is something to wait for."""
        started = time.perf_counter()
        if len(request.body) > LARGE_REVIEW:
            return self._mutate_slowly(request.body, started)
        try:
            reviewed = self._examine(request.body)
        except (UnknownError, _NotSyncedError):
            return self._mutate_slowly(request.body, started)
        except Exception as error:  # noqa: BLE001 - one review must not take the others with it
            return self._mutation_failed(error, request.body, started)
        return self._mutated(reviewed, started)

    async def _mutate_slowly(self, body: bytes, started: float) -> Response:
        try:
            reviewed = await self._examine_slowly(body)
        except _UnknownPolicyError as error:
            self._metrics.mutation_failed(time.perf_counter() - started)
            denied = validation.deny(
                read_request(body).uid, str(error), HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailable"
            )
            self._log.warning("refused", kind="pod", uid=denied.uid, message=denied.message)
            return _proper(denied.body)
        except Exception as error:  # noqa: BLE001 - see `mutate`
            return self._mutation_failed(error, body, started)
        return self._mutated(reviewed, started)

    def _examine(self, body: bytes) -> Reviewed:
        # Not every API server waits for /readyz: one that calls a URL, and no Service, does not.
        synced = self._cluster.synced()
        reviewed = examine(body, self._cluster.context())
        if not synced and reviewed.decision is not NO_GPU:
            raise _NotSyncedError
        return reviewed

    async def _examine_slowly(self, body: bytes) -> Reviewed:
        try:
            return await self._in_thread(lambda: self._examine(body))
        except _NotSyncedError:
            await self._wait_until_synced()
            return await self._in_thread(lambda: self._examine(body))

    async def _wait_until_synced(self) -> None:
        latest = time.monotonic() + _SECONDS_TO_SYNC
        while not self._cluster.synced():
            if time.monotonic() > latest:
                raise _UnknownPolicyError("the policies of the cluster are not known yet; try again")
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)

    def _mutated(self, reviewed: Reviewed, started: float) -> Response:
        taken = time.perf_counter() - started
        return _proper(reviewed.body, partial(self._account, reviewed, taken))

    def _account(self, reviewed: Reviewed, taken: float) -> None:
        decision = reviewed.decision
        self._metrics.mutated(decision, taken)
        if decision.outcome is not Outcome.UNTOUCHED:
            self._tell(reviewed, taken)

    def _mutation_failed(self, error: Exception, body: bytes, started: float) -> Response:
        self._metrics.mutation_failed(time.perf_counter() - started)
        return self._failed(error, body, "mutate")

    async def _validate_quota(self, request: Request) -> Response:
        try:
            verdict = await self._quotas.review(request.body, large=len(request.body) > LARGE_REVIEW)
        except Exception as error:  # noqa: BLE001 - see `mutate`
            return self._validation_failed(error, request.body, "quota")
        return self._validated(verdict, "quota")

    def _validate_pod(self, body: bytes) -> Verdict:
        return validation.validate_pod(body, self._cluster.context())

    def _validator(self, kind: str, validate: Callable[[bytes], Verdict]) -> Handler:
        def handle(request: Request) -> Response | Coroutine[Any, Any, Response]:
            if len(request.body) > LARGE_REVIEW:
                return handle_slowly(request)
            try:
                verdict = validate(request.body)
            except UnknownError:
                return handle_slowly(request)
            except Exception as error:  # noqa: BLE001 - see `mutate`
                return self._validation_failed(error, request.body, kind)
            return self._validated(verdict, kind)

        async def handle_slowly(request: Request) -> Response:
            try:
                verdict = await self._in_thread(lambda: validate(request.body))
            except Exception as error:  # noqa: BLE001 - see `mutate`
                return self._validation_failed(error, request.body, kind)
            return self._validated(verdict, kind)

        return handle

    def _validated(self, verdict: Verdict, kind: str) -> Response:
        self._metrics.validated(kind, "allowed" if verdict.allowed else "denied")
        if not verdict.allowed:
            if kind != "quota":  # counted by namespace
                self._metrics.refused(Refusal.POLICY if kind == "policy" else Refusal.MALFORMED)
            self._log.info("refused", kind=kind, uid=verdict.uid, message=verdict.message)
        return _proper(verdict.body)

    def _validation_failed(self, error: Exception, body: bytes, kind: str) -> Response:
        self._metrics.validated(kind, "failed")
        return self._failed(error, body, f"validate {kind}")

    def _failed(self, error: Exception, body: bytes, what: str) -> Response:
        """The API server takes anything but a review as a failure of the webhook: its failurePolicy decides. The author
        of an object must not bring that about, so what cannot be decoded is denied.
        """
        if isinstance(error, UnreadableError | RecursionError):
            message = f"this cannot be read, so it is denied; leave out what is nested deep: {error}"
            denied = validation.deny_unread(
                body[:_BEGINNING_BYTES], message, HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid"
            )
            if denied is not None:
                self._metrics.refused(Refusal.UNREADABLE)
                self._log.warning("refused", kind="unread", uid=denied.uid, operation=what, message=denied.message)
                return _proper(denied.body)
        if isinstance(error, ReviewError):
            return plain(HTTPStatus.BAD_REQUEST, f"gpuslice: {error}")
        self._log.error("review failed", operation=what, exc_info=error)
        return plain(HTTPStatus.INTERNAL_SERVER_ERROR, "gpuslice: the review failed; its log says why")

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        # The labels of the namespace first, and then what the pod claims there.
        for _ in range(_MOST_TO_LEARN):
            try:
                return await self._large.run(work)
            except UnknownError as unknown:
                await self._learn(unknown)
        return await self._large.run(work)

    async def _learn(self, unknown: UnknownError) -> None:
        try:
            await self._cluster.learn(unknown)
        except GpusliceError as error:
            what = "the labels of" if isinstance(unknown, UnknownNamespaceError) else "what the pod claims in"
            raise _UnknownPolicyError(f"{what} namespace {unknown.namespace}: {error}") from error

    def _tell(self, reviewed: Reviewed, taken: float) -> None:
        decision = reviewed.decision
        more: dict[str, object] = {"message": decision.denial.message} if decision.denial else {}
        if decision.warnings:  # a controller that made the pod does not show them
            more["warnings"] = decision.warnings
        self._log.info(
            "decided",
            uid=reviewed.uid,
            namespace=reviewed.namespace,
            pod=reviewed.name,
            dialect=decision.dialects,
            outcome=str(decision.outcome),
            policy=decision.rule.label,
            milliseconds=round(1000 * taken, 3),
            **more,
        )


def add_metrics(routes: Routes, metrics: Metrics) -> None:
    routes.get(b"/metrics", lambda _: Response(HTTPStatus.OK, metrics.text(), _METRICS_TYPE))


def _proper(body: bytes, on_sent: Callable[[], None] | None = None) -> Response:
    return Response(HTTPStatus.OK, body, JSON, proper=True, on_sent=on_sent)
