"""What a cluster tells of itself to the user who asks. Nothing is written, and what may not be read is said."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gpuslice.admission.cluster import cluster_gpus, gpu_sizes, offers
from gpuslice.kube import server_version
from gpuslice.kube.decoding import decoder
from gpuslice.kube.errors import ApiError
from gpuslice.kube.listing import pages
from gpuslice.kube.resources import NAMESPACES, NODES, PODS, RESOURCE_SLICES, ObjectMetadata
from gpuslice.model import devices
from gpuslice.model.errors import GpusliceError
from gpuslice.policies import stored_policies
from gpuslice.policies.rule_set import PolicySet
from gpuslice.policies.stored_policies import SLICE_POLICIES, StoredPolicy
from gpuslice.quotas import schema, stored_quotas

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from gpuslice.admission.context import Context
    from gpuslice.kube.client.api import Api
    from gpuslice.kube.resources import Resource
    from gpuslice.quotas.schema import Count

T = TypeVar("T")


@dataclass(slots=True)
class ClusterReading:
    """One look at a cluster, by the rights of the user. An empty namespace is all of them."""

    api: Api
    namespace: str
    #: What could not be read, and what is assumed instead.
    unread: list[str] = field(default_factory=list)
    _served: set[str] = field(default_factory=set)

    async def context(self, given: Context) -> Context:
        """What admission would know there, beside what it is given: policies that are to be tried."""
        stored = await self._all(SLICE_POLICIES, StoredPolicy, "none is in force")
        parsed = [stored_policies.parse(each) for each in stored]
        self.unread += [f"{each.complaint}; it is not in force" for each in parsed if each.complaint]
        labels = await self._namespace_labels()
        gpus = cluster_gpus.find(
            given.settings,
            _found(map(gpu_sizes.published, await self._published())),
            _found(map(gpu_sizes.labelled, await self._nodes(ObjectMetadata, gpu_sizes.MEMORY_LABEL))),
            [
                offers.offered(node)
                for label in devices.NODE_LABELS
                for node in await self._nodes(offers.GpuNode, f"{label}=true")
            ],
            await server_version.ask(self.api),
            slices_served=RESOURCE_SLICES.plural in self._served,
        )
        return replace(
            given,
            policies=PolicySet([*given.policies.rules, *(rule for each in parsed for rule in each.rules)]),
            namespace_labels=lambda namespace: labels.get(namespace, {}),
            **gpus._asdict(),
        )

    async def quotas(self, context: Context) -> dict[str, dict[str, Count]]:
        """What quotas allow, by namespace and quota."""
        found: dict[str, dict[str, Count]] = {}
        of_gpus = await self._all(schema.GPU_QUOTAS, stored_quotas.StoredGpuQuota, "there is none", self.namespace)
        of_names = await self._all(
            schema.RESOURCE_QUOTAS, stored_quotas.StoredResourceQuota, "there is none", self.namespace
        )
        for each in of_gpus:
            key = schema.quota_key(schema.KIND, each.metadata.name)
            found.setdefault(each.metadata.namespace, {})[key] = stored_quotas.of_gpu_quota(each)
        for other in of_names:
            count = stored_quotas.of_resource_quota(other, context.settings)
            if count is not None:
                key = schema.quota_key(schema.RESOURCE_QUOTA_KIND, other.metadata.name)
                found.setdefault(other.metadata.namespace, {})[key] = count
        return found

    async def pods(self) -> AsyncIterator[dict[str, Any]]:
        """As the API server holds them."""
        seen: set[str] = set()  # a list that expires begins again
        try:
            async for page in pages(self.api, PODS.path(self.namespace)):
                for item in page.items:
                    pod = msgspec.json.decode(item)
                    if pod["metadata"]["uid"] not in seen:
                        seen.add(pod["metadata"]["uid"])
                        yield pod
        except ApiError as error:
            remedy = "" if self.namespace else "; for a namespace that you may look at, write -n NAMESPACE"
            raise GpusliceError(f"pods cannot be listed: {error}{remedy}") from None

    async def _published(self) -> list[gpu_sizes.PublishedSlice]:
        return await self._all(
            RESOURCE_SLICES,
            gpu_sizes.PublishedSlice,
            "nodes publish no GPU",
            selectors={"fieldSelector": f"spec.driver={devices.DRIVER}"},
        )

    async def _nodes(self, kind: type[T], labels: str) -> list[T]:
        return await self._all(NODES, kind, "there is no GPU yet", selectors={"labelSelector": labels})

    async def _namespace_labels(self) -> dict[str, dict[str, str]]:
        found: list[ObjectMetadata] = []
        if not self.namespace:
            found = await self._all(NAMESPACES, ObjectMetadata, "namespaces have no labels")
        else:
            try:
                found = [await self.api.get(NAMESPACES, self.namespace, ObjectMetadata)]
            except ApiError as error:
                if error.not_found:
                    raise
                self.say_unread(NAMESPACES.plural, error, "the namespace has no labels")
        return {each.metadata.name: each.metadata.labels or {} for each in found}

    async def _all(
        self,
        resource: Resource,
        kind: type[T],
        assumed: str,
        namespace: str = "",
        *,
        selectors: dict[str, str] | None = None,
    ) -> list[T]:
        """What there is. None if the server does not know the kind, or does not let this user list it."""
        found: list[T] = []
        try:
            async for page in pages(self.api, resource.path(namespace), selectors):
                if page.first:
                    found = []
                found += map(decoder(kind), page.items)
        except ApiError as error:
            if not error.not_found:
                self.say_unread(resource.plural, error, assumed)
            return []
        self._served.add(resource.plural)
        return found

    def say_unread(self, what: str, error: ApiError, assumed: str) -> None:
        told = f"{what} cannot be read, assumed that {assumed}: {error}"
        if told not in self.unread:
            self.unread.append(told)


def _found(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]
