"""A line of the log is JSON, whatever is in it, and writing it stops nothing."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.system.logs import Writer, render_json

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    for descriptor in (reading, writing):
        os.close(descriptor)


def _rendered(method: str = "info", **values: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(render_json(None, method, {"event": "test", **values}))
    return found


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", "text"),
        (7, 7),
        (Path("/dev/null"), "PosixPath('/dev/null')"),
        ("no Unicode: \udcff", "no Unicode: \udcff"),
        (2**100, 2**100),
        ("x" * 5000, "x" * 4096),
    ],
)
def test_anything_can_be_logged(value: object, shown: object) -> None:
    line = _rendered(value=value)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"level": "info", "event": "test", "value": shown}


def test_an_exception_is_shown_with_its_traceback() -> None:
    def fail() -> None:
        raise ValueError("broken")

    try:
        fail()
    except ValueError as error:
        now, later = _rendered("exception", exc_info=True), error
    assert now["level"] == "error"
    assert now["exception"].startswith("Traceback")
    assert now["exception"].endswith("ValueError: broken\n")
    assert _rendered("error", exc_info=later)["exception"].endswith("ValueError: broken\n")


async def test_the_first_line_is_written_at_once_and_those_that_follow_together(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = Writer(writing)
    writer.msg("first")
    assert os.read(reading, 100) == b"first\n"
    for number in range(3):
        writer.msg(str(number))
    readable = asyncio.Event()
    asyncio.get_running_loop().add_reader(reading, readable.set)
    await readable.wait()
    asyncio.get_running_loop().remove_reader(reading)
    assert os.read(reading, 100) == b"0\n1\n2\n"


def test_without_a_loop_every_line_is_written_at_once(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = Writer(writing)
    for text in ("one", "two"):
        writer.msg(text)
        assert os.read(reading, 100) == f"{text}\n".encode()


async def test_a_pipe_that_is_not_read_stops_nothing_and_costs_little(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = Writer(writing)
    line = "x" * 1000
    for _ in range(5000):
        writer.msg(line)
    assert 1024 * 1024 < writer._bytes < 1024 * 1024 + 2000
    read = b""
    while writer._bytes:
        read += os.read(reading, 1 << 20)
        writer.flush()
    read += os.read(reading, 1 << 20)
    assert len(read) > 1024 * 1024
    assert set(read.decode().splitlines()) == {line}, "no line is broken"


async def test_a_reader_that_is_gone_stops_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = Writer(writing)
    writer.msg("lost")
    os.close(writing)
    writer.msg("lost, too")
    writer.flush()
    assert writer._bytes == 0


async def test_no_line_of_a_thread_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    writer = Writer(descriptor)

    def log(name: str) -> None:
        for number in range(500):
            writer.msg(f"{name}-{number}")

    threads = [threading.Thread(target=log, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for number in range(500):
        writer.msg(f"loop-{number}")
        await asyncio.sleep(0)
    for thread in threads:
        thread.join()
    writer.flush()
    os.close(descriptor)
    lines = path.read_text().splitlines()
    assert sorted(lines) == sorted(f"{name}-{number}" for name in ("a", "b", "c", "loop") for number in range(500))
