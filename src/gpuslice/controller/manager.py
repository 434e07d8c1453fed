"""The controller: waits for its turn, works, and lets the next one work when it ends."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuslice.controller.endpoints import Endpoints
from gpuslice.controller.reconcilers.claim_templates import DEFAULT_GRACE, Sweeper
from gpuslice.controller.reconcilers.policy_status import PolicyStatus
from gpuslice.controller.reconcilers.webhook_configurations import Installation, WebhookConfigurations
from gpuslice.kube.events import Recorder
from gpuslice.kube.leases import LeaderElection, Terms
from gpuslice.policies.definition import PolicyDefinition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from gpuslice.kube.api import Api
    from gpuslice.kube.watching import Watch

COMPONENT: Final = "gpuslice.io/controller"
LEASE: Final = "gpuslice-controller"
#: A leader that has not heard of the API server for so long is better started again.
_SILENCE_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a controller is started with."""

    #: Where the lease is, and who we are among those who want it.
    namespace: str
    identity: str
    address: str = ""
    port: int = 8080
    grace: float = DEFAULT_GRACE
    #: Whose webhook configurations are kept. None: nobody's.
    installation: Installation | None = None
    terms: Terms = field(default_factory=Terms)


class Controller:
    """One contender for the work."""

    def __init__(self, api: Api, settings: Settings) -> None:
        self._settings = settings
        self._recorder = Recorder(api, COMPONENT, settings.identity)
        self._sweeper = Sweeper(api, grace=settings.grace)
        self._status = PolicyStatus(api, self._recorder)
        self._definition = PolicyDefinition(api, self._status.watch)
        self._configurations: WebhookConfigurations | None = None
        if settings.installation is not None:
            self._configurations = WebhookConfigurations(
                api, self._recorder, settings.installation, self._status.watch, self._status.look_again
            )
            self._status.holds = self._configurations.holds
        self._election = LeaderElection(api, settings.namespace, LEASE, settings.identity, settings.terms)
        self._began = 0.0
        self._stop = asyncio.Event()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

    @property
    def watches(self) -> tuple[Watch[Any, Any], ...]:
        kept = self._configurations.watches if self._configurations is not None else ()
        return self._status.watch, self._sweeper.watch, self._sweeper.references.watch, *kept

    async def run(self, ready: Callable[[str], None]) -> None:
        """Until SIGTERM or SIGINT, or until the lease is lost (LeadershipLostError)."""
        registry = CollectorRegistry()
        registry.register(_ControllerCollector(self))
        loop = asyncio.get_running_loop()
        endpoints = Endpoints(
            self._settings.address,
            self._settings.port,
            ailment=self.ailment,
            unready=self.unready,
            metrics=lambda: generate_latest(registry),
        )
        working = asyncio.create_task(self._election.run(self._work))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        stopping = asyncio.create_task(self._stop.wait())
        try:
            ready(endpoints.url)
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            endpoints.close()
            stopping.cancel()
            working.cancel()
            await asyncio.wait((working, stopping))
        with suppress(asyncio.CancelledError):
            working.result()

    def ailment(self) -> str:
        """What is wrong with this process that starting it again may put right."""
        if not self._election.leading.is_set():
            return ""
        if time.monotonic() - self._began < _SILENCE_SECONDS:
            return ""
        deaf = [watch.resource.plural for watch in self.watches if not watch.heard_within(_SILENCE_SECONDS)]
        return f"nothing was heard of {', '.join(deaf)} for {_SILENCE_SECONDS:.0f} s" if deaf else ""

    def unready(self) -> str:
        """What is not as it should be in the cluster. One that waits for its turn has nothing to do with it."""
        kept = self._configurations
        if kept is None or not kept.problem or not self._election.leading.is_set():
            return ""
        return f"the webhook configurations are not as they should be: {kept.problem}"

    async def _work(self) -> None:
        self._began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._recorder.run())
            group.create_task(self._definition.watch.run())
            group.create_task(self._status.run())
            if self._configurations is not None:
                group.create_task(self._configurations.run())
            group.create_task(self._sweeper.run())

    def numbers(self) -> Iterator[Metric]:
        """The metrics."""
        yield GaugeMetricFamily(
            "gpuslice_controller_leader",
            "1 for the controller that works, 0 for one that waits.",
            value=int(self._election.leading.is_set()),
        )
        policies = GaugeMetricFamily(
            "gpuslice_policies", "SlicePolicies, by whether they are in force.", labels=["state"]
        )
        for state, count in zip(("accepted", "refused"), self._status.counts, strict=True):
            policies.add_metric([state], count)
        yield policies
        yield from self._numbers_of_configurations()
        yield GaugeMetricFamily(
            "gpuslice_templates", "Claim templates that admission made.", value=len(self._sweeper.watch.store)
        )
        yield CounterMetricFamily(
            "gpuslice_templates_removed",
            "Claim templates removed because no pod used them.",
            value=self._sweeper.removed,
        )
        yield CounterMetricFamily(
            "gpuslice_events_dropped", "Events that could not be written.", value=self._recorder.dropped
        )
        relists = CounterMetricFamily("gpuslice_watch_relists", "Times that all was listed.", labels=["resource"])
        failures = CounterMetricFamily("gpuslice_watch_failures", "Failures of a watch.", labels=["resource"])
        for watch in self.watches:
            relists.add_metric([watch.resource.plural], watch.relists)
            failures.add_metric([watch.resource.plural], watch.failures)
        yield relists
        yield failures

    def _numbers_of_configurations(self) -> Iterator[Metric]:
        kept = self._configurations
        if kept is None:
            return
        yield GaugeMetricFamily(
            "gpuslice_webhook_configurations_in_order",
            "1 if the webhook configurations are as they should be, as far as this controller leads and knows.",
            value=int(not kept.problem),
        )
        yield CounterMetricFamily(
            "gpuslice_webhook_configurations_restored",
            "Times that a webhook configuration was written again that had been deleted or changed by hand.",
            value=kept.restored,
        )


class _ControllerCollector(Collector):
    """Asks the controller when somebody asks for metrics."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        return self._controller.numbers()
