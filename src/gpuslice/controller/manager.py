"""The controller: waits for its turn, works, and lets the next one work when it ends."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuslice.controller import accounting, followed_policies
from gpuslice.controller.endpoints import Endpoints
from gpuslice.controller.followed_quotas import FollowedQuotas
from gpuslice.controller.reconcilers.claim_templates import DEFAULT_GRACE, ClaimTemplates
from gpuslice.controller.reconcilers.policy_status import PolicyStatus
from gpuslice.controller.reconcilers.quota_status import QuotaStatus
from gpuslice.controller.reconcilers.quota_tallies import QuotaTallies
from gpuslice.controller.reconcilers.webhook_configurations import Installation, WebhookConfigurations
from gpuslice.kube.events import Recorder
from gpuslice.kube.informers import Informers
from gpuslice.kube.leases import LeaderElection, Terms
from gpuslice.kube.reconciler import Manager
from gpuslice.model.settings import DEFAULT_SETTINGS
from gpuslice.policies.crd_watch import PolicyDefinition
from gpuslice.system.supervised.health import Health
from gpuslice.system.supervised.supervision import Restart, SupervisionMetrics, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from gpuslice.controller.accounting import LedgerSettings
    from gpuslice.kube.client.api import Api
    from gpuslice.kube.reconciler import Reconciler

COMPONENT: Final = "gpuslice.io/controller"
LEASE: Final = "gpuslice-controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a controller is started with."""

    #: Where the lease is, and the name of this contender for it.
    namespace: str
    identity: str
    address: str = ""
    port: int = 8080
    #: How long a claim template stays that no pod needs, and the namespaces in which none is made.
    grace: float = DEFAULT_GRACE
    excluded: tuple[str, ...] = ()
    #: Whose webhook configurations are kept. None: no configurations are.
    installation: Installation | None = None
    terms: Terms = field(default_factory=Terms)
    #: Where GPU time is kept, and how it is charged. None: nothing is metered.
    ledger: LedgerSettings | None = None


def reconcilers(api: Api, informers: Informers, recorder: Recorder, settings: Settings) -> list[Reconciler[Any]]:
    """What the controller keeps as it should be. A new reconciler is a module beside the others and a line here."""
    policies = followed_policies.follow(informers)
    PolicyDefinition(informers, policies)
    installation = settings.installation
    admission = installation.webhooks.settings if installation is not None else DEFAULT_SETTINGS
    quotas = FollowedQuotas(informers, policies, admission, settings.namespace)
    configurations = (
        WebhookConfigurations(api, informers, policies, recorder, installation, quotas.tallies)
        if installation is not None
        else None
    )
    hosted: list[Reconciler[Any] | None] = [
        PolicyStatus(api, policies, recorder, held=configurations),
        configurations,
        ClaimTemplates(api, informers, recorder, excluded=settings.excluded, grace=settings.grace),
        QuotaTallies(api, quotas),
        QuotaStatus(api, quotas, excluded=installation.webhooks.excluded_namespaces if installation else None),
    ]
    hosted += accounting.reconcilers(api, informers, recorder, settings.ledger)
    return [each for each in hosted if each is not None]


class Controller(Collector):
    """One contender for the work."""

    def __init__(self, api: Api, settings: Settings) -> None:
        self.health: Final = Health()
        self.registry: Final = CollectorRegistry()
        self._settings = settings
        self._recorder = Recorder(api, COMPONENT, settings.identity)
        informers = Informers(api)
        self._supervision = SupervisionMetrics(self.registry)
        self._manager = Manager(
            informers,
            self.health,
            self.registry,
            reconcilers(api, informers, self._recorder, settings),
            supervision=self._supervision,
        )
        self._election = LeaderElection(api, settings.namespace, LEASE, settings.identity, settings.terms)
        self._stop = asyncio.Event()
        self.registry.register(self)

    async def run(self, ready: Callable[[str], None]) -> None:
        """Until SIGTERM or SIGINT.

        Raises LeadershipLostError if the lease is lost, and PartFailedError if a part failed that ends the process.
        """
        loop = asyncio.get_running_loop()
        endpoints = Endpoints(
            self._settings.address,
            self._settings.port,
            health=self.health,
            metrics=lambda: generate_latest(self.registry),
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        supervisor = Supervisor(self.health, self._supervision)
        # Events are a courtesy: nothing that others rely on ends with them.
        supervisor.add("events", self._recorder.run, Restart())
        try:
            ready(endpoints.url)
            await supervisor.run(self._lead())
        finally:
            endpoints.close()

    async def _lead(self) -> None:
        """Waits for its turn and works, until it is stopped."""
        leading = asyncio.create_task(self._election.run(self._manager.run))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((leading, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            leading.cancel()
            await asyncio.wait((leading, stopping))
        with suppress(asyncio.CancelledError):
            leading.result()

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "gpuslice_controller_leader",
            "1 for the controller that works, 0 for one that waits.",
            value=int(self._election.leading.is_set()),
        )
        yield CounterMetricFamily(
            "gpuslice_events_dropped", "Events that could not be written.", value=self._recorder.dropped
        )
