"""Fixtures that every test may use, and what this repository asks of all tests."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from gpuslice.simulator import configuration, machine
from gpuslice.simulator.configuration import Driver
from gpuslice_cluster import clusters
from tests import interruptions
from tests.scheduling import GroupScheduling
from tests.support import Simulated, SimulatedMachine

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

# A busy machine is no failure: no test depends on how fast it is. In CI the examples are the same each time, so that
# what fails there is what the change broke; at a developer's they differ.
hypothesis.settings.register_profile(
    "gpuslice",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=os.environ.get("CI") == "true",
)
hypothesis.settings.load_profile("gpuslice")

interruptions.prepare()
_workers: list[int] = []

# Unique in this run and between runs side by side, so that tests run in parallel and leftovers are known as ours.
_PREFIX = f"test-{os.getpid()}-"
_numbers = itertools.count()


@pytest.fixture
def simulated() -> Iterator[Simulated]:
    """Makes simulated machines that end with the test."""
    with ExitStack() as stack:

        def make(
            gpus: str = "1xA100-40GB",
            *,
            context_bytes: int = 0,
            kernel_ns: int = 2000,
            wave_ns: int = 1000,
            driver: Driver | None = None,
        ) -> SimulatedMachine:
            plain = configuration.from_text(gpus, name=f"{_PREFIX}{next(_numbers)}")
            made = machine.create(
                dataclasses.replace(
                    plain,
                    gpus=tuple(dataclasses.replace(gpu, context_bytes=context_bytes) for gpu in plain.gpus),
                    kernel_ns=kernel_ns,
                    wave_ns=wave_ns,
                    driver=driver or Driver(),
                )
            )
            stack.callback(_destroy, made)
            return SimulatedMachine(made)

        yield make


@pytest.fixture
def machine_name() -> Iterator[str]:
    """A name for a machine that the test itself makes; if it is up at the end, it is removed."""
    name = f"{_PREFIX}{next(_numbers)}"
    yield name
    for found in machine.machines():
        if found.name == name:
            found.destroy()


@pytest.fixture(scope="session")
def gpuslice_command() -> Path:
    """The installed command."""
    command = Path(sys.executable).parent / "gpuslice"
    assert command.is_file(), "gpuslice is not installed: run `make setup`"
    return command


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    _remove_what_killed_runs_left()
    yield
    left = sorted(str(path) for path in machine.ROOT.glob(f"*gpuslice-sim.{_PREFIX}*"))
    assert not left, f"tests left simulated machines behind: {left}"


def _remove_what_killed_runs_left() -> None:
    for path in machine.ROOT.glob("*gpuslice-sim.test-*"):
        named = re.search(r"gpuslice-sim\.test-(\d+)-", path.name)
        if named is not None and not Path("/proc", named[1]).exists():
            shutil.rmtree(path, ignore_errors=True)  # another worker may be at it


def _destroy(made: machine.Machine) -> None:
    if made.directory.exists():  # a test may have taken it down
        made.destroy()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: Any) -> None:  # noqa: ANN401  # pytest-xdist has no types, nor another way to this number
    _workers.append(node.gateway._io.popen.pid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:  # noqa: ANN401
    return GroupScheduling(config, log)


def pytest_keyboard_interrupt() -> None:
    interruptions.pass_on(_workers)


def pytest_unconfigure() -> None:
    """Ends the clusters of the run with this process: nothing of them is left when it has ended."""
    clusters.end_all_of(os.getpid())


# A skipped test is a promise not kept: where everything is installed (CI), it is a failure.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report)
    return report


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    expected_to_fail = hasattr(report, "wasxfail")
    if os.environ.get("CI") == "true" and report.skipped and not expected_to_fail:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"CI accepts no skip: {reason}"
