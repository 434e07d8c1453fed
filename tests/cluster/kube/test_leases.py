"""Of all candidates one leads; when it ends, however it does, another follows, and never two at once."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.kube.errors import LeadershipLostError
from gpuslice.kube.leases import LeaderElection, Terms
from gpuslice.kube.resources import LEASES
from tests.cluster.kube.support import Cable, reach, running
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gpuslice.kube.client.api import Api
    from gpuslice_cluster.clusters import Cluster

_BRISK = Terms(duration=3, deadline=2.0, interval=0.2)


async def _lease(api: Api, namespace: str, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(await api.call("GET", LEASES.path(namespace, name)))["spec"]
    return spec


async def _forever() -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def _contender(
    cluster: Cluster, namespace: str, identity: str, duration: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.cluster.kube.contender",
        str(cluster.kubeconfig),
        namespace,
        "work",
        identity,
        str(duration),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _until_leading(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await process.stdout.readline() == b"leading\n"


async def test_the_second_waits_for_as_long_as_the_first_works(api: Api, namespace: str) -> None:
    first = LeaderElection(api, namespace, "work", "first", _BRISK)
    second = LeaderElection(api, namespace, "work", "second", _BRISK)
    async with running(first.run(_forever)):
        await first.leading.wait()
        async with running(second.run(_forever)):
            # Longer than the lease would last without being renewed.
            seen = {(await _lease(api, namespace, "work"))["renewTime"]}
            while len(seen) < 20:
                lease = await _lease(api, namespace, "work")
                assert lease["holderIdentity"] == "first"
                assert not second.leading.is_set()
                seen.add(lease["renewTime"])
                await asyncio.sleep(0.05)


async def test_a_killed_leader_is_followed_when_its_lease_has_run_out_and_not_before(
    policies: Cluster, api: Api, namespace: str
) -> None:
    duration = 3
    async with (
        _contender(policies, namespace, "first", duration) as first,
        _contender_after(first, policies, namespace, duration) as second,
    ):
        first.send_signal(signal.SIGKILL)
        await first.wait()
        last = await _lease(api, namespace, "work")
        await _until_leading(second)

        lease = await _lease(api, namespace, "work")
    assert (last["holderIdentity"], lease["holderIdentity"]) == ("first", "second")
    assert lease["leaseTransitions"] == 1
    waited = datetime.fromisoformat(lease["acquireTime"]) - datetime.fromisoformat(last["renewTime"])
    assert waited >= timedelta(seconds=duration)


@asynccontextmanager
async def _contender_after(
    first: asyncio.subprocess.Process, cluster: Cluster, namespace: str, duration: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    await _until_leading(first)
    async with _contender(cluster, namespace, "second", duration) as second:
        yield second


async def test_a_leader_that_ends_in_order_does_not_keep_the_next_waiting(
    policies: Cluster, api: Api, namespace: str
) -> None:
    an_hour = 3600
    async with (
        _contender(policies, namespace, "first", an_hour) as first,
        _contender_after(first, policies, namespace, an_hour) as second,
    ):
        first.send_signal(signal.SIGTERM)
        assert await first.wait() == 0
        await _until_leading(second)

        assert (await _lease(api, namespace, "work"))["holderIdentity"] == "second"


async def test_a_leader_that_is_cut_off_stops_its_work_before_another_may_begin(
    policies: Cluster, namespace: str
) -> None:
    stopped = asyncio.Event()

    async def work() -> None:
        try:
            await _forever()
        finally:
            stopped.set()

    async with Cable(policies) as cable, cable.reach() as through, reach(policies) as api:
        cut_off = LeaderElection(through, namespace, "work", "cut off", _BRISK)
        task = asyncio.create_task(cut_off.run(work))
        await cut_off.leading.wait()
        await cable.cut()
        other = LeaderElection(api, namespace, "work", "other", _BRISK)
        async with running(other.run(_forever)):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await other.leading.wait()
            assert stopped.is_set()
            with pytest.raises(LeadershipLostError, match="could not be renewed"):
                await task
            assert not cut_off.leading.is_set()


async def test_a_leader_whose_lease_another_took_stops(api: Api, namespace: str) -> None:
    election = LeaderElection(api, namespace, "work", "robbed", _BRISK)
    task = asyncio.create_task(election.run(_forever))
    await election.leading.wait()
    taken = {"spec": {"holderIdentity": "robber", "leaseDurationSeconds": 3600}}
    await api.merge(LEASES, "work", taken, namespace=namespace)

    with pytest.raises(LeadershipLostError, match="lost to robber"):
        await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert (await _lease(api, namespace, "work"))["holderIdentity"] == "robber"


async def test_of_many_that_begin_at_once_one_leads(api: Api, namespace: str) -> None:
    at_work: list[str] = []
    elections = [LeaderElection(api, namespace, "work", f"number {number}", _BRISK) for number in range(10)]

    def works(identity: str) -> Any:  # noqa: ANN401 - a function that makes coroutines
        async def work() -> None:
            assert not at_work
            at_work.append(identity)
            # Long enough for the others to have tried.
            while len(tries) < 20:
                tries.add((await _lease(api, namespace, "work"))["renewTime"])
            at_work.remove(identity)

        return work

    for _ in range(2):  # the second time there is a lease that was given back
        tries: set[str] = set()
        waiting = [asyncio.create_task(election.run(works(str(number)))) for number, election in enumerate(elections)]
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for task in done:
            task.result()


async def test_the_work_s_own_failure_is_told_and_the_lease_given_back(api: Api, namespace: str) -> None:
    async def fail() -> None:
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        await LeaderElection(api, namespace, "work", "unlucky", _BRISK).run(fail)
    assert not (await _lease(api, namespace, "work"))["holderIdentity"]
