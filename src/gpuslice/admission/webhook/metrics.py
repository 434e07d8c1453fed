"""The webhook's metrics. What matters for an alert exists, with zero, before its first event."""

from __future__ import annotations

import time
from bisect import bisect_left
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuslice.admission.decision import Outcome
from gpuslice.dialects.registry import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuslice.admission.decision import Decision

_BUCKETS: Final = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)
#: Labels that are no dialect: nothing was asked for, or in more than one.
NO_DIALECT: Final = "none"
SEVERAL: Final = "several"
#: An outcome that is none of a decision.
FAILED: Final = "failed"
#: Metrics are written anew twenty times a second at most.
_TEXT_SECONDS: Final = 0.05
_TEXTS_AT_ONCE: Final = 10
#: Ends of connections that an operator should look into: they have alerts, and lines in the log.
LOUD_FAULTS: Final = ("client_certificate", "crowded_out", "out_of_memory", "unauthenticated")


class Refusal(StrEnum):
    """Why a pod, or a policy, was refused; a label."""

    MALFORMED = "malformed"
    NOT_ALLOWED = "not_allowed"
    POLICY = "policy"
    UNREADABLE = "unreadable"
    QUOTA = "quota"


class _Timings:
    """How long reviews of one kind took."""

    __slots__ = ("_counts", "count", "seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(_BUCKETS) + 1)
        self.count = 0
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(_BUCKETS, seconds)] += 1
        self.count += 1
        self.seconds += seconds

    def buckets(self) -> list[tuple[str, float]]:
        bounds = (*map(str, _BUCKETS), "+Inf")
        return list(zip(bounds, accumulate(self._counts), strict=True))


class _Mutations(Collector):
    """All metrics of /mutate follow from the timings, so the numbers agree with each other, and a review costs one
    observation.
    """

    def __init__(self) -> None:
        self._timings: dict[tuple[str, str], _Timings] = {}
        for dialect in NAMES:
            self.timings(dialect, Outcome.REWRITTEN)
        self.timings(NO_DIALECT, Outcome.UNTOUCHED)

    def timings(self, dialect: str, outcome: str) -> _Timings:
        key = dialect, outcome
        found = self._timings.get(key)
        if found is None:
            found = self._timings[key] = _Timings()
        return found

    def collect(self) -> Iterator[Metric]:
        for name, text, outcomes in (
            ("requests", "Requests to rewrite a pod (/mutate). Each is a mutation, a noop or an error.", None),
            ("mutations", "Pods that were answered with a patch.", ("rewritten",)),
            (
                "noop",
                "Pods that passed as they are: nothing to do, or a policy that only warns.",
                ("untouched", "warned"),
            ),
            (
                "errors",
                "Pods that were denied, reviews that could not be read, and failures of the webhook.",
                ("denied", FAILED),
            ),
        ):
            value = sum(
                found.count for (_, outcome), found in self._timings.items() if outcomes is None or outcome in outcomes
            )
            yield CounterMetricFamily(f"castslice_{name}", text, value=value)
        family = HistogramMetricFamily(
            "gpuslice_admission_seconds",
            "From a whole request to rewrite a pod to its answer, by the dialect that the pod speaks and by outcome: "
            "untouched, rewritten, denied, warned, failed (unreadable, or a failure of the webhook).",
            labels=("dialect", "outcome"),
        )
        for labels, found in self._timings.items():
            family.add_metric(labels, found.buckets(), found.seconds)
        yield family


class Metrics:
    """Counts what happens. One object per process, with a registry of its own."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        self._last_text = b""
        self._next_text = 0.0
        self._mutations = _Mutations()
        self.registry.register(self._mutations)
        self._refusals = Counter(
            "gpuslice_admission_refusals_total",
            "Refusals: malformed (a request without meaning, by /mutate or /validate), not_allowed (by policy or "
            "backend), policy (a SlicePolicy that makes no sense), unreadable (a review that cannot be decoded), "
            "quota (a pod for which a quota leaves no room).",
            ("reason",),
            registry=self.registry,
        )
        self._validations = Counter(
            "gpuslice_validations_total",
            "Reviews by /validate (pod), /validate-policy (policy), /validate-quota (quota), by outcome: allowed, "
            "denied or failed.",
            ("kind", "outcome"),
            registry=self.registry,
        )
        self._over_quota = Counter(
            "gpuslice_quota_denials_total",
            "Pods that were refused because of a quota, by namespace.",
            ("namespace",),
            registry=self.registry,
        )
        self._expressions = Counter(
            "gpuslice_policy_expression_failures_total",
            "Expressions of policies that had no answer for a pod, so that their rule did not match.",
            ("policy",),
            registry=self.registry,
        )
        self._faults = Counter(
            "gpuslice_webhook_faults_total",
            "Connections that ended otherwise than they should, by reason: not TLS, not HTTP, too large, too slow, "
            "unread, crowded out, unauthenticated (a review of a client that has not proven to be an API server), "
            "client_certificate (one that was not accepted).",
            ("reason",),
            registry=self.registry,
        )
        for reason in LOUD_FAULTS:
            self._faults.labels(reason)
        for refusal in Refusal:
            self._refusals.labels(refusal)
        for kind in ("pod", "policy", "quota"):
            for outcome in ("allowed", "denied", "failed"):
                self._validations.labels(kind, outcome)

    def follow(
        self,
        *,
        in_flight: Callable[[], float],
        connections: Callable[[], float],
        expires: Callable[[], float],
        authenticates: Callable[[], float],
        authenticated_connections: Callable[[], float],
    ) -> None:
        """Adds metrics that are looked up at each scrape."""
        for name, text, function in (
            ("gpuslice_webhook_requests_in_flight", "Requests that have begun and are not answered.", in_flight),
            ("gpuslice_webhook_connections", "Open connections, with those for metrics.", connections),
            (
                "gpuslice_webhook_certificate_expiry_timestamp_seconds",
                "When the certificate ends that new connections get; 0 while there is none.",
                expires,
            ),
            (
                "gpuslice_webhook_authenticates_callers",
                "1 if reviews are taken from API servers alone (--client-authority); 0 if from all who reach the port.",
                authenticates,
            ),
            (
                "gpuslice_webhook_authenticated_connections",
                "Open connections of clients that have proven to be API servers.",
                authenticated_connections,
            ),
        ):
            Gauge(name, text, registry=self.registry).set_function(function)

    def text(self) -> bytes:
        """As Prometheus reads it. Asked too often, it says what it said last: writing it takes as long as many reviews
        do, and any client that reaches the port may ask.
        """
        now = time.monotonic()
        if now >= self._next_text:
            self._last_text = generate_latest(self.registry)
            # So many at once, if it was not asked for a while.
            self._next_text = max(self._next_text, now - _TEXTS_AT_ONCE * _TEXT_SECONDS) + _TEXT_SECONDS
        return self._last_text

    def mutated(self, decision: Decision, seconds: float) -> None:
        """A pod was answered."""
        if decision.outcome is Outcome.DENIED:
            self.refused(_reason(decision))
        self._mutations.timings(_dialect(decision), decision.outcome).observe(seconds)
        for failure in decision.failures:
            self._expressions.labels(failure.rule.label).inc()

    def mutation_failed(self, seconds: float) -> None:
        """A request to rewrite a pod had no answer."""
        self._mutations.timings(NO_DIALECT, FAILED).observe(seconds)

    def validated(self, kind: str, outcome: str) -> None:
        self._validations.labels(kind, outcome).inc()

    def over_quota(self, namespace: str) -> None:
        self.refused(Refusal.QUOTA)
        self._over_quota.labels(namespace).inc()

    def refused(self, reason: Refusal) -> None:
        self._refusals.labels(reason).inc()

    def fault(self, reason: str) -> None:
        self._faults.labels(reason).inc()


def _dialect(decision: Decision) -> str:
    readings = decision.readings
    if not readings:
        return NO_DIALECT
    first = readings[0].dialect
    return first if all(reading.dialect == first for reading in readings) else SEVERAL


def _reason(decision: Decision) -> Refusal:
    malformed = decision.denial is not None and decision.denial.malformed
    return Refusal.MALFORMED if malformed else Refusal.NOT_ALLOWED
