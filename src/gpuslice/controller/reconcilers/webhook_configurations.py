"""Keeps the webhook configurations as they should be: in step with the policies and namespaces, and restored when they
are deleted or changed by hand.

Everything in them is written here but the bundles of authorities, which belong to the webhook's certificate keeper or
to cert-manager: they are carried over from what is there, with its version as a precondition, so that neither writer
undoes what the other did. A configuration that was deleted comes back with the last bundle that was seen, so that the
API server can call its webhooks at once.

Whoever uninstalls gpuslice deletes the configurations, too: they stay deleted when the webhook's Service, or the whole
namespace, is gone or about to go. What is restored belongs to the namespace, and goes with it.
"""

from __future__ import annotations

import asyncio
import copy
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from gpuslice.admission.registration import webhook_configurations
from gpuslice.admission.registration.unreviewed import RefusingNamespaces, refusing_namespaces
from gpuslice.admission.registration.webhook_configurations import NAME, Service, Webhooks
from gpuslice.kube import api as calls
from gpuslice.kube.backoff import Backoff
from gpuslice.kube.errors import ApiError, UnreachableError
from gpuslice.kube.events import Recorder, Regarding
from gpuslice.kube.resources import NAMESPACES, SERVICES, Metadata, ObjectMetadata, Resource
from gpuslice.kube.watching import Watch
from gpuslice.model.errors import GpusliceError
from gpuslice.pki.trust import MUTATING, VALIDATING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuslice.controller.reconcilers.policy_status import FollowedPolicy
    from gpuslice.kube.api import Api
    from gpuslice.policies.stored_policies import ParsedPolicy

Object = dict[str, Any]

_KINDS: Final = {MUTATING: "MutatingWebhookConfiguration", VALIDATING: "ValidatingWebhookConfiguration"}
#: Nobody tells when a Service that is missing comes back.
_SECONDS_UNTIL_INSTALLED: Final = 2.0
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
    """Raised when there is nobody whom a configuration could name: gpuslice is being removed, or never was here."""

    def __init__(self) -> None:
        super().__init__("they are missing, and so is the webhook that they would name")


class WebhookConfigurations:
    """Both configurations. `settled` is called when what `state` says about policies may have changed."""

    def __init__(
        self,
        api: Api,
        recorder: Recorder,
        installation: Installation,
        policies: Watch[Any, FollowedPolicy],
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self.restored = 0
        #: Why the configurations are not as they should be; empty if they are.
        self.problem = "they were not looked at yet"
        self.refusing: RefusingNamespaces | None = None
        self._api = api
        self._recorder = recorder
        self._installation = installation
        self._policies = policies
        self._settled = settled
        self._namespaces: Watch[ObjectMetadata, Mapping[str, str]] = Watch(
            api, NAMESPACES, ObjectMetadata, lambda found: found.metadata.labels or {}
        )
        self._found: dict[Resource, Watch[_Configuration, _Configuration]] = {
            resource: Watch(
                api, resource, _Configuration, lambda found: found, fields=f"metadata.name={installation.name}"
            )
            for resource in _KINDS
        }
        self._changed = asyncio.Event()
        for watch in self._found.values():
            watch.store.listen(self._remember_bundle)
        for watch in (policies, *self.watches):
            watch.store.listen(lambda *_: self._changed.set())
        #: The policies that the configurations were last written for.
        self._held: frozenset[ParsedPolicy] = frozenset()
        self._wanted: dict[Resource, Object] = {}
        #: What each was when it was last as it should be.
        self._settled_as: dict[Resource, Object] = {}
        self._bundle = ""
        self._last_restored = float("-inf")
        self._pause = Backoff(_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        self._log = structlog.get_logger()

    @property
    def watches(self) -> tuple[Watch[Any, Any], ...]:
        return self._namespaces, *self._found.values()

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for watch in self.watches:
                group.create_task(watch.run())
            for watch in self.watches:
                await watch.synced.wait()
            await self._keep()

    def holds(self, policy: ParsedPolicy) -> bool:
        """Whether the API server refuses the policy's unreviewed pods by now."""
        return policy in self._held

    async def _keep(self) -> None:
        backoff = Backoff()
        while True:
            # While policies are being listed anew, nobody knows them: what was written stays.
            await self._policies.synced.wait()
            self._changed.clear()
            restored = self.restored
            try:
                await self._reconcile()
            except _NotInstalledError as error:
                self._tell(str(error))
                await asyncio.sleep(_SECONDS_UNTIL_INSTALLED)
                continue
            except (ApiError, UnreachableError) as error:
                if not isinstance(error, ApiError) or not (error.conflict or error.not_found):
                    self._tell(f"they cannot be written: {error}")
                # Else somebody was faster: the watch is about to tell who, and what is to be done then.
                await backoff.wait()
                continue
            backoff.reset()
            await (self._pause.wait() if self.restored > restored else asyncio.sleep(_PAUSE_SECONDS))
            await self._changed.wait()

    async def _reconcile(self) -> None:
        policies = frozenset(policy.parsed for policy in self._policies.store.values())
        await self._work_out(policies)
        for resource in _KINDS:
            await self._settle(resource)
        self._tell("", policies)

    def _tell(self, problem: str, held: frozenset[ParsedPolicy] = frozenset()) -> None:
        if problem and problem != self.problem:
            self._log.warning("the webhook configurations are not as they should be", problem=problem)
        if (problem, held) != (self.problem, self._held):
            self.problem, self._held = problem, held
            self._settled()

    async def _work_out(self, policies: frozenset[ParsedPolicy]) -> None:
        webhooks = self._installation.webhooks
        known = {name: labels for (_, name), labels in self._namespaces.store.items()}
        rules = [rule for policy in policies for rule in policy.rules]
        refusing = await asyncio.to_thread(refusing_namespaces, rules, known, webhooks.excluded_namespaces)
        if refusing == self.refusing:
            return
        if refusing.too_many:
            self._log.warning("too many namespaces to tell apart: unreviewed pods are refused in all of them")
        self.refusing = refusing
        self._wanted = {
            MUTATING: webhook_configurations.mutating(webhooks, refusing),
            VALIDATING: webhook_configurations.validating(webhooks),
        }
        for document in self._wanted.values():
            document["metadata"]["name"] = self._installation.name

    async def _settle(self, resource: Resource) -> None:
        wanted, found = self._wanted[resource], self._found[resource].store.get("", self._installation.name)
        # By hand, if what should be there is what was there.
        by_hand = self._settled_as.get(resource) is wanted
        if found is None:
            await self._create(resource, wanted, await self._find_owner())
            self._tell_restored(resource, "it was missing")
        elif different := _differences(found, wanted):
            await self._change(resource, found, wanted)
            if by_hand:
                self._tell_restored(resource, f"{', '.join(different)} had been changed")
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

    def _tell_restored(self, resource: Resource, why: str) -> None:
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
    """What is to be written, in words. The bundles are somebody else's."""
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
