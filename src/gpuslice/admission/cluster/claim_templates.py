"""Claim templates: made when a pod needs one, and never taken away under a pod that is about to use it.

The controller removes templates that no pod refers to (gpuslice.controller.reconcilers.unused_claim_templates), while
admission, in other processes, hands out their names. A pod is admitted before it exists, so looking for pods cannot be
enough. What keeps the two apart:

1. A template that no pod refers to is first *marked* (an annotation), and deleted only when it has been so marked
   for a grace, with a fresh list of the namespace's pods in between, and only if it still has the very version that the
   mark gave it.
2. Admission takes a marked template for missing: it removes the mark before it answers. That is a new version, so a
   delete that was decided before fails, and starts from the beginning. If the delete was faster, the mark cannot be
   removed (404), and the template is made anew.
3. Admission may believe that a template is there and not marked, when it was marked since. It does so only while its
   informer's word is at most STALENESS old; otherwise it asks the API server. So the pod is admitted less than
   STALENESS after the mark was made, and stored at most a request's time (one minute) later. The grace is longer than
   both together (MINIMUM_GRACE), so the list of pods before the delete has it.

Only templates that admission made are ever removed: those that are applied by hand lack MADE_BY.

Why a template is made before its pod is stored, and not when the pod is there: after the rewrite nothing in a pod says
what its template holds, and a pod without its template would wait for ever. Nor may a later step believe what the
pod says, because its author writes that. The price is templates of pods that are refused after the rewrite. They
are few (`template_quota`), in the namespace of who asked, and removed when no pod has come (the controller does not
wait as long for these). A dry run makes none, and nor does a review about a namespace that is excluded.

A template with the right name and another content (`template_contents`) is not ours. Pods that need the name
are refused until it is gone.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from gpuslice.admission.cluster import template_contents
from gpuslice.admission.cluster.template_contents import StoredTemplate
from gpuslice.admission.cluster.template_quota import QuotaError, TemplateQuota
from gpuslice.kube.decoding import decoder
from gpuslice.kube.errors import ApiError, UnreachableError
from gpuslice.kube.resources import RESOURCE_CLAIM_TEMPLATES, HasMetadata
from gpuslice.kube.watching import SILENCE_SECONDS
from gpuslice.model.errors import GpusliceError
from gpuslice.system.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from gpuslice.admission.backends.dra import Template
    from gpuslice.kube.api import Api
    from gpuslice.kube.informers import Informer, Informers
    from gpuslice.kube.store import Key

#: Selects what gpuslice made, in any of its processes.
LABELS: Final = "app.kubernetes.io/managed-by=gpuslice"
UNUSED_SINCE: Final = "gpuslice.io/unused-since"
MADE_BY: Final = "gpuslice.io/made-by"
ADMISSION: Final = "admission"

#: How old the knowledge may be on which a template counts as there.
STALENESS: Final = SILENCE_SECONDS + 30.0
_REQUEST_SECONDS: Final = 60.0
MINIMUM_GRACE: Final = STALENESS + _REQUEST_SECONDS

#: What was just made is there before the informer says so.
_RECENT_SECONDS: Final = 30.0
_MOST_RECENT: Final = 4096
#: Above it, templates are asked of the API server again and again rather than remembered.
_MOST_KNOWN: Final = 50_000
_TRIES: Final = 4
#: The API server waits two or three seconds for a webhook.
_PATIENCE_SECONDS: Final = 2.0
#: Templates that are made at a time. The others wait: pods of many kinds must not take all that the API server has.
_MOST_AT_A_TIME: Final = 16
#: After a failure that template is not asked for again for so long, longer from one failure to the next. Seconds.
SHORTEST_REST: Final = 0.2
LONGEST_REST: Final = 5.0
_MOST_FAILURES: Final = 4096


class TemplateError(GpusliceError):
    """Raised when a pod's template cannot be made, so that the pod could never start."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the informer keeps of a template."""

    #: As unused.
    marked: bool
    #: Of its content.
    digest: bytes


@dataclass(slots=True)
class _Failure:
    """Why a template could not be made, and until when that is the answer."""

    reason: str = ""
    until: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(SHORTEST_REST, LONGEST_REST))


class Templates:
    """The templates of the cluster as admission sees them. The informers must run for `ensure` to be cheap.

    In an excluded namespace none is made, whatever a review says: the API server never asks about its pods.
    """

    def __init__(
        self,
        api: Api,
        informers: Informers,
        clock: Callable[[], float] = time.monotonic,
        *,
        excluded: Collection[str] = (),
    ) -> None:
        self.created = 0
        self.informer: Final[Informer[Known]] = informers.informer(
            RESOURCE_CLAIM_TEMPLATES, StoredTemplate, read_template, labels=LABELS, limit=_MOST_KNOWN
        )
        self.informer.store.listen(self._template_changed)
        self._api = api
        self._clock = clock
        self._excluded = frozenset(excluded)
        self._quota = TemplateQuota(clock)
        self._recent: dict[Key, float] = {}
        self._under_way: dict[Key, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(_MOST_AT_A_TIME)
        self._failures: dict[Key, _Failure] = {}

    async def ensure(self, namespace: str, templates: Sequence[Template]) -> None:
        """Returns when all of them are there and will stay. Raises TemplateError if one cannot be."""
        missing = [template for template in templates if not self._there(namespace, template)]
        if missing:
            if namespace in self._excluded:
                raise TemplateError(f"namespace {namespace} is excluded from gpuslice: no claim template is made in it")
            await asyncio.gather(*(self._once(namespace, template) for template in missing))

    def _there(self, namespace: str, template: Template) -> bool:
        made = self._recent.get((namespace, template.name))
        if made is not None and self._clock() - made < _RECENT_SECONDS:
            return True
        known = self.informer.store.get(namespace, template.name)
        if known is None or known.marked or known.digest != template_contents.digest(template.spec):
            return False
        return self.informer.heard_within(STALENESS)

    async def _once(self, namespace: str, template: Template) -> None:
        """Reviews that want the same at the same time wait for one call, which goes on if one of them gives up. One
        that wants it a moment after that failed hears the same again.
        """
        key = (namespace, template.name)
        task = self._under_way.get(key)
        if task is None:
            failure = self._failures.get(key)
            if failure is not None and self._clock() < failure.until:
                raise TemplateError(failure.reason)
            task = self._under_way[key] = asyncio.create_task(self._in_time(namespace, template))
            task.add_done_callback(lambda done: self._over(key, done))
        await asyncio.shield(task)

    def _over(self, key: Key, task: asyncio.Task[None]) -> None:
        self._under_way.pop(key, None)
        error = None if task.cancelled() else task.exception()  # retrieved, also when no review waits any more
        failure = self._failures.pop(key, None) or _Failure()
        if isinstance(error, TemplateError):
            failure.reason, failure.until = str(error), self._clock() + failure.backoff.seconds()
            self._failures[key] = failure
            while len(self._failures) > _MOST_FAILURES:
                del self._failures[next(iter(self._failures))]

    async def _in_time(self, namespace: str, template: Template) -> None:
        where = f"claim template {namespace}/{template.name}"
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS), self._turns:
                await self._make(namespace, template)
        except (ApiError, UnreachableError, QuotaError) as error:
            raise TemplateError(f"{where} cannot be made: {error}") from None
        except TimeoutError:
            raise TemplateError(f"{where} cannot be made: the API server takes too long; try again") from None
        self._remember((namespace, template.name))

    async def _make(self, namespace: str, template: Template) -> None:
        for _ in range(_TRIES):
            # What is there is kept, however many the namespace has.
            if self.informer.store.get(namespace, template.name) is not None and await self._keep(namespace, template):
                return
            try:
                created = await self._create(namespace, template)
            except QuotaError:  # it may be there, and the informer not have told yet
                if await self._keep(namespace, template):
                    return
                raise
            if created or await self._keep(namespace, template):
                return
        raise TemplateError(f"claim template {namespace}/{template.name} cannot be made: it is deleted again and again")

    async def _create(self, namespace: str, template: Template) -> bool:
        """False if it is there."""
        document = template.document(namespace)
        document["metadata"]["annotations"] = {MADE_BY: ADMISSION}
        key = (namespace, template.name)
        self._quota.reserve(key)
        try:
            stored = await self._api.create(RESOURCE_CLAIM_TEMPLATES, document, namespace=namespace)
        except BaseException as error:
            self._quota.release(key)
            if not (isinstance(error, ApiError) and error.conflict):
                raise
            return False
        self.created += 1
        if _decode(stored).digest != template_contents.digest(template.spec):
            # It drops fields of features that it does not have; the claim would be of all of a GPU's memory.
            raise TemplateError(
                f"claim template {namespace}/{template.name}: the API server has stored something else than gpuslice "
                "gave it; it needs the feature DRAConsumableCapacity, which Kubernetes 1.36 has"
            )
        return True

    async def _keep(self, namespace: str, template: Template) -> bool:
        """Sees that a template that is there is what it should be, and not marked. False if it is gone."""
        try:
            found = await self._api.get(RESOURCE_CLAIM_TEMPLATES, template.name, StoredTemplate, namespace=namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            return False
        if found.digest != template_contents.digest(template.spec):
            raise TemplateError(
                f"claim template {namespace}/{template.name} is there with another content than gpuslice gives it; "
                "delete it, and gpuslice makes its own"
            )
        return await self._unmark(namespace, template.name) if is_marked(found) else True

    async def _unmark(self, namespace: str, name: str) -> bool:
        """False if it is gone."""
        changes = {"metadata": {"annotations": {UNUSED_SINCE: None}}}
        try:
            await self._api.merge(RESOURCE_CLAIM_TEMPLATES, name, changes, namespace=namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            return False
        return True

    def _remember(self, key: Key) -> None:
        self._recent.pop(key, None)
        self._recent[key] = self._clock()
        while len(self._recent) > _MOST_RECENT:
            del self._recent[next(iter(self._recent))]

    def _template_changed(self, key: Key, old: Known | None, new: Known | None) -> None:
        """The informer knows better from now on."""
        self._recent.pop(key, None)
        self._quota.heard(
            key,
            was=old.marked if old else None,
            marked=new.marked if new else None,
            fresh=self.informer.synced.is_set(),
        )


_decode: Final = decoder(StoredTemplate)


def is_marked(template: HasMetadata) -> bool:
    return UNUSED_SINCE in (template.metadata.annotations or {})


def read_template(template: StoredTemplate) -> Known:
    return _known(is_marked(template), template.digest)


@lru_cache(maxsize=4096)
def _known(marked: bool, digest: bytes) -> Known:  # noqa: FBT001 - fields
    """One object for the templates of a thousand namespaces that are alike."""
    return Known(marked, digest)
