"""What an installation decides, and the names that its parts know each other by."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from gpuslice.admission.registration.webhook_configurations import Address, Service, Webhooks
from gpuslice.dialects.settings_file import NO_FILE, SettingsFile
from gpuslice.model.policies import Backend

if TYPE_CHECKING:
    from gpuslice.model.settings import Settings

NAMESPACE: Final = "gpuslice-system"
WEBHOOK: Final = "gpuslice-webhook"
CONTROLLER: Final = "gpuslice-controller"
AGENT: Final = "gpuslice-agent"
METRICS_READER: Final = "gpuslice-metrics-reader"


def default_image() -> str:
    """The image of this version."""
    return f"gpuslice:{version('gpuslice')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One installation."""

    namespace: str = NAMESPACE
    image: str = field(default_factory=default_image)
    #: Whether cert-manager makes the webhook's certificates, and not we.
    cert_manager: bool = False
    #: What the agents offer GPUs as: for claims, or as slots.
    node_backend: Backend = Backend.DRA
    #: Where the API server reaches a webhook that runs outside of the cluster.
    url: str | None = None
    settings_file: SettingsFile = NO_FILE
    #: Who signs the API servers' client certificates, as PEM; empty if they have none, or it is there already.
    client_authority: str = ""
    #: The networks of pods, if no API server comes from them.
    pod_networks: tuple[str, ...] = ()

    @property
    def settings(self) -> Settings:
        return self.settings_file.settings

    @property
    def webhooks(self) -> Webhooks:
        return Webhooks(
            target=Service(namespace=self.namespace, name=WEBHOOK) if self.url is None else Address(url=self.url),
            settings=self.settings,
            excluded_namespaces=("kube-system", self.namespace),
            certificate=f"{self.namespace}/{WEBHOOK}" if self.cert_manager else None,
        )
