"""Keeps the webhook configurations as they should be: in step with policies, namespaces and quotas, and restored when
they are deleted or changed by hand.

Everything in them is written here but the bundles of authorities, which belong to the webhook's certificate keeper or
to cert-manager: they are carried over from what is there, with its version as a precondition, so that neither writer
undoes what the other did. A configuration that was deleted comes back with the last bundle that was seen, so that the
API server can call its webhooks at once.

To uninstall gpuslice is to delete the configurations, too: they stay deleted when the webhook's Service, or the whole
namespace, is gone or about to go. What is restored belongs to the namespace, and goes with it.
"""

from __future__ import annotations

import asyncio
import copy
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gpuslice.admission.registration import webhook_configurations
from gpuslice.admission.registration.fail_closed_namespaces import RefusingNamespaces, refusing_namespaces
from gpuslice.admission.registration.webhook_configurations import NAME, Service, Webhooks
from gpuslice.kube.client import api as calls
from gpuslice.kube.errors import ApiError, UnreachableError
from gpuslice.kube.events import Recorder, Regarding
from gpuslice.kube.reconciler import Reconciler, Trigger
from gpuslice.kube.resources import NAMESPACES, SERVICES, Metadata, ObjectMetadata, Resource
from gpuslice.model.errors import GpusliceError
from gpuslice.pki.trust import MUTATING, VALIDATING
from gpuslice.system.supervised.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.core import Metric

    from gpuslice.controller.followed_policies import FollowedPolicy
    from gpuslice.controller.followed_quotas import FollowedTally
    from gpuslice.kube.client.api import Api
    from gpuslice.kube.informers import Informer, Informers
    from gpuslice.policies.stored_policies import ParsedPolicy

Object = dict[str, Any]

_KINDS: Final = {MUTATING: "MutatingWebhookConfiguration", VALIDATING: "ValidatingWebhookConfiguration"}
#: No informer tells when a Service that is missing comes back.
_SECONDS_UNTIL_INSTALLED: Final = 2.0
#: Another program wrote first, and the informer is about to tell what. If it does not, this does.
_SECONDS_AFTER_A_LOST_RACE: Final = 0.5
#: Until policies that are being listed anew are known again.
_SECONDS_UNTIL_LISTED: Final = 0.1
#: Between two looks at least, so that many changes become one write.
_PAUSE_SECONDS: Final = 0.05
#: When another program insists on its own version, each write waits longer than the one before; until it has been
#: quiet for so long.
_LONGEST_PAUSE_SECONDS: Final = 1.0
_QUIET_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Whose configurations they are."""

    webhooks: Webhooks
    #: Where gpuslice itself is installed.
    namespace: str
    #: Of both configurations.
    name: str = NAME


class _Configuration(msgspec.Struct, frozen=True):
    metadata: Metadata
    webhooks: list[Object] = []


class _OwnMetadata(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    deletion_timestamp: str | None = None


class _Own(msgspec.Struct, frozen=True):
    metadata: _OwnMetadata


class _NotInstalledError(GpusliceError):
    """Raised when there is no webhook that a configuration could name: gpuslice is being removed, or never was here."""

    def __init__(self) -> None:
        super().__init__("they are missing, and so is the webhook that they would name")


class WebhookConfigurations(Reconciler[str]):
    """Both configurations. The one key is their name: both follow from the same policies and namespaces."""

    name: ClassVar[str] = "webhook-configurations"
    longest_wait: ClassVar[float] = 30.0

    def __init__(
        self,
        api: Api,
        informers: Informers,
        policies: Informer[FollowedPolicy],
        recorder: Recorder,
        installation: Installation,
        tallies: Informer[FollowedTally] | None = None,
    ) -> None:
        self.restored = 0
        #: Why the configurations are not as they should be; empty if they are.
        self.problem = "they were not looked at yet"
        self.refusing: RefusingNamespaces | None = None
        self._api = api
        self._recorder = recorder
        self._installation = installation
        self._policies = policies
        self._tallies = tallies
        self._under_quotas: frozenset[str] | None = None
        self._held_listeners: list[Callable[[], None]] = []
        self._namespaces: Informer[Mapping[str, str]] = informers.informer(
            NAMESPACES, ObjectMetadata, lambda found: found.metadata.labels or {}
        )
        self._found: dict[Resource, Informer[_Configuration]] = {
            resource: informers.informer(
                resource, _Configuration, lambda found: found, fields=f"metadata.name={installation.name}"
            )
            for resource in _KINDS
        }
        for informer in self._found.values():
            informer.store.listen(self._remember_bundle)
        #: The policies that the configurations were last written for.
        self._held: frozenset[ParsedPolicy] = frozenset()
        self._wanted: dict[Resource, Object] = {}
        #: What each was when it was last as it should be.
        self._settled_as: dict[Resource, Object] = {}
        self._bundle = ""
        self._last_restored = float("-inf")
        self._pause = Backoff(_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        self._log = structlog.get_logger()

    def triggers(self) -> Iterator[Trigger[str]]:
        watched: list[Informer[Any]] = [self._policies, self._namespaces, *self._found.values()]
        for informer in watched:
            yield Trigger(informer, lambda _key, _old, _new: self.first_keys())
        if self._tallies is not None:
            # What a tally says changes with every pod; that there is one, with the first quota of a namespace.
            yield Trigger(
                self._tallies, lambda _key, old, new: self.first_keys() if (old is None) != (new is None) else ()
            )

    def first_keys(self) -> Iterable[str]:
        return (self._installation.name,)

    def holds(self, policy: ParsedPolicy) -> bool:
        """Whether the API server refuses the policy's unreviewed pods by now."""
        return policy in self._held

    def on_held_changed(self, listener: Callable[[], None]) -> None:
        """Calls it when another answer of `holds` may be right."""
        self._held_listeners.append(listener)

    async def reconcile(self, _key: str) -> float | None:
        if not self._policies.synced.is_set():
            return _SECONDS_UNTIL_LISTED  # the policies are unknown meanwhile: what was written stays
        restored = self.restored
        try:
            await self._write()
        except _NotInstalledError as error:
            self._conclude(str(error))
            return _SECONDS_UNTIL_INSTALLED
        except (ApiError, UnreachableError) as error:
            if isinstance(error, ApiError) and (error.conflict or error.not_found):
                return _SECONDS_AFTER_A_LOST_RACE
            self._conclude(f"they cannot be written: {error}")
            raise
        # The queue hands the key out again when this returns, so the pause makes many changes one write.
        await (self._pause.wait() if self.restored > restored else asyncio.sleep(_PAUSE_SECONDS))
        return None

    def unready(self) -> str:
        return f"the webhook configurations are not as they should be: {self.problem}" if self.problem else ""

    def metrics(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "gpuslice_webhook_configurations_in_order",
            "1 if the webhook configurations are as they should be, as far as this controller leads and knows.",
            value=int(not self.problem),
        )
        yield CounterMetricFamily(
            "gpuslice_webhook_configurations_restored",
            "Times that a webhook configuration was written again that had been deleted or changed by hand.",
            value=self.restored,
        )

    async def _write(self) -> None:
        policies = frozenset(policy.parsed for policy in self._policies.store.values())
        await self._work_out(policies)
        for resource in _KINDS:
            await self._settle(resource)
        self._conclude("", policies)

    def _conclude(self, problem: str, held: frozenset[ParsedPolicy] = frozenset()) -> None:
        """Notes how the configurations are now, and says so where that is news."""
        if problem and problem != self.problem:
            self._log.warning("the webhook configurations are not as they should be", problem=problem)
        if (problem, held) != (self.problem, self._held):
            self.problem, self._held = problem, held
            for listener in self._held_listeners:
                listener()

    async def _work_out(self, policies: frozenset[ParsedPolicy]) -> None:
        webhooks = self._installation.webhooks
        known = {name: labels for (_, name), labels in self._namespaces.store.items()}
        rules = [rule for policy in policies for rule in policy.rules]
        refusing = await asyncio.to_thread(refusing_namespaces, rules, known, webhooks.excluded_namespaces)
        under_quotas = frozenset(name for _, name in (self._tallies.store if self._tallies is not None else ()))
        if (refusing, under_quotas) == (self.refusing, self._under_quotas):
            return
        if refusing.too_many:
            self._log.warning("too many namespaces to tell apart: unreviewed pods are refused in all of them")
        self.refusing, self._under_quotas = refusing, under_quotas
        self._wanted = {
            MUTATING: webhook_configurations.mutating(webhooks, refusing),
            VALIDATING: webhook_configurations.validating(webhooks, under_quotas),
        }
        for document in self._wanted.values():
            document["metadata"]["name"] = self._installation.name

    async def _settle(self, resource: Resource) -> None:
        wanted, found = self._wanted[resource], self._found[resource].store.get("", self._installation.name)
        # By hand, if what should be there is what was there.
        by_hand = self._settled_as.get(resource) is wanted
        if found is None:
            await self._create(resource, wanted, await self._find_owner())
            self._record_restored(resource, "it was missing")
        elif different := _differences(found, wanted):
            await self._change(resource, found, wanted)
            if by_hand:
                self._record_restored(resource, f"{', '.join(different)} had been changed")
            else:
                self._log.info(
                    "the webhook configuration follows the policies",
                    kind=_KINDS[resource],
                    changed=different,
                    refusing=self.refusing.describe() if self.refusing else None,
                )
        self._settled_as[resource] = wanted

    async def _change(self, resource: Resource, found: _Configuration, wanted: Object) -> None:
        metadata = {
            "resourceVersion": found.metadata.resource_version,
            **{key: wanted["metadata"][key] for key in ("labels", "annotations") if key in wanted["metadata"]},
        }
        changes = {"metadata": metadata, "webhooks": self._with_bundles(wanted, _bundles(found))}
        await self._api.merge(resource, self._installation.name, changes)

    async def _create(self, resource: Resource, wanted: Object, owner: Object) -> None:
        metadata = wanted["metadata"] | {"ownerReferences": [owner]}
        await self._api.create(resource, wanted | {"metadata": metadata, "webhooks": self._with_bundles(wanted, {})})

    def _with_bundles(self, wanted: Object, bundles: Mapping[str, str]) -> list[Object]:
        """The webhooks, each with its own bundle; one that is new has the last that was seen anywhere."""
        webhooks: list[Object] = copy.deepcopy(wanted["webhooks"])
        for webhook in webhooks:
            if bundle := bundles.get(webhook["name"], self._bundle):
                webhook["clientConfig"]["caBundle"] = bundle
        return webhooks

    def _remember_bundle(self, _key: object, _old: object, new: _Configuration | None) -> None:
        if new is not None:
            self._bundle = next(filter(None, _bundles(new).values()), self._bundle)

    async def _find_owner(self) -> Object:
        """The namespace that gpuslice is installed in. Raises _NotInstalledError if it goes, or if the webhook has."""
        name, target = self._installation.namespace, self._installation.webhooks.target
        try:
            home = await self._api.get(NAMESPACES, name, _Own, accept=calls.METADATA)
            if isinstance(target, Service):
                await self._api.get(SERVICES, target.name, _Own, namespace=target.namespace, accept=calls.METADATA)
        except ApiError as error:
            if error.not_found:
                raise _NotInstalledError from None
            raise
        if home.metadata.deletion_timestamp is not None:
            raise _NotInstalledError
        return {"apiVersion": "v1", "kind": "Namespace", "name": name, "uid": home.metadata.uid}

    def _record_restored(self, resource: Resource, why: str) -> None:
        self.restored += 1
        if time.monotonic() - self._last_restored > _QUIET_SECONDS:
            self._pause.reset()
        self._last_restored = time.monotonic()
        kind, name = _KINDS[resource], self._installation.name
        self._log.warning("restored a webhook configuration", kind=kind, name=name, why=why)
        api_version = f"{resource.group}/{resource.version}"
        regarding = Regarding(api_version=api_version, kind=kind, name=name)
        note = f"{why}; the controller keeps it as the policies and its options say, and has written it again"
        self._recorder.record(regarding, "Warning", "Restored", "Restore", note)


def _bundles(configuration: _Configuration) -> dict[str, str]:
    """By webhook."""
    return {
        webhook.get("name", ""): webhook.get("clientConfig", {}).get("caBundle", "")
        for webhook in configuration.webhooks
    }


def _differences(found: _Configuration, wanted: Object) -> list[str]:
    """What is to be written, in words. The bundles belong to other writers."""
    there = {webhook.get("name", ""): _without_bundle(webhook) for webhook in found.webhooks}
    should = {webhook["name"]: webhook for webhook in wanted["webhooks"]}
    different = [name for name in sorted(there.keys() | should.keys()) if there.get(name) != should.get(name)]
    if not different and list(there) != list(should):
        different = ["the order of webhooks"]
    for key in ("labels", "annotations"):
        written = getattr(found.metadata, key) or {}
        if not wanted["metadata"].get(key, {}).items() <= written.items():
            different.append(key)
    return different


def _without_bundle(webhook: Object) -> Object:
    client = {key: value for key, value in webhook.get("clientConfig", {}).items() if key != "caBundle"}
    return webhook | {"clientConfig": client}
