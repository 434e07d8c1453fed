"""Waiting for what other processes do, and looking at which there are."""

from __future__ import annotations

import select
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_SECONDS = 60.0


def until(condition: Callable[[], bool], what: str) -> None:
    """Asks again and again until it holds."""
    latest = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < latest, f"did not happen: {what}"
        time.sleep(0.05)


def wait_for_end(descriptor: int) -> None:
    """Until the process of this pidfd has ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(PATIENCE_SECONDS * 1000), "the process goes on"


def processes_of(pod_uid: str) -> set[int]:
    """By the control groups that the kubelet made for the pod."""
    files = Path("/sys/fs/cgroup").glob(f"**/*{pod_uid}*/**/cgroup.procs")
    return {int(process) for file in files for process in file.read_text().split()}
