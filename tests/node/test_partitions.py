"""MIG partitions: made where they were allocated, destroyed when they are ours, and repaired after a crash."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pynvml
import pytest

from gpuslice.node.gpus import mig
from gpuslice.node.gpus.partitions import PartitionError, Partitions
from tests.native import nvml
from tests.native.inside import on_machine, python_path
from tests.native.worker import worker
from tests.node.support import read_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support import Simulated


@contextmanager
def partitions() -> Iterator[Partitions]:
    with tempfile.TemporaryDirectory(prefix="gpuslice-test.") as name:
        yield Partitions(Path(name) / "partitions")


def uuid(index: int = 0) -> str:
    return str(pynvml.nvmlDeviceGetUUID(nvml.gpu(index)))


def places(index: int = 0) -> list[tuple[str, int]]:
    device = nvml.gpu(index)
    return [(one.profile, one.placement.start) for _, one in mig.instances(device, mig.profiles(device))]


@contextmanager
def refused(code: str) -> Iterator[None]:
    with pytest.raises(PartitionError) as error:
        yield
    assert error.value.code == code, error.value


@on_machine()
def test_a_partition_is_made_at_its_place_and_mig_mode_switched_on_for_it() -> None:
    with partitions() as ours:
        made = ours.make(uuid(), "2g.10gb", 2)
        device = pynvml.nvmlDeviceGetHandleByUUID(made)
        assert pynvml.nvmlDeviceGetName(device) == "NVIDIA A100-SXM4-40GB MIG 2g.10gb"
        assert places() == [("2g.10gb", 2)]
        (record,) = ours.ours()
        assert (record.gpu_uuid, record.profile, record.start, record.mig_uuid) == (uuid(), "2g.10gb", 2, made)


@on_machine("1xH100-80GB")
def test_every_profile_can_be_made_at_every_place() -> None:
    with partitions() as ours:
        for profile in mig.profiles(nvml.gpu()):
            for place in profile.placements:
                made = ours.make(uuid(), profile.name, place.start)
                attributes = pynvml.nvmlDeviceGetAttributes(pynvml.nvmlDeviceGetHandleByUUID(made))
                assert attributes.computeInstanceSliceCount == profile.compute_slices
                ours.destroy(made)
        assert places() == []


@on_machine()
def test_asking_again_gives_the_same_partition_and_destroying_again_does_nothing() -> None:
    with partitions() as ours:
        made = ours.make(uuid(), "1g.5gb", 6)
        assert ours.make(uuid(), "1g.5gb", 6) == made
        ours.destroy(made)
        ours.destroy(made)
        assert (places(), ours.ours()) == ([], [])


@on_machine()
def test_what_another_program_made_is_left_alone() -> None:
    device = nvml.gpu()
    nvml.enable_mig(device)
    foreign = pynvml.nvmlDeviceGetUUID(nvml.create_mig_device(device, 19))  # at 6
    with partitions() as ours:
        with refused("foreign"):
            ours.make(uuid(), "1g.5gb", 6)
        with refused("foreign"):
            ours.destroy(foreign)
        with refused("nvml"):
            ours.make(uuid(), "1g.10gb", 6)
        with refused("partitioned"):
            ours.share(uuid())
        assert ours.repair() == []
        assert (places(), ours.ours()) == ([("1g.5gb", 6)], [])


@on_machine("1xA100-40GB,1xT4")
def test_what_cannot_be_is_refused_with_the_reason() -> None:
    with partitions() as ours:
        for code, gpu, profile, start, words in (
            ("gpu", "GPU-00000000-0000-0000-0000-000000000000", "1g.5gb", 0, "there is no GPU"),
            ("profile", uuid(0), "9g.90gb", 0, "1g.5gb, "),
            ("profile", uuid(1), "1g.5gb", 0, "no MIG profiles"),
            ("placement", uuid(0), "3g.20gb", 2, "starts at 0, 4, not at 2"),
        ):
            with pytest.raises(PartitionError, match=words) as error:
                ours.make(gpu, profile, start)
            assert error.value.code == code
        assert ours.ours() == []


@on_machine()
def test_mig_mode_is_switched_off_for_sharing_once_nothing_is_left() -> None:
    with partitions() as ours:
        made = ours.make(uuid(), "1g.5gb", 0)
        with refused("partitioned"):
            ours.share(uuid())
        ours.destroy(made)
        ours.share(uuid())
        assert pynvml.nvmlDeviceGetMigMode(nvml.gpu()) == [0, 0]
        ours.share(uuid())


@on_machine("1xT4")
def test_a_gpu_without_mig_can_always_be_shared() -> None:
    with partitions() as ours:
        ours.share(uuid())


def test_a_gpu_in_use_keeps_its_mode_and_says_so(simulated: Simulated, tmp_path: Path) -> None:
    machine = simulated("1xA100-40GB")
    program = f"""
import pynvml
from pathlib import Path
from gpuslice.node.gpus.partitions import PartitionError, Partitions
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
uuid = pynvml.nvmlDeviceGetUUID(gpu)
ours = Partitions(Path({str(tmp_path)!r}))
try:
    print(ours.make(uuid, "1g.5gb", 0))
except PartitionError as error:
    print(error.code, pynvml.nvmlDeviceGetMigMode(gpu), ours.ours(), ours.unswitchable == {{uuid}})
"""
    with worker(machine) as process:
        process.do("available")  # it has a context now
        told = machine.run([sys.executable, "-c", program], extra=python_path()).stdout.strip()
    assert told == "mode [0, 0] [] True"
    assert machine.run([sys.executable, "-c", program], extra=python_path()).stdout.startswith("MIG-")


class CrashError(BaseException):
    """The agent ends here: nothing that would catch an error sees it."""


#: What the agent is about to do when it dies, and whether it is done first.
STEPS = ["create before", "create after", "fill before", "fill after"]


@contextmanager
def crashing(step: str) -> Iterator[None]:
    """The agent dies there."""
    function, moment = step.split()
    real = getattr(mig, function)

    def crash(*arguments: Any) -> None:  # noqa: ANN401 - whatever the real one takes
        if moment == "after":
            real(*arguments)
        raise CrashError

    with mock.patch.object(mig, function, crash), pytest.raises(CrashError):
        yield


@pytest.mark.parametrize("step", STEPS)
@on_machine()
def test_a_crash_while_making_is_undone_by_the_next_start(step: str) -> None:
    with partitions() as ours:
        kept = ours.make(uuid(), "1g.5gb", 6)
        with crashing(step):
            ours.make(uuid(), "2g.10gb", 0)
        assert len(ours.ours()) == 2
        again = Partitions(ours._folder)
        assert again.repair() == []
        assert (places(), [one.mig_uuid for one in again.ours()]) == ([("1g.5gb", 6)], [kept])


@pytest.mark.parametrize("step", STEPS)
@on_machine()
def test_asking_again_after_a_crash_makes_it_whole(step: str) -> None:
    with partitions() as ours:
        with crashing(step):
            ours.make(uuid(), "2g.10gb", 0)
        made = Partitions(ours._folder).make(uuid(), "2g.10gb", 0)
        assert places() == [("2g.10gb", 0)]
        assert [one.mig_uuid for one in ours.ours()] == [made]


@on_machine()
def test_a_crash_while_destroying_is_finished_by_the_next_start() -> None:
    with partitions() as ours:
        made = ours.make(uuid(), "2g.10gb", 0)
        with mock.patch.object(pynvml, "nvmlGpuInstanceDestroy", side_effect=CrashError), pytest.raises(CrashError):
            ours.destroy(made)
        assert places() == [("2g.10gb", 0)]
        assert [one.mig_uuid for one in Partitions(ours._folder).repair()] == [made]
        assert (places(), ours.ours()) == ([], [])


@on_machine()
def test_a_partition_that_was_taken_away_is_reported_and_forgotten() -> None:
    with partitions() as ours:
        made = ours.make(uuid(), "1g.5gb", 0)
        ((instance, _),) = mig.instances(nvml.gpu(), mig.profiles(nvml.gpu()))
        mig.destroy(instance)
        assert [one.mig_uuid for one in ours.repair()] == [made]
        assert ours.ours() == []
        assert ours.make(uuid(), "1g.5gb", 0) == made


@on_machine()
def test_partitions_of_an_earlier_boot_are_gone_even_if_their_places_are_taken() -> None:
    with partitions() as ours:
        made = ours.make(uuid(), "1g.5gb", 0)
        ours._boot_id = "another"
        assert [one.mig_uuid for one in ours.repair()] == [made]
        assert places() == [("1g.5gb", 0)]


@on_machine()
def test_a_bad_record_stops_only_the_work_on_its_own_place() -> None:
    with partitions() as ours:
        ours.make(uuid(), "1g.5gb", 0)
        (ours._folder / f"{uuid()}_1g.5gb_1.json").write_text("{")
        ours.make(uuid(), "1g.5gb", 2)
        with refused("record"):
            ours.make(uuid(), "1g.5gb", 1)
        assert len(ours.ours()) == 2


@on_machine()
def test_seven_are_made_and_destroyed_at_once() -> None:
    with partitions() as ours:
        made: list[str] = []
        threads = [
            threading.Thread(target=lambda start=start: made.append(ours.make(uuid(), "1g.5gb", start)))
            for start in range(7)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(made)) == len(places()) == 7
        for one in made:
            ours.destroy(one)
        assert places() == []


def test_killed_at_any_moment_nothing_is_left_that_is_not_on_record(simulated: Simulated, tmp_path: Path) -> None:
    machine = simulated("1xA100-40GB")
    preamble = f"""
import pynvml, random
from pathlib import Path
from gpuslice.node.gpus import mig
from gpuslice.node.gpus.partitions import Partitions
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
uuid = pynvml.nvmlDeviceGetUUID(gpu)
ours = Partitions(Path({str(tmp_path / "partitions")!r}))
"""
    churn = """
ours.repair()
while True:
    made = ours.make(uuid, "1g.5gb", random.randrange(7))
    if random.random() < 0.7:
        ours.destroy(made)
    print("still here", flush=True)
"""
    check = """
ours.repair()
there = {(one.profile, one.placement.start, one.mig_uuids[0]) for _, one in mig.instances(gpu, mig.profiles(gpu))}
assert there == {(one.profile, one.start, one.mig_uuid) for one in ours.ours()}, there
"""
    for rounds in range(8):
        process = machine.start([sys.executable, "-c", preamble + churn], **python_path())
        try:
            for _ in range(1 + 3 * rounds):
                assert read_line(process) == "still here"
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        machine.run([sys.executable, "-c", preamble + check], extra=python_path())
