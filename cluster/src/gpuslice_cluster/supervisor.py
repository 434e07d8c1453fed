"""Starts the components of a plan in order, restarts those that end, as systemd would, and stops all in reverse.

    python -m gpuslice_cluster.supervisor FOLDER [OWNER-PID]

FOLDER holds the plan; the status and the logs land there. It ends on SIGTERM, or when the owner does. If it is killed
itself, the kernel kills its components, so nothing is left running.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from gpuslice_cluster import components, parent_death
from gpuslice_cluster.components import Component, State, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

_SECONDS_BETWEEN_PROBES: Final = 0.1
#: A component that has not become ready by then never will; a cold machine with two cores takes a while.
_SECONDS_TO_BECOME_READY: Final = 180.0
#: Neither will a component that ended so often before it was first ready.
_ATTEMPTS_TO_BECOME_READY: Final = 5
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0


class _Running:
    """One component: keeps it running, and says how it does."""

    def __init__(self, component: Component, supervisor: Supervisor) -> None:
        self.component = component
        self.state = State(component.name, "waiting")
        self.ready = asyncio.Event()
        self.gave_up = asyncio.Event()
        self._supervisor = supervisor
        self._process: asyncio.subprocess.Process | None = None

    async def keep(self) -> None:
        """Until it is cancelled."""
        pause = _FIRST_PAUSE
        for restarts in itertools.count():
            with self._supervisor.log(self.component.name) as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self.component.arguments,
                    env=os.environ | self.component.environment,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=parent_death.kill_child(),
                )
            self._say(State(self.component.name, "starting", self._process.pid, restarts))
            became_ready = await self._watch(self._process, restarts)
            pause = _FIRST_PAUSE if became_ready else min(pause * 2, _LONGEST_PAUSE)
            code = self._process.returncode
            self._say(State(self.component.name, "ended", 0, restarts, f"ended with {code}"))
            if not self.ready.is_set() and restarts + 1 >= _ATTEMPTS_TO_BECOME_READY:
                self.gave_up.set()
            await asyncio.sleep(pause)

    async def first_ready(self) -> bool:
        """Waits until it is ready for the first time; False if it will never be."""
        waiting = [asyncio.create_task(event.wait()) for event in (self.ready, self.gave_up)]
        await asyncio.wait(waiting, timeout=_SECONDS_TO_BECOME_READY, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        return self.ready.is_set()

    async def _watch(self, process: asyncio.subprocess.Process, restarts: int) -> bool:
        """Until it ends. Returns whether it had become ready."""
        ended = asyncio.create_task(process.wait())
        became_ready = False
        while not ended.done():
            if not became_ready and await components.is_ready(self.component.ready) and not ended.done():
                became_ready = True
                self._say(State(self.component.name, "ready", process.pid, restarts))
                self.ready.set()
            await asyncio.wait([ended], timeout=None if became_ready else _SECONDS_BETWEEN_PROBES)
        return became_ready

    def _say(self, state: State) -> None:
        self.state = state
        self._supervisor.write_status()

    async def stop(self) -> None:
        await self._end()
        if self.component.after:
            with self._supervisor.log(self.component.name) as log:
                after = await asyncio.create_subprocess_exec(
                    *self.component.after, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
                )
            await after.wait()

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self.component.stop_seconds)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class Supervisor:
    """Everything in one folder's plan."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failure = ""
        (folder / components.LOGS).mkdir(exist_ok=True)
        self._running = [_Running(component, self) for component in components.read_plan(folder).components]

    def log(self, name: str) -> IO[bytes]:
        try:
            return (self._folder / components.LOGS / f"{name}.log").open("ab")
        except FileNotFoundError:  # as in `write_status`
            return Path(os.devnull).open("ab")

    def write_status(self) -> None:
        states = tuple(running.state for running in self._running)
        # A removed folder needs no status, but the components are still stopped in order.
        with contextlib.suppress(FileNotFoundError):
            components.write(self._folder / components.STATUS, Status(os.getpid(), states, self._failure))

    async def run(self, ended: asyncio.Event) -> int:
        """Until told to end. Returns the exit status."""
        self.write_status()
        tasks: list[asyncio.Task[None]] = []
        starting = asyncio.create_task(self._start(tasks))
        ending = asyncio.create_task(ended.wait())
        await asyncio.wait([starting, ending], return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and not self._failure:
            await ending
        for task in (starting, ending, *tasks):
            task.cancel()
        await asyncio.gather(starting, ending, *tasks, return_exceptions=True)
        for _, stage in _stages(reversed(self._running)):
            await asyncio.gather(*(running.stop() for running in stage))
        if not self._failure:
            (self._folder / components.STATUS).unlink(missing_ok=True)
        return 1 if self._failure else 0

    async def _start(self, tasks: list[asyncio.Task[None]]) -> None:
        for _, stage in _stages(self._running):
            tasks.extend(asyncio.create_task(running.keep()) for running in stage)
            for running in stage:
                if not await running.first_ready():
                    self._failure = f"{running.component.name}: did not become ready"
                    self.write_status()
                    return


def _stages(running: Iterable[_Running]) -> list[tuple[int, list[_Running]]]:
    return [(key, list(group)) for key, group in itertools.groupby(running, lambda each: each.component.stage)]


async def _main(folder: Path, owner: int | None) -> int:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if owner is not None:
        try:
            descriptor = os.pidfd_open(owner)
        except ProcessLookupError:
            return 0

        def owner_ended() -> None:
            loop.remove_reader(descriptor)  # it stays readable for ever
            ended.set()

        loop.add_reader(descriptor, owner_ended)
    return await Supervisor(folder).run(ended)


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)))
