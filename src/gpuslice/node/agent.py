"""The agent: everything on one event loop, from start to SIGTERM."""

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
from typing import TYPE_CHECKING, Final

import structlog

from gpuslice.node.admin.messages import AgentView, InventoryGpu
from gpuslice.node.admin.server import Admin, AdminServer
from gpuslice.node.attach.mappings import Mappings
from gpuslice.node.attach.read_only_view import ReadOnlyView
from gpuslice.node.attach.server import AttachServer
from gpuslice.node.audit import Audit
from gpuslice.node.errors import AgentError
from gpuslice.node.lifetimes import Lifetimes
from gpuslice.node.sessions.attribution import Attribution, Surroundings
from gpuslice.node.sessions.registry import Registry
from gpuslice.node.sessions.session import HEARTBEAT_SECONDS
from gpuslice.node.usage.crosscheck import INTERVAL_SECONDS, CrossCheck
from gpuslice.system.threads import InspectionThread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from gpuslice.node.kubernetes import KubernetesNode, KubernetesSettings
    from gpuslice.node.sessions.state_folder import StateFolder
    from gpuslice.node.usage.metrics import MetricsServer

_SWEEP_SECONDS: Final = 1.0
_REPAIR_SECONDS: Final = 5.0
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

    async def run(self, ready: Callable[[AgentView], None]) -> None:
        """Serves until it is told to stop. `ready` is called once requests are answered."""
        settings, state = self._settings, self._settings.state
        loop = asyncio.get_running_loop()
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
            self._registry = registry = Registry(state, audit, self._log, loop, max_descriptors=max_descriptors)
            stack.callback(registry.close)
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
                Admin(registry, check, audit, token, state.attach_socket, self._status, thread),
                self._log,
            )
            await admin.start()
            lifetimes = Lifetimes(registry, server, audit, self._log)
            tasks = [
                asyncio.create_task(self._regularly(HEARTBEAT_SECONDS, lifetimes.beat)),
                asyncio.create_task(self._regularly(_SWEEP_SECONDS, lifetimes.sweep)),
                asyncio.create_task(self._regularly(_SWEEP_SECONDS, registry.settle_found)),
                asyncio.create_task(self._regularly(_SWEEP_SECONDS, mappings.sweep)),
                asyncio.create_task(self._regularly(_REPAIR_SECONDS, lifetimes.repair)),
                asyncio.create_task(check.run()),
            ]
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop.set)
            loop.add_signal_handler(signal.SIGHUP, audit.reopen)
            kubernetes = await self._serve_kubelet(registry, audit)
            if settings.metrics is not None:
                stack.callback(self._serve_metrics(settings.metrics, server, audit, kubernetes).close)
            ready(self._status())
            _notify_service_manager(self._environment)
            await self._stop.wait()
            self._log.info("stopping", sessions=len(registry.sessions))
            if kubernetes is not None:
                await kubernetes.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await admin.close()
            for path in (state.attach_socket, state.admin_socket):
                path.unlink(missing_ok=True)
            if settings.private_to is not None:
                stack.callback(shutil.rmtree, state.folder, ignore_errors=True)

    async def _serve_kubelet(self, registry: Registry, audit: Audit) -> KubernetesNode | None:
        """Imports what most agents on a developer's machine do not need."""
        settings = self._settings
        if settings.kubernetes is None:
            return None
        from gpuslice.node.kubernetes import KubernetesNode

        node = KubernetesNode(settings.kubernetes, self._environment, registry, settings.state, audit, self._log)
        await node.start()
        return node

    def _serve_metrics(
        self, address: str, server: AttachServer, audit: Audit, kubernetes: KubernetesNode | None
    ) -> MetricsServer:
        from gpuslice.node.usage.gpu_metrics import GpuCollector
        from gpuslice.node.usage.metrics import AgentCollector, MetricsServer

        gpus = [] if kubernetes is None else [GpuCollector(kubernetes.gpu_states)]
        sessions = AgentCollector(self._registry, server, audit, asyncio.get_running_loop())
        reviewer = None if kubernetes is None else kubernetes.metrics_reviewer()
        return MetricsServer(address, sessions, *gpus, reviewer=reviewer)

    async def _regularly(self, seconds: float, work: Callable[[], Awaitable[None] | None]) -> None:
        """Whatever goes wrong once is told, and tried again."""
        while True:
            try:
                if (waiting := work()) is not None:
                    await waiting
                self._stop_if_alone()
            except Exception:  # noqa: BLE001 - see above
                self._log.exception("regular work failed", operation=getattr(work, "__name__", ""))
            await asyncio.sleep(seconds)

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
        """A private agent ends with the process it was started for, once nobody is attached."""
        alone = self._private_pidfd is None and not self._registry.processes
        if self._settings.private_to is not None and alone:
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
                    index=gpu.index, uuid=gpu.uuid, model=gpu.model, memory_bytes=gpu.memory_bytes, mig=gpu.mig
                )
                for gpu in self._check.machine
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
