"""`gpuslice agent`, also `gpusliced`: the agent of a node."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from gpuslice.cli import output
from gpuslice.cli.options import logging
from gpuslice.cli.options.configuration import Flag, configured

if TYPE_CHECKING:
    from gpuslice.configuration.effective import Effective
    from gpuslice.configuration.schema import Configuration
    from gpuslice.node.admin.messages import AgentView
    from gpuslice.node.kubernetes import KubernetesSettings


@click.command()
@configured(
    Flag("--state", "agent.state"),
    Flag("--audit-log", "agent.auditLog"),
    Flag("--metrics", "agent.metrics"),
    Flag("--metrics-access", "agent.metricsAccess"),
    Flag("--max-pending", "agent.maxPending"),
    Flag("--check-interval", "agent.checkInterval"),
    Flag("--reserve", "agent.reserve"),
    Flag("--kubernetes", "agent.kubelet.enabled"),
    Flag("--kubelet-dir", "agent.kubelet.folder"),
    Flag("--cdi-dir", "agent.kubelet.cdiFolder"),
    Flag("--remove-slices-on-exit", "agent.kubelet.removeSlicesOnExit"),
    Flag("--kubeconfig", "cluster.kubeconfig"),
    Flag("--backend", "gpus.backend"),
    Flag(
        "--gpu-policy",
        "gpus.policies",
        metavar="GPU=MODE",
        help="What one GPU is offered as, by index, UUID or model: share, mig, whole or reserve; may be given several "
        "times.",
    ),
    Flag("--slots-per-gpu", "gpus.slotsPerGpu"),
    Flag("--shared-resource", "gpus.sharedResource"),
    Flag("--whole-resource", "gpus.wholeResource"),
    Flag("--log", "logging.form"),
    dialects=False,
)
@click.option(
    "--node-name", metavar="NAME", help="As the cluster calls this node.  [default: $NODE_NAME, the host's name]"
)
@click.option("--private-to", metavar="PID", type=click.IntRange(1), help="End when that process is gone.")
def command(effective: Effective, node_name: str | None, private_to: int | None) -> None:
    """Run the agent of this node.

    It owns the sessions and serves their processes. Managing sessions takes its token: $GPUSLICE_IPC_TOKEN if that is
    set here, else what is in the file `token` in the state folder.

    \b
    Example:
      gpuslice agent --audit-log /var/log/gpuslice/audit.jsonl
      gpuslice agent --state /tmp/demo --metrics none
      gpuslice agent --kubernetes --node-name worker-1
      gpuslice agent --config deploy/configuration.yaml --gpu-policy 0=whole
    """
    configuration = effective.configuration
    agent = configuration.agent
    logging.configure(configuration.logging)  # first: it keeps what only consoles need from being loaded

    from gpuslice.node.agent import Agent, Settings
    from gpuslice.node.sessions.state_folder import StateFolder, default_folder

    settings = Settings(
        state=StateFolder(default_folder(os.environ) if agent.state is None else Path(agent.state).absolute()),
        audit_log=None if agent.audit_log is None else Path(agent.audit_log).absolute(),
        metrics=None if agent.metrics == "none" else agent.metrics,
        private_to=private_to,
        max_pending=agent.max_pending,
        check_seconds=agent.check_seconds,
        reserve_bytes=agent.reserve_bytes,
        kubernetes=_kubernetes(configuration, node_name) if agent.kubelet.enabled else None,
    )

    async def serve() -> None:
        await Agent(settings, os.environ).run(_say_ready)

    asyncio.run(serve())


def _kubernetes(configuration: Configuration, node_name: str | None) -> KubernetesSettings:
    """What to serve the kubelet with."""
    from gpuslice.cli.run import preload
    from gpuslice.model.policies import Backend
    from gpuslice.node.gpus.policies import GpuPolicies
    from gpuslice.node.kubernetes import KubernetesSettings
    from gpuslice.node.slots.backend import ExtendedSettings
    from gpuslice.node.usage.metrics_access import MetricsAccess

    kubelet, gpus, libraries = configuration.agent.kubelet, configuration.gpus, preload.library_folder()
    return KubernetesSettings(
        node=node_name or os.environ.get("NODE_NAME") or socket.gethostname().lower(),
        libraries=tuple(libraries / name for name in preload.LIBRARIES),
        kubelet_folder=Path(kubelet.folder).absolute(),
        cdi_folder=Path(kubelet.cdi_folder).absolute(),
        kubeconfig=None if configuration.cluster.kubeconfig is None else Path(configuration.cluster.kubeconfig),
        backend=None if gpus.backend == "auto" else Backend(gpus.backend),
        remove_slices_on_exit=kubelet.remove_slices_on_exit,
        metrics_access=MetricsAccess(configuration.agent.metrics_access),
        policies=GpuPolicies(
            default=gpus.default_policy,
            placement=gpus.placement,
            unhealthy=gpus.unhealthy,
            mig_mode=gpus.mig_mode,
            gpus=MappingProxyType(gpus.policies),
        ),
        extended=ExtendedSettings(
            shared_resource=gpus.shared_resource,
            whole_resource=gpus.whole_resource,
            slots_per_gpu=gpus.slots_per_gpu,
        ),
        other_resources=tuple(gpus.other_resources),
    )


def _say_ready(agent: AgentView) -> None:
    output.announce(f"gpuslice agent is ready: {agent.state_folder} (pid {agent.pid}, {agent.sessions} sessions)")


def main() -> None:
    """The command `gpusliced`."""
    from gpuslice.cli import main

    main.version_option(command)
    command.context_settings = main.CONTEXT_SETTINGS
    main.run(command, "gpusliced")
