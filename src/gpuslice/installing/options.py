"""What an installation decides, and the names that its parts know each other by."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from gpuslice.admission.registration import excluded_namespaces
from gpuslice.admission.registration.webhook_configurations import Address, Service, Webhooks
from gpuslice.configuration import effective
from gpuslice.configuration.effective import Layer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.configuration.effective import Effective
    from gpuslice.configuration.reading import Document
    from gpuslice.configuration.schema import Configuration
    from gpuslice.model.settings import Settings

NAMESPACE: Final = "gpuslice-system"
WEBHOOK: Final = "gpuslice-webhook"
CONTROLLER: Final = "gpuslice-controller"
AGENT: Final = "gpuslice-agent"
METRICS_READER: Final = "gpuslice-metrics-reader"

#: Where the webhook's pods find their certificate of cert-manager's, and the authority of the API servers.
CERTIFICATE_FOLDER: Final = "/etc/gpuslice/tls"
CLIENT_AUTHORITY_FOLDER: Final = "/etc/gpuslice/client-authority"
CLIENT_AUTHORITY_FILE: Final = "ca.crt"


def default_image() -> str:
    """The image of this version."""
    return f"gpuslice:{version('gpuslice')}"


@dataclass(frozen=True, kw_only=True)
class Options:
    """One installation."""

    namespace: str = NAMESPACE
    image: str = field(default_factory=default_image)
    #: Whether cert-manager makes the webhook's certificates, and not we.
    cert_manager: bool = False
    #: Where the API server reaches a webhook that runs outside of the cluster.
    url: str | None = None
    #: What the file and the flags say, as a document. It counts more than what an installation has by itself.
    said: Mapping[str, Any] = field(default_factory=dict)
    #: Who signs the API servers' client certificates, as PEM; empty if they have none, or it is there already.
    client_authority: str = ""
    #: The networks of pods, if no API server comes from them.
    pod_networks: tuple[str, ...] = ()

    @cached_property
    def effective(self) -> Effective:
        """What all pods of the installation read."""
        return effective.load(
            [
                Layer("the installation", effective.document(self._in_a_cluster())),
                Layer("configuration", effective.document(dict(self.said))),
            ]
        )

    @property
    def configuration(self) -> Configuration:
        return self.effective.configuration

    @property
    def settings(self) -> Settings:
        return self.effective.settings

    @property
    def service(self) -> Service:
        """The webhook's, in the cluster."""
        return Service(namespace=self.namespace, name=WEBHOOK)

    @property
    def webhooks(self) -> Webhooks:
        registration = self.configuration.webhook.registration
        namespace, _, name = (registration.service or "").partition("/")
        return Webhooks(
            target=Address(url=registration.url) if registration.url else Service(namespace=namespace, name=name),
            settings=self.settings,
            excluded_namespaces=registration.excluded_namespaces,
            refuse_unreviewed=registration.failure_policy == "Fail",
            certificate=registration.certificate,
        )

    def _in_a_cluster(self) -> Document:
        """What is different from processes that are started by hand."""
        return {
            "cluster": {"namespace": self.namespace},
            "webhook": {
                # After SIGTERM the server says that it is not ready and goes on answering for so long, until no API
                # server calls it any more. That is why no preStop hook is needed.
                "drain": "10s",
                **(self._webhook_inside() if self.url is None else {}),
                "registration": self._registration(),
            },
            "agent": {"state": "/run/gpuslice", "metrics": "0.0.0.0:9500", "kubelet": {"enabled": True}},
            "logging": {"form": "json"},
        }

    def _webhook_inside(self) -> Document:
        authority = {"clientAuthority": f"{CLIENT_AUTHORITY_FOLDER}/{CLIENT_AUTHORITY_FILE}"}
        if self.cert_manager:
            return authority | {
                "certificate": f"{CERTIFICATE_FOLDER}/tls.crt",
                "key": f"{CERTIFICATE_FOLDER}/tls.key",
            }
        return authority | {"hosts": list(self.service.dns_names)}

    def _registration(self) -> Document:
        target = {"service": f"{self.namespace}/{WEBHOOK}"} if self.url is None else {"url": self.url}
        certificate = {"certificate": f"{self.namespace}/{WEBHOOK}"} if self.cert_manager else {}
        return {**target, "excludedNamespaces": list(excluded_namespaces.by_default(self.namespace)), **certificate}
