"""Webhooks of a test's own: configurations that hold in one namespace, and replicas that run in this process."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from gpuslice.admission.registration import webhook_configurations
from gpuslice.admission.registration.webhook_configurations import Address, Webhooks
from gpuslice.admission.webhook.cluster_view import StaticCluster
from gpuslice.admission.webhook.server import Options, Webhook
from gpuslice.http.serving_certificate import ServingCertificate
from gpuslice.kube.informers import Informers
from gpuslice.pki.certificate_keeper import CertificateKeeper, Owner
from gpuslice.pki.trust import MUTATING, VALIDATING
from tests.cluster.kube.support import hosted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gpuslice.kube.client.api import Api
    from gpuslice.pki.authority_state import Lifetimes

Object = dict[str, Any]

HOST = "127.0.0.1"


@dataclass
class Clock:
    """Goes as far ahead as a test likes. Certificates are valid from an hour before they are made."""

    ahead: timedelta = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC).replace(microsecond=0) + self.ahead


def documents(namespace: str, url: str, *, failure_policy: str | None = None) -> list[Object]:
    """Both configurations, under names of the test's own, and about its namespace alone."""
    made = [
        build(Webhooks(target=Address(url=url)))
        for build in (webhook_configurations.mutating, webhook_configurations.validating)
    ]
    for document in made:
        document["metadata"]["name"] = namespace
        for webhook in document["webhooks"]:
            about_pods = webhook["name"].startswith("pods.")
            webhook["name"] = webhook_name(namespace, webhook["name"])
            # Policies have no namespace: those of the test have a label.
            here = {"kubernetes.io/metadata.name": namespace} if about_pods else {"test": namespace}
            webhook["namespaceSelector" if about_pods else "objectSelector"] = {"matchLabels": here}
            webhook["failurePolicy"] = failure_policy or webhook["failurePolicy"]
    return made


def webhook_name(namespace: str, name: str) -> str:
    return f"{namespace}.{name}"


def listed(objects: list[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


async def bundles(api: Api, namespace: str) -> list[str]:
    """The bundles that the API server has for the test's webhooks; an empty text where there is none."""
    found = []
    for resource in (MUTATING, VALIDATING):
        configuration = await api.get(resource, namespace, Object)
        found += [webhook["clientConfig"].get("caBundle", "") for webhook in configuration["webhooks"]]
    return found


def owner(namespace: str) -> Owner:
    return Owner(namespace=namespace, names=(HOST,), configurations=[(MUTATING, namespace), (VALIDATING, namespace)])


@dataclass
class Replica:
    """One webhook, as it runs in a pod."""

    identity: ServingCertificate = field(default_factory=ServingCertificate)
    port: int = 0
    certificates: list[bytes] = field(default_factory=list)

    def use(self, certificate: bytes, key: bytes) -> None:
        self.identity.set_certificate(certificate, key)
        self.certificates.append(certificate)

    async def is_trusted_by(self, bundle: str) -> None:
        """Raises an SSLError unless a client with this bundle accepts what it shows."""
        context = ssl.create_default_context(cadata=bundle)
        _reader, writer = await asyncio.open_connection(HOST, self.port, ssl=context)
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def replica(
    api: Api, namespace: str, *, now: Clock | None = None, lifetimes: Lifetimes | None = None
) -> AsyncIterator[Replica]:
    """A webhook that keeps its own certificates; the server is there before they are."""
    made = Replica()
    informers = Informers(api)
    keeper = CertificateKeeper(api, informers, owner(namespace), made.use, lifetimes=lifetimes, now=now or Clock())
    webhook = Webhook(Options(address=HOST, port=0, metrics_port=0, drain_seconds=0), StaticCluster(), made.identity)
    listening = asyncio.Event()

    def ready(reviews: str, _metrics: str) -> None:
        made.port = int(reviews.rpartition(":")[2])
        listening.set()

    serving = asyncio.create_task(webhook.run(ready))
    keeping = asyncio.create_task(hosted(informers, keeper))
    try:
        await listening.wait()
        await keeper.serving.wait()
        yield made
    finally:
        webhook.stop(hurry=True)
        await serving
        keeping.cancel()
        await asyncio.wait([keeping])
