"""The controller's reconciler of claim templates alone, for one namespace: `python -m tests.cluster.template_maker`.

A whole controller would serve the namespaces of all tests that share the cluster, and write their policies' status.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from gpuslice.controller.reconcilers.claim_templates import ClaimTemplates
from gpuslice.kube.client import credentials
from gpuslice.kube.client.api import Api
from gpuslice.kube.events import Recorder
from gpuslice.kube.informers import Informers
from tests.cluster.kube.support import hosted


def narrow(templates: ClaimTemplates, namespace: str) -> None:
    """Lets it see nothing of other namespaces."""

    def only(informer: Any) -> None:  # noqa: ANN401 - of two kinds
        project = informer._project
        informer._project = lambda found: project(found) if found.metadata.namespace == namespace else None

    for informer in (templates.pods, templates.templates):
        only(informer)


async def _main(kubeconfig: Path, namespace: str) -> None:
    async with Api(credentials.load(kubeconfig, {}), "tests") as api:
        informers = Informers(api)
        templates = ClaimTemplates(api, informers, Recorder(api, "gpuslice.io/test", "test"))
        narrow(templates, namespace)
        await hosted(informers, templates)


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), sys.argv[2]))
