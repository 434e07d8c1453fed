"""A node's agent as far as its GPUs go, as a process: `python fleet_process.py KUBECONFIG NODE STATE`.

Publishes the GPUs of the machine that it is on until its input ends.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from gpuslice.kube.client import api
from gpuslice.kube.events import Recorder
from gpuslice.node.dra.publishing import GpuPublication, Publisher
from gpuslice.node.gpus.gpu_watcher import GpuStates, GpuWatcher
from gpuslice.node.gpus.health import Health
from gpuslice.node.gpus.health_events import GpuHealthEvents
from gpuslice.node.gpus.partitions import Partitions
from gpuslice.node.gpus.policies import GpuPolicies


async def main(kubeconfig: str, node: str, state: str) -> None:
    async with api.connect(Path(kubeconfig), {}, "test") as connection:
        publisher, recorder = Publisher(connection, node), Recorder(connection, "gpuslice.io/agent", node)
        gpus = GpuStates(GpuPolicies(), Partitions(Path(state) / "partitions"), Health(Path(state) / "health"))
        # A change is seen when all is looked at again; the test need not wait for as long as a node does.
        watcher = GpuWatcher(gpus, refresh_seconds=0.5)
        watcher.listen(GpuPublication(publisher, GpuPolicies()).gpus_observed)
        watcher.listen(GpuHealthEvents(recorder, node).gpus_observed)
        work = (publisher.run(), recorder.run(), watcher.run(), watcher.watch_errors())
        tasks = [asyncio.create_task(each) for each in work]
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
