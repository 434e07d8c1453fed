"""While a claim template cannot be made, the pods that need it hear so, and the API server is left in peace."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.admission.backends import dra
from gpuslice.admission.cluster import claim_templates as admission_templates
from gpuslice.admission.cluster.claim_templates import LONGEST_REST, TemplateError, Templates
from gpuslice.kube.informers import Informers
from gpuslice.kube.resources import NAMESPACES
from gpuslice.model.slices import Slice
from tests.cluster.kube.support import Cable, reach

if TYPE_CHECKING:
    from gpuslice.admission.backends.dra import Template
    from gpuslice.kube.api import Api
    from gpuslice_cluster.clusters import Cluster

_GIB = 1024**3


@dataclass
class _Calls:
    """Counts the calls that reach the API server, and how many of them do at a time."""

    made: int = 0
    now: int = 0
    most: int = 0

    def count(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        call = api.call

        async def counted(method: str, path: str, **more: Any) -> bytes:  # noqa: ANN401 - passed on
            self.made += 1
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                return await call(method, path, **more)
            finally:
                self.now -= 1

        monkeypatch.setattr(api, "call", counted)


@dataclass
class _Clock:
    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


def _template(gibibytes: int = 4) -> Template:
    return dra.template_for(Slice(memory=gibibytes * _GIB), None)


async def _reason(templates: Templates, namespace: str) -> str:
    with pytest.raises(TemplateError) as caught:
        await templates.ensure(namespace, [_template()])
    return str(caught.value)


async def test_a_refusal_answers_all_that_ask_soon_after(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace, clock, calls = f"late-{secrets.token_hex(4)}", _Clock(), _Calls()
    async with reach(cluster) as api:
        calls.count(api, monkeypatch)
        templates = Templates(api, Informers(api), clock)
        together = await asyncio.gather(*(_reason(templates, namespace) for _ in range(50)))
        assert calls.made == 1
        assert f'namespaces "{namespace}" not found' in together[0]
        after = [await _reason(templates, namespace) for _ in range(50)]
        assert calls.made == 1
        assert set(after) == set(together) == {together[0]}

        # It is asked again and again, less and less often.
        rests = []
        for _ in range(10):
            before, started = calls.made, clock.seconds
            while calls.made == before:
                clock.seconds += LONGEST_REST / 100
                await _reason(templates, namespace)
            rests.append(clock.seconds - started)
        assert rests[0] < rests[-1] <= LONGEST_REST + LONGEST_REST / 100

        # And it is made as soon as it can be.
        await api.create(NAMESPACES, {"metadata": {"name": namespace}})
        clock.seconds += LONGEST_REST
        await templates.ensure(namespace, [_template()])
        assert templates.created == 1
        await api.delete(NAMESPACES, namespace)


async def test_an_api_server_that_is_gone_is_not_called_for_each_pod(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, calls = _Clock(), _Calls()
    async with Cable(cluster) as cable, cable.reach() as api:
        calls.count(api, monkeypatch)
        templates = Templates(api, Informers(api), clock)
        await cable.cut()
        reasons = {await _reason(templates, namespace) for _ in range(20)}
        assert calls.made == 1
        assert "does not answer" in reasons.pop()
        await cable.mend()
        clock.seconds += LONGEST_REST
        await templates.ensure(namespace, [_template()])


async def test_a_failure_of_one_is_no_failure_of_another(cluster: Cluster, namespace: str) -> None:
    async with reach(cluster) as api:
        templates = Templates(api, Informers(api), _Clock())
        await _reason(templates, f"none-{secrets.token_hex(4)}")
        await templates.ensure(namespace, [_template()])
        assert templates.created == 1


async def test_pods_of_many_kinds_do_not_take_all_of_the_api_server(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The machine may be busy; this is about their number and not about their time.
    monkeypatch.setattr(admission_templates, "_PATIENCE_SECONDS", 60.0)
    calls = _Calls()
    async with reach(cluster) as api:
        calls.count(api, monkeypatch)
        templates = Templates(api, Informers(api))
        await templates.ensure(namespace, [_template(number) for number in range(1, 101)])
        assert templates.created == 100
        assert calls.most <= 16
