"""A node's agent as far as its GPUs go, as a process: `python fleet_process.py KUBECONFIG NODE STATE`.

Publishes the GPUs of the machine that it is on until its input ends.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from unittest import mock

from gpuslice.kube import api
from gpuslice.kube.events import Recorder
from gpuslice.node.dra.fleet_publication import FleetPublication
from gpuslice.node.dra.publishing import Publisher
from gpuslice.node.gpus import fleet as fleet_module
from gpuslice.node.gpus.fleet import Fleet
from gpuslice.node.gpus.health import Health
from gpuslice.node.gpus.partitions import Partitions
from gpuslice.node.gpus.policies import GpuPolicies


async def main(kubeconfig: str, node: str, state: str) -> None:
    async with api.connect(Path(kubeconfig), {}, "test") as connection:
        publisher, recorder = Publisher(connection, node), Recorder(connection, "gpuslice.io/agent", node)
        fleet = Fleet(GpuPolicies(), Partitions(Path(state) / "partitions"), Health(Path(state) / "health"))
        publication = FleetPublication(fleet, publisher, recorder, node)
        tasks = [asyncio.create_task(work) for work in (publisher.run(), recorder.run(), publication.run())]
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    # The fleet sees a removal when it looks at everything again; the test need not wait for as long as a node does.
    with mock.patch.object(fleet_module, "_REFRESH_SECONDS", 0.5):
        asyncio.run(main(*sys.argv[1:]))
