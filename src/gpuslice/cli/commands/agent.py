"""`gpuslice agent`, also `gpusliced`: the agent of a node."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuslice.cli.options.kubelet import kubelet_options

if TYPE_CHECKING:
    from gpuslice.node.admin.messages import AgentView
    from gpuslice.node.kubernetes import KubernetesSettings


@click.command()
@click.option(
    "--state",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where sessions are kept.  [default: $GPUSLICE_STATE, /run/gpuslice as root, else $XDG_RUNTIME_DIR/gpuslice]",
)
@click.option("--audit-log", metavar="FILE", type=click.Path(path_type=Path), help="Write who did what, as JSON lines.")
@click.option(
    "--metrics", metavar="ADDR|none", default="127.0.0.1:9500", show_default=True, help="Serve /metrics there."
)
@click.option("--private-to", metavar="PID", type=click.IntRange(1), help="End when that process is gone.")
@click.option(
    "--log", "form", type=click.Choice(["console", "json"]), default="console", show_default=True, help="Form."
)
@click.option(
    "--max-pending",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="Connections that have not asked yet.",
)
@click.option(
    "--check-seconds", type=click.FloatRange(0.05, 60), default=0.5, show_default=True, help="Between looks at NVML."
)
@kubelet_options
def command(
    state: Path | None,
    audit_log: Path | None,
    metrics: str,
    private_to: int | None,
    form: str,
    max_pending: int,
    check_seconds: float,
    kubernetes: KubernetesSettings | None,
) -> None:
    """Run the agent of this node.

    It owns the sessions and serves their processes. Whoever manages sessions must know its token:
    $GPUSLICE_IPC_TOKEN if that is set here, else what is in the file `token` in the state folder.

    \b
    Example:
      gpuslice agent --audit-log /var/log/gpuslice/audit.jsonl
      gpuslice agent --state /tmp/demo --metrics none
      gpuslice agent --kubernetes --node-name worker-1
    """
    from gpuslice.node.agent import Agent, Settings
    from gpuslice.node.sessions.state_folder import StateFolder, default_folder
    from gpuslice.system import logs

    logs.configure(form, debug=os.environ.get("GPUSLICE_DEBUG", "") not in ("", "0"))
    settings = Settings(
        state=StateFolder(state.absolute() if state is not None else default_folder(os.environ)),
        audit_log=audit_log.absolute() if audit_log is not None else None,
        metrics=None if metrics == "none" else metrics,
        private_to=private_to,
        max_pending=max_pending,
        check_seconds=check_seconds,
        kubernetes=kubernetes,
    )

    async def serve() -> None:
        await Agent(settings, os.environ).run(_say_ready)

    asyncio.run(serve())


def _say_ready(agent: AgentView) -> None:
    click.echo(f"gpuslice agent is ready: {agent.state_folder} (pid {agent.pid}, {agent.sessions} sessions)")
    sys.stdout.flush()


def main() -> None:
    """The command `gpusliced`."""
    from gpuslice.cli.main import main as gpuslice

    sys.argv[1:1] = ["agent"]
    gpuslice()
