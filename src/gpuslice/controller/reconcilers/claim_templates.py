"""Makes the claim templates that stored pods need, and removes those that no pod needs any more.

Admission names a pod's templates in its spec, and puts on it what they are made of (`admission.claims.claim_recipes`).
What it says counts for nothing unless the template that comes out of it has the very name that is in the spec, which
admission has seen and which cannot change since. In excluded namespaces admission sees no pod, so nothing is made.

A template comes after its pod, and Kubernetes makes the pod's claims when it comes. So nothing is lost when one is
removed while a pod is on its way: the pod's arrival makes it again. Templates stay for a while after their last pod
only to spare a Deployment's churn. A namespace has at most MOST of them, and at most MOST_UNUSED that no pod needs: a
tenant who creates pods without end gets no more.

Templates that others made are never removed. One with a name of ours and another content is reported to the pods
that need the name.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gpuslice.admission.claims import claim_templates
from gpuslice.admission.pod_annotations import RECIPES, SLICED
from gpuslice.controller.reconcilers import template_contents
from gpuslice.controller.reconcilers.pods_with_claims import NeededTemplates, PodWithClaims, needed_templates
from gpuslice.controller.reconcilers.template_contents import StoredTemplate
from gpuslice.kube.decoding import decoder
from gpuslice.kube.errors import ApiError, UnreachableError
from gpuslice.kube.events import Recorder, Regarding
from gpuslice.kube.reconciler import Reconciler, Trigger
from gpuslice.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES
from gpuslice.kube.store import by_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from prometheus_client.core import Metric

    from gpuslice.admission.claims.claim_templates import Template
    from gpuslice.kube.client.api import Api
    from gpuslice.kube.informers import Informer, Informers
    from gpuslice.kube.store import Key

#: Selects what gpuslice made, in any of its processes.
LABELS: Final = "app.kubernetes.io/managed-by=gpuslice"
#: On those that may be removed again. Templates that people apply, as `gpuslice admit` prints them, lack it.
MADE_BY: Final = "gpuslice.io/made-by"
DEFAULT_GRACE: Final = 600.0
#: Of one namespace.
MOST: Final = 2000
MOST_UNUSED: Final = 50
#: After what no try of ours mends. Seconds.
_LATER: Final = 60.0
#: Pods that hear of one failure, and events about pods of one namespace in a minute: there may be ten thousand.
_MOST_TOLD: Final = 10
_MOST_EVENTS: Final = 30
_EVENTS_SECONDS: Final = 60.0
_MOST_NAMESPACES: Final = 4096
_TERMINATING: Final = "because it is being terminated"
_NOT_AUTHORIZED: Final = "cannot create resource"


class Failure(StrEnum):
    """Why a template was not made; a label."""

    EXCLUDED = "excluded"
    RECIPE = "recipe"
    TOO_MANY = "too_many"
    CONTENT = "content"
    API = "api"


@dataclass(frozen=True, slots=True)
class _Stored:
    uid: str
    digest: bytes
    removable: bool


class ClaimTemplates(Reconciler["Key"]):
    """Keys are namespaces and names of templates, whether they are there or needed."""

    name: ClassVar[str] = "claim-templates"
    workers: ClassVar[int] = 8

    def __init__(
        self,
        api: Api,
        informers: Informers,
        recorder: Recorder,
        *,
        excluded: Collection[str] = (),
        grace: float = DEFAULT_GRACE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.created = 0
        self.removed = 0
        self.failures: Final = Counter(dict.fromkeys(Failure, 0))
        self.pods: Final[Informer[NeededTemplates]] = informers.informer(
            PODS, PodWithClaims, needed_templates, labels=f"{SLICED}=true"
        )
        self.templates: Final[Informer[_Stored]] = informers.informer(
            RESOURCE_CLAIM_TEMPLATES, StoredTemplate, _read, labels=LABELS
        )
        self._needed = self.pods.store.index(lambda key, pod: [(key[0], name) for name, _ in pod.recipes])
        self._in_namespace = self.templates.store.index(by_namespace)
        self._api = api
        self._recorder = recorder
        self._excluded = frozenset(excluded)
        self._grace = grace
        self._clock = clock
        #: By namespace: when those were made, or began to be, of which the informer has not told yet.
        self._made: dict[str, dict[str, float]] = {}
        #: By namespace: since when no pod needs them.
        self._unused: dict[str, dict[str, float]] = {}
        #: By namespace: when the minute began, and how many events there were in it.
        self._told: dict[str, tuple[float, int]] = {}
        self._not_authorized = ""
        self._log = structlog.get_logger()

    def triggers(self) -> Iterator[Trigger[Key]]:
        yield Trigger(self.pods, _keys_of_pod)
        yield Trigger(self.templates, lambda key, _old, _new: (key,))

    async def reconcile(self, key: Key) -> float | None:
        if self.templates.store.get(*key) is not None:
            _forget(self._made, key)
        if key not in self._needed:
            return await self._remove_if_due(key)
        _forget(self._unused, key)
        return await self._provide(key)

    def unready(self) -> str:
        return self._not_authorized

    def metrics(self) -> Iterator[Metric]:
        store = self.templates.store
        missing = sum(1 for key in self._needed if store.get(*key) is None)
        yield GaugeMetricFamily("gpuslice_templates", "Claim templates of gpuslice that are there.", value=len(store))
        yield GaugeMetricFamily(
            "gpuslice_templates_missing", "Claim templates that pods wait for: they cannot start.", value=missing
        )
        yield CounterMetricFamily("gpuslice_templates_created", "Claim templates made.", value=self.created)
        yield CounterMetricFamily(
            "gpuslice_templates_removed", "Claim templates removed because no pod needed them.", value=self.removed
        )
        failures = CounterMetricFamily(
            "gpuslice_template_failures",
            "Claim templates that were not made, by reason: excluded (the namespace is), recipe (the pod has none that "
            "fits), too_many (in the namespace), content (another one has the name), api (the API server refused it).",
            labels=["reason"],
        )
        for reason, count in self.failures.items():
            failures.add_metric([reason], count)
        yield failures

    async def _provide(self, key: Key) -> float | None:
        """Sees that the template is there, with the content that its name says."""
        namespace, name = key
        template, stored = self._template(key), self.templates.store.get(*key)
        if stored is not None:
            if template is not None and stored.digest != template_contents.digest(template.spec):
                return self._fail(key, Failure.CONTENT, _other_content(key))
            return None
        if namespace in self._excluded:
            return self._fail(
                key, Failure.EXCLUDED, f"namespace {namespace} is excluded from gpuslice; use another namespace"
            )
        if template is None:
            return self._fail(
                key,
                Failure.RECIPE,
                f"claim template {name[:64]} is not there, and the annotation {RECIPES} does not say what it gives; "
                "create the pod anew with a request in a dialect",
            )
        made = [each for each in self._made.get(namespace, ()) if self.templates.store.get(namespace, each) is None]
        if self._in_namespace.count(namespace) + len(made) >= MOST:
            return self._fail(
                key,
                Failure.TOO_MANY,
                f"namespace {namespace} has {MOST} claim templates, and no more are made; remove pods that are not "
                "needed, or ask for slices of fewer different sizes",
            )
        return await self._make(key, template)

    def _template(self, key: Key) -> Template | None:
        """As a pod's recipe says. All that fit the name are the same."""
        name = key[1]
        found = (pod.recipe(name) for _, pod in self._needed.iterate(key))
        recipe = next(filter(None, found), None)
        return claim_templates.templates_in(f"[{recipe}]").get(name) if recipe else None

    async def _make(self, key: Key, template: Template) -> float | None:
        namespace, name = key
        document = template.document(namespace)
        document["metadata"]["annotations"] = {MADE_BY: "controller"}
        self._made.setdefault(namespace, {})[name] = self._clock()
        try:
            stored = await self._api.create(RESOURCE_CLAIM_TEMPLATES, document, namespace=namespace)
        except BaseException as error:
            _forget(self._made, key)
            if isinstance(error, ApiError) and error.conflict:
                return await self._compare(key, template)
            if isinstance(error, ApiError) and _TERMINATING in str(error):
                return _LATER  # its pods are about to go, and no event can be written
            if isinstance(error, ApiError | UnreachableError):
                self._fail(key, Failure.API, f"claim template {name} cannot be made: {error}")
                if _NOT_AUTHORIZED in str(error):
                    self._not_authorized = str(error)
            raise
        self.created += 1
        self._not_authorized = ""
        if _decode(stored).digest != template_contents.digest(template.spec):
            # It drops fields of features that it does not have; the claim would be of all of a GPU's memory.
            return self._fail(
                key,
                Failure.CONTENT,
                f"claim template {name}: the API server has stored something else than gpuslice gave it; it needs the "
                "feature DRAConsumableCapacity, which Kubernetes 1.36 has",
            )
        return None

    async def _compare(self, key: Key, template: Template) -> float | None:
        """It is there, and not known here: it has not our label, or the informer is a moment late."""
        namespace, name = key
        found = await self._api.get(RESOURCE_CLAIM_TEMPLATES, name, StoredTemplate, namespace=namespace)
        if found.digest != template_contents.digest(template.spec):
            return self._fail(key, Failure.CONTENT, _other_content(key))
        return None

    async def _remove_if_due(self, key: Key) -> float | None:
        namespace, name = key
        stored = self.templates.store.get(*key)
        if stored is None or not stored.removable:
            _forget(self._unused, key)
            return None
        unused = self._unused.setdefault(namespace, {})
        left = unused.setdefault(name, self._clock()) + self._grace - self._clock()
        if left > 0 and len(unused) <= MOST_UNUSED:
            return left
        try:
            await self._api.delete(
                RESOURCE_CLAIM_TEMPLATES, name, namespace=namespace, preconditions={"uid": stored.uid}
            )
        except ApiError as error:
            if not (error.conflict or error.not_found):
                raise
        else:
            self.removed += 1
            self._log.info("removed a claim template that no pod needs", namespace=namespace, name=name)
        _forget(self._unused, key)
        return None

    def _fail(self, key: Key, reason: Failure, note: str) -> float:
        """Tells pods that wait for the template. Returns when to look again."""
        self.failures[reason] += 1
        for (namespace, name), pod in islice(self._needed.iterate(key), _MOST_TOLD):
            if not self._may_tell(namespace):
                break
            regarding = Regarding(api_version="v1", kind="Pod", name=name, namespace=namespace, uid=pod.uid)
            self._recorder.record(regarding, "Warning", "ClaimTemplateNotMade", "MakeClaimTemplate", note)
        return _LATER

    def _may_tell(self, namespace: str) -> bool:
        now = self._clock()
        began, count = self._told.pop(namespace, (now, 0))
        if now - began >= _EVENTS_SECONDS:
            began, count = now, 0
        self._told[namespace] = began, count + 1
        while len(self._told) > _MOST_NAMESPACES:
            del self._told[next(iter(self._told))]
        return count < _MOST_EVENTS


def _forget(times: dict[str, dict[str, float]], key: Key) -> None:
    namespace, name = key
    names = times.get(namespace)
    if names is not None:
        names.pop(name, None)
        if not names:
            del times[namespace]


def _keys_of_pod(key: Key, old: NeededTemplates | None, new: NeededTemplates | None) -> Iterable[Key]:
    names = dict.fromkeys(name for pod in (old, new) if pod is not None for name, _ in pod.recipes)
    return [(key[0], name) for name in names]


def _other_content(key: Key) -> str:
    namespace, name = key
    return (
        f"claim template {namespace}/{name} is there with another content than its name says; delete it, and gpuslice "
        "makes its own, then create the pod anew"
    )


_decode: Final = decoder(StoredTemplate)


def _read(template: StoredTemplate) -> _Stored:
    metadata = template.metadata
    return _Stored(metadata.uid, template.digest, MADE_BY in (metadata.annotations or {}))
