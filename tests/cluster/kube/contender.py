"""A process that wants a lease: says when it has it, and works until it is told to stop.

python -m tests.cluster.kube.contender KUBECONFIG NAMESPACE LEASE IDENTITY DURATION
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from gpuslice.kube.client import credentials
from gpuslice.kube.client.api import Api
from gpuslice.kube.leases import LeaderElection, Terms
from gpuslice.system import logs


async def _main(kubeconfig: str, namespace: str, lease: str, identity: str, duration: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def work() -> None:
        print("leading", flush=True)  # noqa: T201 - the test reads it
        await stop.wait()

    async with Api(credentials.load(Path(kubeconfig), {}), "contender") as api:
        terms = Terms(duration=int(duration), deadline=int(duration) * 0.6, interval=0.2)
        await LeaderElection(api, namespace, lease, identity, terms).run(work)


if __name__ == "__main__":
    logs.configure("console", debug=False)
    asyncio.run(_main(*sys.argv[1:]))
