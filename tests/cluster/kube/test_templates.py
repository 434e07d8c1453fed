"""Claim templates are made once, kept for as long as a pod may need them, and removed when none does.

The races between admission and the sweep are driven step by step through the real API, in every order that matters.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.admission.backends import dra
from gpuslice.admission.cluster import claim_templates as admission_templates
from gpuslice.admission.cluster import template_contents
from gpuslice.admission.cluster.claim_templates import MINIMUM_GRACE, UNUSED_SINCE, Known, TemplateError, Templates
from gpuslice.controller.reconcilers import unused_claim_templates
from gpuslice.controller.reconcilers.unused_claim_templates import ClaimTemplates, Due
from gpuslice.kube.errors import ApiError
from gpuslice.kube.informers import Informers
from gpuslice.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES
from gpuslice.model.slices import Slice
from tests.cluster.kube.support import Told, reach, running
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gpuslice.admission.backends.dra import Template
    from gpuslice.kube.api import Api
    from gpuslice.kube.store import Store
    from gpuslice_cluster.clusters import Cluster

_GIB = 1024**3


def _template(gibibytes: int = 4) -> Template:
    return dra.template_for(Slice(memory=gibibytes * _GIB), None)


async def _stored(api: Api, namespace: str, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(await api.call("GET", RESOURCE_CLAIM_TEMPLATES.path(namespace, name)))
    except ApiError as error:
        if not error.not_found:
            raise
        return None
    return found


async def _is_marked(api: Api, namespace: str, name: str) -> bool:
    found = await _stored(api, namespace, name)
    assert found is not None
    return UNUSED_SINCE in found["metadata"].get("annotations", {})


async def _start_pod(api: Api, namespace: str, template: str, name: str = "user") -> None:
    claims = [{"name": "gpuslice-0", "resourceClaimTemplateName": template}]
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpuslice-0"}]}}
    await api.create(
        PODS,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [container], "resourceClaims": claims, "terminationGracePeriodSeconds": 0},
        },
        namespace=namespace,
    )


class _Calls:
    """Counts the calls that change something. They reach the API server."""

    def __init__(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        call = api.call

        async def counted(method: str, path: str, **more: Any) -> bytes:  # noqa: ANN401 - passed on
            if method != "GET":
                self.made.append(method)
            return await call(method, path, **more)

        monkeypatch.setattr(api, "call", counted)


class _Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class _Sweep:
    """A sweeper of one namespace, whose clock only the test moves."""

    def __init__(self, api: Api, namespace: str, grace: float = MINIMUM_GRACE) -> None:
        self.clock = _Clock()
        self.informers = Informers(api)
        self.sweeper = ClaimTemplates(api, self.informers, grace=grace, clock=self.clock)
        self.templates = Told(self.sweeper.templates.store)
        self.pods = Told(self.sweeper.references.pods.store)
        self._namespace = namespace
        # Other tests share the cluster, and their templates are not ours to sweep.
        only, others = self.sweeper.templates._project, namespace
        self.sweeper.templates._project = lambda found: only(found) if found.metadata.namespace == others else None

    async def sees(self, name: str, *, marked: bool) -> None:
        await self.templates.until(lambda store: _marked_in(store, self._namespace, name) is marked)

    async def until_due(self, name: str) -> list[Due]:
        """Marks the template and lets its time run out."""
        await self.sees(name, marked=False)
        assert await self.sweeper.mark() == []
        await self.sees(name, marked=True)
        assert await self.sweeper.mark() == []
        self.clock.seconds += MINIMUM_GRACE
        due = await self.sweeper.mark()
        assert [each.name for each in due] == [name]
        return due


def _known(template: Template, *, marked: bool) -> Known:
    return Known(marked, template_contents.digest(template.spec))


def _marked_in(store: Store[Any], namespace: str, name: str) -> bool | None:
    found = store.get(namespace, name)
    return None if found is None else bool(found.marked)


@asynccontextmanager
async def _sweeping(api: Api, namespace: str, grace: float = MINIMUM_GRACE) -> AsyncIterator[_Sweep]:
    sweep = _Sweep(api, namespace, grace)
    async with running(sweep.informers.run()):
        await sweep.informers.wait_for_sync()
        yield sweep


@asynccontextmanager
async def _watching(api: Api) -> AsyncIterator[Templates]:
    informers = Informers(api)
    templates = Templates(api, informers)
    async with running(informers.run()):
        await informers.wait_for_sync()
        yield templates


# Making them.


async def test_fifty_reviews_at_once_make_a_template_once(
    api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = _template()
    async with _watching(api) as templates:
        calls = _Calls(api, monkeypatch)
        await asyncio.gather(*(templates.ensure(namespace, [template]) for _ in range(50)))
        await templates.ensure(namespace, [template])

    stored = await _stored(api, namespace, template.name)
    assert stored is not None
    assert stored["spec"]["spec"] == json.loads(template.spec)
    assert calls.made == ["POST"]
    assert templates.created == 1


async def test_two_replicas_that_make_the_same_template_are_both_content(api: Api, namespace: str) -> None:
    template = _template()
    one, other = Templates(api, Informers(api)), Templates(api, Informers(api))

    await asyncio.gather(one.ensure(namespace, [template]), other.ensure(namespace, [template]))

    assert one.created + other.created == 1


async def test_a_template_that_the_watch_knows_costs_no_call(
    api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = _template()
    await Templates(api, Informers(api)).ensure(namespace, [template])
    async with _watching(api) as templates:
        calls = _Calls(api, monkeypatch)
        await templates.ensure(namespace, [template])

    assert calls.made == []


async def test_a_template_that_a_user_deleted_is_made_again(api: Api, namespace: str) -> None:
    template = _template()
    async with _watching(api) as templates:
        told = Told(templates.informer.store)
        await templates.ensure(namespace, [template])
        await told.until(lambda store: _marked_in(store, namespace, template.name) is False)
        await api.delete(RESOURCE_CLAIM_TEMPLATES, template.name, namespace=namespace)
        await told.until(lambda store: store.get(namespace, template.name) is None)
        await templates.ensure(namespace, [template])

    assert await _stored(api, namespace, template.name) is not None
    assert templates.created == 2


async def test_several_templates_of_a_pod_are_all_made(api: Api, namespace: str) -> None:
    wanted = [_template(size) for size in (1, 2, 3)]

    await Templates(api, Informers(api)).ensure(namespace, wanted)

    for template in wanted:
        assert await _stored(api, namespace, template.name) is not None


async def test_a_template_that_cannot_be_made_is_an_error_that_says_why(api: Api) -> None:
    with pytest.raises(TemplateError, match=r'claim template nowhere/gpuslice-.* "nowhere" not found'):
        await Templates(api, Informers(api)).ensure("nowhere", [_template()])


async def test_a_quota_on_templates_is_told_as_the_api_server_says_it(
    policies: Cluster, api: Api, namespace: str
) -> None:
    resource = "count/resourceclaimtemplates.resource.k8s.io"
    await asyncio.to_thread(
        policies.kubectl, "create", "quota", "few", f"--hard={resource}=0", f"--namespace={namespace}"
    )
    await asyncio.to_thread(
        policies.kubectl,
        "wait",
        "--for=jsonpath={.status.hard}",
        "quota/few",
        f"--namespace={namespace}",
        "--timeout=60s",
    )

    with pytest.raises(TemplateError, match="exceeded quota: few"):
        await Templates(api, Informers(api)).ensure(namespace, [_template()])


async def test_a_review_that_is_given_up_does_not_end_the_call_for_the_others(api: Api, namespace: str) -> None:
    template = _template()
    templates = Templates(api, Informers(api))
    given_up = asyncio.create_task(templates.ensure(namespace, [template]))
    patient = asyncio.create_task(templates.ensure(namespace, [template]))
    await asyncio.sleep(0)
    given_up.cancel()
    await patient

    assert await _stored(api, namespace, template.name) is not None


# Removing them.


async def test_a_template_that_no_pod_uses_is_marked_and_later_removed(api: Api, namespace: str) -> None:
    template = _template()
    await Templates(api, Informers(api)).ensure(namespace, [template])
    async with _sweeping(api, namespace) as sweep:
        await sweep.until_due(template.name)
        await sweep.sweeper.sweep()

    assert await _stored(api, namespace, template.name) is None
    assert sweep.sweeper.removed == 1


async def test_a_template_whose_pod_never_came_is_removed_sooner_than_one_that_was_used(
    api: Api, namespace: str
) -> None:
    never, once = _template(1), _template(2)
    await Templates(api, Informers(api)).ensure(namespace, [never, once])
    await _start_pod(api, namespace, once.name)
    async with _sweeping(api, namespace, 3 * MINIMUM_GRACE) as sweep:
        await sweep.pods.until(lambda store: store.get(namespace, "user"))
        await api.delete(PODS, "user", namespace=namespace)
        await sweep.pods.until(lambda store: store.get(namespace, "user") is None)
        await sweep.sees(never.name, marked=False)
        await sweep.sees(once.name, marked=False)
        await sweep.sweeper.mark()
        for name in (never.name, once.name):
            await sweep.sees(name, marked=True)
        assert await sweep.sweeper.mark() == []
        sweep.clock.seconds += MINIMUM_GRACE
        assert [due.name for due in await sweep.sweeper.mark()] == [never.name]
        await sweep.sweeper.sweep()
        assert await _stored(api, namespace, never.name) is None
        sweep.clock.seconds += 2 * MINIMUM_GRACE
        assert [due.name for due in await sweep.sweeper.mark() if due.name == once.name]


async def test_used_templates_are_kept_no_longer_than_others_where_there_are_many(
    api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unused_claim_templates, "_MOST_KEPT", 2)
    wanted = [_template(size) for size in (1, 2, 3)]
    await Templates(api, Informers(api)).ensure(namespace, wanted)
    async with _sweeping(api, namespace, 3 * MINIMUM_GRACE) as sweep:
        for template in wanted:
            await sweep.sees(template.name, marked=False)
            sweep.sweeper.references.seen.add((namespace, template.name))
        await sweep.sweeper.mark()
        for template in wanted:
            await sweep.sees(template.name, marked=True)
        await sweep.sweeper.mark()
        sweep.clock.seconds += MINIMUM_GRACE
        due = await sweep.sweeper.mark()
        assert {each.name for each in due} == {template.name for template in wanted}
        await sweep.sweeper.remove(due[:1])
        await sweep.templates.until(lambda store: store.get(namespace, due[0].name) is None)
        assert await sweep.sweeper.mark() == []


async def test_a_template_that_the_api_server_stores_otherwise_is_an_error(
    api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that lacks a feature: it drops the fields that it does not know."""
    call = api.call

    async def without_capacity(method: str, path: str, **more: Any) -> bytes:  # noqa: ANN401 - passed on
        if method == "POST":
            del more["body"]["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]
        return await call(method, path, **more)

    monkeypatch.setattr(api, "call", without_capacity)
    with pytest.raises(TemplateError, match="it needs the feature DRAConsumableCapacity"):
        await Templates(api, Informers(api)).ensure(namespace, [_template()])


async def test_a_mark_counts_from_when_this_controller_first_saw_it(api: Api, namespace: str) -> None:
    template = _template()
    await Templates(api, Informers(api)).ensure(namespace, [template])
    ages_ago = {"metadata": {"annotations": {UNUSED_SINCE: "2001-01-01T00:00:00Z"}}}
    await api.merge(RESOURCE_CLAIM_TEMPLATES, template.name, ages_ago, namespace=namespace)
    async with _sweeping(api, namespace) as sweep:
        await sweep.sees(template.name, marked=True)
        sweep.clock.seconds = 10 * MINIMUM_GRACE

        assert await sweep.sweeper.mark() == []
        assert await sweep.sweeper.mark() == []


async def test_a_template_that_a_pod_uses_is_not_marked_and_one_that_is_used_again_is_unmarked(
    api: Api, namespace: str
) -> None:
    used, again = _template(1), _template(2)
    await Templates(api, Informers(api)).ensure(namespace, [used, again])
    await _start_pod(api, namespace, used.name)
    async with _sweeping(api, namespace) as sweep:
        await sweep.pods.until(lambda store: store.get(namespace, "user"))
        await sweep.sees(again.name, marked=False)
        await sweep.sweeper.mark()
        await sweep.sees(again.name, marked=True)
        assert not await _is_marked(api, namespace, used.name)

        await _start_pod(api, namespace, again.name, "late")
        await sweep.pods.until(lambda store: store.get(namespace, "late"))
        await sweep.sweeper.mark()
        await sweep.sees(again.name, marked=False)

        for name in ("user", "late"):
            await api.delete(PODS, name, namespace=namespace)
        await sweep.pods.until(lambda store: not any(key[0] == namespace for key in store))
        await sweep.sweeper.mark()
        await sweep.sees(used.name, marked=True)
        await sweep.sees(again.name, marked=True)


async def test_a_template_that_was_applied_by_hand_is_left_alone(api: Api, namespace: str) -> None:
    template = _template()
    await api.create(RESOURCE_CLAIM_TEMPLATES, template.document(namespace), namespace=namespace)
    ours = _template(5)
    await Templates(api, Informers(api)).ensure(namespace, [ours])
    async with _sweeping(api, namespace) as sweep:
        await sweep.until_due(ours.name)
        await sweep.sweeper.sweep()

    assert not await _is_marked(api, namespace, template.name)
    assert await _stored(api, namespace, ours.name) is None


# Both at once.


async def test_admission_between_the_decision_and_the_delete_keeps_the_template(api: Api, namespace: str) -> None:
    template = _template()
    async with _watching(api) as templates, _sweeping(api, namespace) as sweep:
        told = Told(templates.informer.store)
        await templates.ensure(namespace, [template])
        (due,) = await sweep.until_due(template.name)
        await told.until(lambda store: _marked_in(store, namespace, template.name) is True)

        await templates.ensure(namespace, [template])  # a pod is on its way
        assert not await sweep.sweeper.delete(due)

    assert not await _is_marked(api, namespace, template.name)
    assert sweep.sweeper.removed == 0


async def test_admission_after_the_delete_makes_the_template_again(api: Api, namespace: str) -> None:
    template = _template()
    async with _sweeping(api, namespace) as sweep:
        templates = Templates(api, Informers(api))
        await templates.ensure(namespace, [template])
        (due,) = await sweep.until_due(template.name)
        # What admission's informer last told: it is marked.
        templates.informer.store.put((namespace, template.name), _known(template, marked=True))

        assert await sweep.sweeper.delete(due)
        await templates.ensure(namespace, [template])

    assert await _stored(api, namespace, template.name) is not None
    assert templates.created == 2


async def test_admission_that_has_not_heard_of_the_template_removes_its_mark(api: Api, namespace: str) -> None:
    template = _template()
    async with _sweeping(api, namespace) as sweep:
        await Templates(api, Informers(api)).ensure(namespace, [template])
        (due,) = await sweep.until_due(template.name)

        await Templates(api, Informers(api)).ensure(namespace, [template])  # another replica, just started
        assert not await sweep.sweeper.delete(due)

    assert not await _is_marked(api, namespace, template.name)


async def test_admission_does_not_trust_a_watch_that_has_been_silent(
    api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = _template()
    async with _sweeping(api, namespace) as sweep:
        templates = Templates(api, Informers(api))
        templates.informer.store.put((namespace, template.name), _known(template, marked=False))  # as it was long ago
        await Templates(api, Informers(api)).ensure(namespace, [template])
        (due,) = await sweep.until_due(template.name)

        await templates.ensure(namespace, [template])
        assert not await sweep.sweeper.delete(due)

    calls = _Calls(api, monkeypatch)
    monkeypatch.setattr(admission_templates, "_RECENT_SECONDS", 0.0)
    templates.informer._watch._well()  # it speaks again
    await templates.ensure(namespace, [template])
    assert calls.made == []


async def test_a_pod_that_was_stored_after_the_mark_keeps_the_template(api: Api, namespace: str) -> None:
    """Admission saw no mark, its pod was stored later, and the controller's watch does not know of it."""
    template = _template()
    await Templates(api, Informers(api)).ensure(namespace, [template])
    async with _sweeping(api, namespace) as sweep:
        due = await sweep.until_due(template.name)
        await _start_pod(api, namespace, template.name)

        await sweep.sweeper.remove(due)

    assert await _stored(api, namespace, template.name) is not None


async def test_admission_between_the_list_of_pods_and_the_delete_keeps_the_template(
    api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = _template()
    async with _watching(api) as templates, _sweeping(api, namespace) as sweep:
        told = Told(templates.informer.store)
        await templates.ensure(namespace, [template])
        due = await sweep.until_due(template.name)
        await told.until(lambda store: _marked_in(store, namespace, template.name) is True)
        delete = sweep.sweeper.delete

        async def overtaken(each: Due) -> bool:
            await templates.ensure(namespace, [template])
            await _start_pod(api, namespace, template.name)
            return await delete(each)

        monkeypatch.setattr(sweep.sweeper, "delete", overtaken)
        await sweep.sweeper.remove(due)

    assert await _stored(api, namespace, template.name) is not None


async def test_a_grace_that_would_be_unsafe_is_refused(policies: Cluster) -> None:
    async with reach(policies) as api:
        with pytest.raises(ValueError, match="a pod may be on its way"):
            ClaimTemplates(api, Informers(api), grace=MINIMUM_GRACE - 1)


async def test_nothing_is_swept_by_old_knowledge(api: Api, namespace: str) -> None:
    template = _template()
    await Templates(api, Informers(api)).ensure(namespace, [template])
    async with _sweeping(api, namespace) as sweep:
        await sweep.sees(template.name, marked=False)
        await until(lambda: sweep.sweeper.templates.heard_within(60))
        sweep.sweeper.references.pods._watch._heard = float("-inf")
        await sweep.sweeper.sweep()

    assert not await _is_marked(api, namespace, template.name)
