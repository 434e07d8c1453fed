"""Removes claim templates that no pod refers to.

`gpuslice.admission.cluster.claim_templates` says why no pod loses one.

A template that this process never saw a pod use was made for a pod that did not come, and is removed after the shortest
grace that is safe. One that pods have used is likely to be needed again, by the next run of a job, and is kept longer,
unless its namespace has many of these: admission makes no new ones where too many are unused
(`gpuslice.admission.cluster.template_quota`).

How long a template has been marked is measured by this process's own clock, from when it first saw that version: the
clocks of two controllers may differ, and a new leader rather waits a little longer. The time in the annotation is for
people.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar, Final

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gpuslice.admission.cluster.claim_templates import (
    ADMISSION,
    LABELS,
    MADE_BY,
    MINIMUM_GRACE,
    STALENESS,
    UNUSED_SINCE,
    is_marked,
)
from gpuslice.admission.cluster.template_quota import MOST_UNUSED
from gpuslice.controller.reconcilers.template_references import References, list_referenced
from gpuslice.kube.errors import ApiError
from gpuslice.kube.reconciler import Reconciler, Trigger
from gpuslice.kube.resources import RESOURCE_CLAIM_TEMPLATES, ObjectMetadata
from gpuslice.system import timestamps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.core import Metric

    from gpuslice.kube.api import Api
    from gpuslice.kube.informers import Informer, Informers
    from gpuslice.kube.store import Key

DEFAULT_GRACE: Final = 600.0
#: Unused templates of one namespace that are kept for longer than the shortest grace.
_MOST_KEPT: Final = MOST_UNUSED // 2
_INTERVAL_SECONDS: Final = 30.0
#: The one key there is: templates are looked at together, because how long one stays depends on how many there are.
_ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class _Template:
    uid: str
    version: str
    marked: bool


@dataclass(frozen=True, slots=True)
class Due:
    """A template whose time is over, as it was when that was found."""

    namespace: str
    name: str
    uid: str
    version: str


class ClaimTemplates(Reconciler[str]):
    """Looks at all templates now and then.

    No change of a template or a pod is a reason to look: a template that was just made waits for its pod.
    """

    name: ClassVar[str] = "claim-templates"

    def __init__(
        self,
        api: Api,
        informers: Informers,
        *,
        grace: float = DEFAULT_GRACE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if grace < MINIMUM_GRACE:
            raise ValueError(
                f"templates must be kept for at least {MINIMUM_GRACE:.0f} s after their last use, not {grace:.0f}: "
                "a pod may be on its way that needs one"
            )
        self.removed = 0
        self.references: Final = References(informers)
        self.templates: Final[Informer[_Template]] = informers.informer(
            RESOURCE_CLAIM_TEMPLATES, ObjectMetadata, _read, labels=LABELS
        )
        self._api = api
        self._grace = grace
        self._clock = clock
        #: The version in which a template was first seen marked, and when that was.
        self._marked: dict[Key, tuple[str, float]] = {}
        self._log = structlog.get_logger()

    def triggers(self) -> Iterator[Trigger[str]]:
        for informer in (self.references.pods, self.templates):
            yield Trigger(informer, lambda _key, _old, _new: ())

    def first_keys(self) -> Iterable[str]:
        return (_ALL,)

    async def reconcile(self, _key: str) -> float:
        await self.sweep()
        return _INTERVAL_SECONDS

    def metrics(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "gpuslice_templates", "Claim templates that admission made.", value=len(self.templates.store)
        )
        yield CounterMetricFamily(
            "gpuslice_templates_removed", "Claim templates removed because no pod used them.", value=self.removed
        )

    async def sweep(self) -> None:
        """One round: mark, unmark, remove."""
        if not (self.templates.heard_within(STALENESS) and self.references.pods.heard_within(STALENESS)):
            return  # what we know is too old to judge by
        await self.remove(await self.mark())

    async def mark(self) -> list[Due]:
        """Marks what is unused, unmarks what is used again, and finds those whose time is over."""
        due = []
        templates = self.templates.store.items()
        known = dict(templates)
        self._marked = {key: seen for key, seen in self._marked.items() if key in known}
        self.references.seen &= known.keys()
        unused = Counter(namespace for (namespace, _), template in templates if template.marked)
        for key, template in templates:
            used = self.references.has(key)
            if used == template.marked:
                self._marked.pop(key, None)
                await self._annotate(key, template, unused=not used)
            elif template.marked:
                version, since = self._marked.get(key, ("", 0.0))
                if version != template.version:
                    self._marked[key] = (template.version, self._clock())
                elif self._clock() - since >= self._grace_of(key, unused[key[0]]):
                    due.append(Due(*key, template.uid, template.version))
        return due

    def _grace_of(self, key: Key, unused_in_namespace: int) -> float:
        kept = key in self.references.seen and unused_in_namespace <= _MOST_KEPT
        return self._grace if kept else MINIMUM_GRACE

    async def remove(self, due: Sequence[Due]) -> None:
        """Deletes those that no pod needs, unless they were touched since."""
        for namespace, group in groupby(sorted(due, key=lambda each: each.namespace), lambda each: each.namespace):
            needed = await list_referenced(self._api, namespace)
            for template in group:
                if template.name not in needed:
                    await self.delete(template)

    async def delete(self, due: Due) -> bool:
        """False if it is not what it was: a pod needs it again, or it is gone already."""
        try:
            await self._api.delete(
                RESOURCE_CLAIM_TEMPLATES,
                due.name,
                namespace=due.namespace,
                preconditions={"uid": due.uid, "resourceVersion": due.version},
            )
        except ApiError as error:
            if not (error.conflict or error.not_found):
                raise
            return False
        self.removed += 1
        self._log.info("removed a claim template that no pod uses", namespace=due.namespace, name=due.name)
        return True

    async def _annotate(self, key: Key, template: _Template, *, unused: bool) -> None:
        since = timestamps.time() if unused else None
        changes = {"metadata": {"resourceVersion": template.version, "annotations": {UNUSED_SINCE: since}}}
        namespace, name = key
        try:
            await self._api.merge(RESOURCE_CLAIM_TEMPLATES, name, changes, namespace=namespace)
        except ApiError as error:
            # It is gone, or it changed meanwhile: the next round sees how.
            if not (error.conflict or error.not_found):
                raise


def _read(found: ObjectMetadata) -> _Template | None:
    """Nothing of a template that admission did not make: it is not ours to remove."""
    metadata = found.metadata
    if (metadata.annotations or {}).get(MADE_BY) != ADMISSION:
        return None
    return _Template(metadata.uid, metadata.resource_version, is_marked(found))
