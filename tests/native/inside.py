"""Tests that run on a simulated machine.

A process opens one machine and keeps it, so each of these tests has a process of its own, with NVML initialized. What
it raises fails the test, shown with the local variables of the body.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import sys
import traceback
from typing import TYPE_CHECKING

import pynvml

from tests.native.building import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Simulated


def on_machine(gpus: str = "1xA100-40GB") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs the test in a process on a machine of those GPUs. Its arguments may come from parametrize."""

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(body)
        def test(simulated: Simulated, **arguments: object) -> None:
            command = [sys.executable, "-m", __name__, body.__module__, body.__name__, json.dumps(arguments)]
            done = simulated(gpus).run(command, check=False, extra=python_path())
            if done.returncode != 0:
                raise AssertionError(f"in its process, the test ended with {done.returncode}\n{done.stderr}")

        own = inspect.Parameter("simulated", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        signature = inspect.signature(body)
        test.__signature__ = signature.replace(parameters=[own, *signature.parameters.values()])  # type: ignore[attr-defined]
        return test

    return decorate


def python_path() -> dict[str, str]:
    """What makes the folder of tests a package in another process, wherever it starts."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}


def _main(module: str, name: str, arguments: str) -> int:
    body = inspect.unwrap(getattr(importlib.import_module(module), name))
    pynvml.nvmlInit()
    try:
        body(**json.loads(arguments))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent shows it
        story = traceback.TracebackException.from_exception(error, capture_locals=True)
        sys.stderr.write("".join(story.format()))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
