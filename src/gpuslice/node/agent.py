"""The agent: everything on one event loop, from start to SIGTERM.

Background work are parts of a supervisor; beside each part stands what happens when it fails. /healthz and /readyz on
the metrics port answer from this loop, and name the part that is ill.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NoReturn

import structlog
from prometheus_client import CollectorRegistry

from gpuslice.model.gpu_policies import Mode
from gpuslice.node.admin.messages import AgentView, InventoryGpu
from gpuslice.node.admin.room import Room
from gpuslice.node.admin.server import Admin, AdminServer
from gpuslice.node.attach.mappings import Mappings
from gpuslice.node.attach.read_only_view import ReadOnlyView
from gpuslice.node.attach.server import AttachServer
from gpuslice.node.audit import Audit
from gpuslice.node.disk import DiskThread
from gpuslice.node.errors import AgentError
from gpuslice.node.lifetimes import Lifetimes
from gpuslice.node.sessions.attribution import Attribution, Surroundings
from gpuslice.node.sessions.registry import Registry
from gpuslice.node.sessions.session import HEARTBEAT_SECONDS
from gpuslice.node.usage.crosscheck import INTERVAL_SECONDS, CrossCheck
from gpuslice.system.supervised.health import Health
from gpuslice.system.supervised.supervision import Restart, SupervisionMetrics, Supervisor
from gpuslice.system.supervised.threads import InspectionThread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from gpuslice.node.kubernetes import KubernetesNode, KubernetesSettings
    from gpuslice.node.sessions.state_folder import StateFolder
    from gpuslice.node.usage.metrics import MetricsServer

_SWEEP_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 5.0
#: A heartbeat that is older than that does not come from a loop that works: /healthz says so.
_STALE_SECONDS: Final = 10.0
_CALLBACKS: Final = "callbacks"
_NICENESS: Final = -10


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an agent is started with."""

    state: StateFolder
    audit_log: Path | None = None
    metrics: str | None = None
    private_to: int | None = None
    max_pending: int = 1024
    check_seconds: float = INTERVAL_SECONDS
    #: Of each GPU, what sessions by hand leave.
    reserve_bytes: int = 0
    kubernetes: KubernetesSettings | None = None


class Agent:
    """One agent in this process."""

    def __init__(self, settings: Settings, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._environment = environment
        self._started = time.monotonic()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
        self._stop = asyncio.Event()
        self._private_pidfd: int | None = None
        self._health = Health()
        self._metrics = CollectorRegistry()
        self._supervision = SupervisionMetrics(self._metrics)
        self._supervision.add(_CALLBACKS)
        self._parts = Supervisor(self._health, self._supervision)

    async def run(self, ready: Callable[[AgentView], None]) -> None:
        """Serves until it is told to stop. `ready` is called once requests are answered."""
        settings, state = self._settings, self._settings.state
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._callback_failed)
        max_descriptors = _raise_descriptors()
        with suppress(OSError):  # short and rare work that others wait for: not behind a node full of busy processes
            os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
        with ExitStack() as stack:
            if settings.private_to is not None:
                self._private_pidfd = self._watch_private(settings.private_to, loop)
            lock = state.prepare()
            stack.callback(os.close, lock)
            audit = Audit(settings.audit_log, self._log)
            stack.callback(audit.close)
            token = state.agent_token(self._environment)
            self._disk = disk = DiskThread()
            self._registry = registry = Registry(state, audit, self._log, loop, disk, max_descriptors=max_descriptors)
            stack.callback(registry.close)
            stack.callback(disk.close)
            registry.load()
            self._view = view = ReadOnlyView(state.sessions)
            stack.callback(view.close)
            if view.weakness:
                self._log.warning(
                    "tenants of the agent's own user could write their limit; run the agent as root",
                    reason=view.weakness,
                )
            surroundings, thread = Surroundings(), InspectionThread()
            mappings = Mappings(registry, thread)
            server = AttachServer(
                state.attach_socket, registry, view, audit, self._log, mappings, surroundings,
                max_pending=settings.max_pending,
            )  # fmt: skip
            stack.callback(server.close)
            self._check = check = CrossCheck(
                registry,
                audit,
                self._log,
                Attribution(registry, thread, surroundings),
                thread,
                interval=settings.check_seconds,
            )
            admin = AdminServer(
                state.admin_socket,
                Admin(registry, self._room(), check, audit, token, state.attach_socket, self._status, thread),
                self._log,
            )
            await admin.start()
            self._add_parts(Lifetimes(registry, server, audit, self._log), mappings)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop.set)
            loop.add_signal_handler(signal.SIGHUP, audit.reopen)
            node = self._kubernetes_node(audit)
            if settings.metrics is not None:
                stack.callback(self._serve_metrics(settings.metrics, server, audit, node).close)
            try:
                await self._parts.run(self._serve(node, ready))
            finally:
                if node is not None:
                    await node.close()
                await admin.close()
            for path in (state.attach_socket, state.admin_socket):
                path.unlink(missing_ok=True)
            if settings.private_to is not None:
                stack.callback(shutil.rmtree, state.folder, ignore_errors=True)

    def _room(self) -> Room:
        """What may be promised to sessions by hand: nothing of a GPU that the cluster's scheduler gives out."""
        reserve, kubernetes = self._settings.reserve_bytes, self._settings.kubernetes
        if kubernetes is None:
            return Room(self._registry, reserve_bytes=reserve)
        policies = kubernetes.policies
        return Room(
            self._registry,
            reserve_bytes=reserve,
            offered=lambda gpu: policies.mode_of(gpu.uuid, gpu.index, gpu.model) is not Mode.RESERVE,
        )

    def _add_parts(self, lifetimes: Lifetimes, mappings: Mappings) -> None:
        """What every agent does. A part that misses one turn has missed nothing that the next turn does not do."""
        registry, server = self._registry, lifetimes.server
        soon = Restart(shortest=HEARTBEAT_SECONDS, longest=_SWEEP_SECONDS)
        self._add("heartbeat", HEARTBEAT_SECONDS, lifetimes.beat, soon, stale_seconds=_STALE_SECONDS)
        self._add("expiry", HEARTBEAT_SECONDS, lifetimes.expire, soon)
        self._add("connection sweep", _SWEEP_SECONDS, server.sweep, soon)
        self._add("cells search", _SWEEP_SECONDS, registry.settle_found, soon)
        self._add("mappings", _SWEEP_SECONDS, mappings.sweep, soon)
        self._add("release retry", _RETRY_SECONDS, lifetimes.retry_releases, soon)
        self._parts.add("releases", registry.release_over, soon)
        self._parts.add("cross-check", self._check.run, Restart(shortest=INTERVAL_SECONDS, longest=5.0))
        if self._settings.private_to is not None:
            self._add("private owner", _SWEEP_SECONDS, self._stop_if_alone, soon)

    def _add(
        self,
        name: str,
        seconds: float,
        work: Callable[[], Awaitable[None] | None],
        on_failure: Restart,
        *,
        stale_seconds: float | None = None,
    ) -> None:
        async def repeat() -> NoReturn:
            while True:
                if (waiting := work()) is not None:
                    await waiting
                part.beat()
                await asyncio.sleep(seconds)

        part = self._parts.add(name, repeat, on_failure, stale_seconds=stale_seconds)

    async def _serve(self, node: KubernetesNode | None, ready: Callable[[AgentView], None]) -> None:
        """The process's main part: from the start of serving the kubelet to the signal to stop."""
        starting = self._health.part("start")
        try:
            if node is not None:
                await node.start()
            starting.ready()
            ready(self._status())
            _notify_service_manager(self._environment)
            await self._stop.wait()
            self._log.info("stopping", sessions=len(self._registry.sessions))
        finally:
            if node is not None:
                await node.stop()

    def _kubernetes_node(self, audit: Audit) -> KubernetesNode | None:
        """Imports what most agents on a developer's machine do not need."""
        settings = self._settings
        if settings.kubernetes is None:
            return None
        from gpuslice.node.kubernetes import KubernetesNode

        return KubernetesNode(
            settings.kubernetes, self._environment, self._registry, settings.state, audit, self._disk, self._parts,
            self._log,
        )  # fmt: skip

    def _serve_metrics(
        self, address: str, server: AttachServer, audit: Audit, kubernetes: KubernetesNode | None
    ) -> MetricsServer:
        from gpuslice.node.usage.gpu_metrics import GpuCollector
        from gpuslice.node.usage.metrics import AgentCollector, MetricsServer

        gpus = [] if kubernetes is None else [GpuCollector(kubernetes.gpu_states), kubernetes.rivals]
        sessions = AgentCollector(self._registry, server, audit, asyncio.get_running_loop())
        reviewer = None if kubernetes is None else kubernetes.metrics_reviewer()
        served = MetricsServer(address, self._metrics, self._health, sessions, *gpus, reviewer=reviewer)
        self._log.info("serves metrics and health", address=address, port=served.port)
        return served

    def _callback_failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback of a socket or pidfd is no task, so no part fails with it: it is logged and counted here."""
        self._supervision.failures.labels(_CALLBACKS).inc()
        error = context.get("exception")
        self._log.error("a callback failed", part=_CALLBACKS, reason=context.get("message"), exc_info=error)

    def _watch_private(self, pid: int, loop: asyncio.AbstractEventLoop) -> int:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            raise AgentError("private", f"there is no process {pid}", field="private-to") from None
        loop.add_reader(pidfd, self._private_ended, pidfd, loop)
        return pidfd

    def _private_ended(self, pidfd: int, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        self._private_pidfd = None

    def _stop_if_alone(self) -> None:
        """A private agent ends with the process it was started for, once no process is attached."""
        if self._private_pidfd is None and not self._registry.processes:
            self._stop.set()

    def _status(self) -> AgentView:
        return AgentView(
            version=version("gpuslice"),
            pid=os.getpid(),
            uid=os.geteuid(),
            state_folder=str(self._settings.state.folder),
            uptime_seconds=time.monotonic() - self._started,
            sessions=len(self._registry.sessions),
            processes=len(self._registry.processes),
            nvml=not self._check.error,
            nvml_error=self._check.error,
            gpus=[
                InventoryGpu(
                    index=gpu.index,
                    uuid=gpu.uuid,
                    model=gpu.model,
                    memory_bytes=gpu.memory_bytes,
                    mig=gpu.mig,
                    lost=lost,
                )
                for lost, gpus in ((False, self._check.machine), (True, self._check.lost))
                for gpu in gpus
            ],
            sealed=not self._view.weakness,
            weakness=self._view.weakness,
        )


def _raise_descriptors() -> int:
    """Every process costs two descriptors: take as many as we may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _notify_service_manager(environment: Mapping[str, str]) -> None:
    """Tells systemd, if it asked, that the service is ready."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notification:
        notification.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)
