"""What an installation decides, and the names that its parts know each other by."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

from gpuslice.admission.configurations import Service, Webhooks
from gpuslice.model.settings import DEFAULT_SETTINGS, Settings

NAMESPACE: Final = "gpuslice-system"
WEBHOOK: Final = "gpuslice-webhook"
CONTROLLER: Final = "gpuslice-controller"
AGENT: Final = "gpuslice-agent"


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
    settings: Settings = field(default_factory=lambda: DEFAULT_SETTINGS)

    @property
    def webhooks(self) -> Webhooks:
        return Webhooks(
            target=Service(namespace=self.namespace, name=WEBHOOK),
            settings=self.settings,
            excluded_namespaces=("kube-system", self.namespace),
            certificate=f"{self.namespace}/{WEBHOOK}" if self.cert_manager else None,
        )
