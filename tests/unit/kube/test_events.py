"""The recorder of events ends with what goes wrong in any part of it, and not in silence."""

from __future__ import annotations

import asyncio

import pytest

from gpuslice.kube.client.api import Api
from gpuslice.kube.client.credentials import Credentials
from gpuslice.kube.events import Recorder
from tests import fake_time


@pytest.mark.parametrize("part", ["_tell_repeats", "_write"])
def test_a_failure_in_a_part_of_the_recorder_is_the_recorders(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(Api(Credentials(server="http://127.0.0.1:1", tls=None), "tests"), "tests", "tests")

    async def fail(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(recorder, part, fail)

    async def run() -> None:
        if part == "_write":
            recorder._waiting.put_nowait(None)  # type: ignore[arg-type]  # it is never looked at
        async with asyncio.timeout(3600):
            await recorder.run()

    with pytest.raises(ExceptionGroup) as failure:
        fake_time.run(run())
    assert failure.group_contains(KeyError)
