"""Whom the API servers trust to be the webhook: the bundles of authorities in the webhook configurations, and their
upkeep. Nothing else in a configuration is ever written.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from gpuslice.kube.errors import ApiError
from gpuslice.kube.resources import Metadata, Resource

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuslice.kube.client.api import Api
    from gpuslice.kube.informers import Informer, Informers

MUTATING: Final = Resource("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations")
VALIDATING: Final = Resource("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations")

#: Knows that the webhooks of a configuration are told apart by name.
_STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"


_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----\n.+?\n-----END CERTIFICATE-----\n?", re.DOTALL)


def split_bundle(bundle: str) -> frozenset[str]:
    """The certificates in a bundle, each with a newline at its end, as all of ours have."""
    return frozenset(found.rstrip("\n") + "\n" for found in _CERTIFICATE.findall(bundle))


class _ClientConfig(msgspec.Struct, frozen=True, rename="camel"):
    ca_bundle: bytes = b""


class _Webhook(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    client_config: _ClientConfig


class _Configuration(msgspec.Struct, frozen=True):
    metadata: Metadata
    webhooks: list[_Webhook] | None = None

    def unlike(self, bundle: bytes) -> list[str]:
        """The webhooks whose bundle is another one."""
        return [webhook.name for webhook in self.webhooks or () if webhook.client_config.ca_bundle != bundle]


class Trust:
    """The webhook configurations of these names, as far as they exist."""

    def __init__(self, api: Api, informers: Informers, names: Iterable[tuple[Resource, str]]) -> None:
        self._api = api
        self._names: Final = tuple(names)
        self.informers: Final[Sequence[Informer[_Configuration]]] = [
            informers.informer(resource, _Configuration, lambda found: found, fields=f"metadata.name={name}")
            for resource, name in self._names
        ]
        self._missing: list[str] = []
        self._log = structlog.get_logger()

    def common(self) -> frozenset[str] | None:
        """The authorities that every webhook is called with trust in. None: nothing calls."""
        bundles = [
            split_bundle(webhook.client_config.ca_bundle.decode(errors="replace"))
            for informer in self.informers
            for configuration in informer.store.values()
            for webhook in configuration.webhooks or ()
        ]
        return frozenset.intersection(*bundles) if bundles else None

    def is_just(self, bundle: str) -> bool:
        """Whether there is nothing to `put`."""
        return not any(
            found.unlike(bundle.encode()) for informer in self.informers for found in informer.store.values()
        )

    async def put(self, bundle: str) -> None:
        """Puts the bundle where there is another one."""
        self._log_missing()
        for informer in self.informers:
            for configuration in informer.store.values():
                if names := configuration.unlike(bundle.encode()):
                    await self._put(informer.resource, configuration.metadata, names, bundle.encode())

    def _log_missing(self) -> None:
        """Once of each: a webhook without its configuration is well, and is not called."""
        missing = [
            f"{resource.plural}/{name}"
            for (resource, name), informer in zip(self._names, self.informers, strict=True)
            if not len(informer.store)
        ]
        if new := [each for each in missing if each not in self._missing]:
            self._log.warning(
                "webhook configurations are missing, and without them the API server calls no webhook; apply what "
                "`gpuslice manifests` prints, with --url if the webhook is outside of the cluster",
                missing=new,
            )
        self._missing = missing

    async def _put(self, resource: Resource, metadata: Metadata, names: list[str], bundle: bytes) -> None:
        changes = {
            "metadata": {"resourceVersion": metadata.resource_version},
            "webhooks": [{"name": name, "clientConfig": {"caBundle": bundle}} for name in names],
        }
        path = resource.path(name=metadata.name)
        try:
            await self._api.call("PATCH", path, body=changes, content=_STRATEGIC_PATCH)
        except ApiError as error:
            # It changed, or went, in the meantime: the informer is about to say how.
            if not error.conflict and not error.not_found:
                raise
        else:
            self._log.info("the webhook configuration has the bundle of authorities", path=path, webhooks=names)
