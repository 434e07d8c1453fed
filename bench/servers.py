"""Webhook servers for benchmarks: ours, and a peer of the usual design in Go (bench/peer), under the same load.

The peer and the load generator are built once, into a cache outside the checkout, under a name that holds their
sources' hash: a change is a new build, and checkouts share them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trustme

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SOURCES: Final = Path(__file__).resolve().parent / "peer"
_CONNECTIONS: Final = 25  # what an API server keeps open to a webhook
_SECONDS_TO_START: Final = 30.0
_CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
_MB: Final = 1_000_000


def build_peer() -> Path:
    """The folder with the programs `webhook` and `load`."""
    sources = sorted(path for path in _SOURCES.rglob("*") if path.suffix == ".go" or path.name in ("go.mod", "go.sum"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    cache = Path(os.environ.get("GPUSLICE_CACHE") or Path.home() / ".cache" / "gpuslice") / "bench"
    cache.mkdir(parents=True, exist_ok=True)
    built = cache / f"peer-{digest}"
    with (cache / f"{built.name}.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # another checkout may be building it now
        if not built.exists():
            _build(built)
    return built


def _build(destination: Path) -> None:
    if shutil.which("go") is None:
        raise SystemExit("error: the peer needs Go 1.26; install it, or leave this benchmark out")
    print(f"==> Building the webhook in Go for comparison into {destination}", flush=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as work:
        command = ["go", "build", "-v", "-trimpath", "-ldflags=-s -w", "-o", f"{work}/", "./cmd/..."]
        environment = os.environ | {"CGO_ENABLED": "0"}
        with subprocess.Popen(
            command, cwd=_SOURCES, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as building:
            assert building.stdout is not None
            lines = []
            for line in building.stdout:
                lines.append(line)
                if sys.stdout.isatty():
                    print(f"\r\033[K    {len(lines)}: {line.strip()[:90]}", end="", flush=True)
            print("\r\033[K" if sys.stdout.isatty() else f"    {len(lines)} packages", flush=True)
        if building.returncode:
            raise SystemExit("error: the peer cannot be built:\n" + "".join(lines[-20:]))
        finished = Path(work) / "finished"
        finished.mkdir()
        for name in ("webhook", "load"):
            (Path(work) / name).rename(finished / name)
        finished.rename(destination)


@dataclass(frozen=True)
class Certificates:
    """A folder with `tls.crt` and `tls.key` for localhost, and `ca.crt`, which vouches for them."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.folder / "tls.crt"

    @property
    def key(self) -> Path:
        return self.folder / "tls.key"

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        authority = trustme.CA()
        pair = authority.issue_cert("localhost", "127.0.0.1")
        made = cls(folder)
        authority.cert_pem.write_to_path(made.authority)
        pair.cert_chain_pems[0].write_to_path(made.certificate)
        pair.private_key_pem.write_to_path(made.key)
        return made


@dataclass(frozen=True)
class Server:
    """A running webhook."""

    process: subprocess.Popen[bytes]
    port: int
    path: str

    def processor_seconds(self) -> float:
        return processor_seconds(self.process.pid)

    def resident_megabytes(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:")) / _MB


def processor_seconds(pid: int) -> float:
    """That the process has used since it was started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


@contextmanager
def peer(certificates: Certificates, programs: Path) -> Iterator[Server]:
    port = free_port()
    command = [str(programs / "webhook"), f"-port={port}", f"-certificates={certificates.folder}"]
    with _running(command, port, "/mutate") as server:
        yield server


@contextmanager
def ours(certificates: Certificates, *options: str) -> Iterator[Server]:
    """`gpuslice webhook`; without options it knows no cluster."""
    port = free_port()
    command = [
        *(str(Path(sys.executable).parent / "gpuslice"), "webhook"),
        *("--address=127.0.0.1", f"--port={port}", "--metrics-port=0", "--drain=0s"),
        *(f"--certificate={certificates.certificate}", f"--key={certificates.key}", *options),
    ]
    with _running(command, port, "/mutate") as server:
        yield server


@contextmanager
def _running(command: Sequence[str], port: int, path: str) -> Iterator[Server]:
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + _SECONDS_TO_START
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise SystemExit(f"error: {command[0]} does not start:\n{log.read().decode()[-2000:]}")
                time.sleep(0.05)
            yield Server(process, port, path)
        finally:
            process.terminate()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


@dataclass(frozen=True)
class Load:
    """What came of sending reviews as fast as they are answered."""

    per_second: float
    processor_microseconds: float
    p50_ms: float
    p99_ms: float


class Generator:
    """Sends the reviews of a file, in turn, over keep-alive connections."""

    def __init__(self, programs: Path, certificates: Certificates, reviews: Sequence[bytes], folder: Path) -> None:
        self._file = folder / f"reviews-{id(self)}"
        self._file.write_bytes(b"\n".join(reviews))
        self._command = [
            *(str(programs / "load"), f"-bodies={self._file}", f"-authority={certificates.authority}"),
            f"-connections={_CONNECTIONS}",
        ]

    def run(self, server: Server, *, seconds: float, warm_up: float, expect: str = '"patch":') -> Load:
        command = [
            *(*self._command, f"-address=127.0.0.1:{server.port}", f"-path={server.path}", f"-expect={expect}"),
            *(f"-duration={seconds}s", f"-warm-up={warm_up}s"),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sending:
            assert sending.stdout is not None
            taken = []
            for expected in ("begin", "end"):
                assert sending.stdout.readline().strip() == expected, "the load generator failed; see above"
                taken.append(server.processor_seconds())
            report = json.loads(sending.stdout.readline())
        if report["failed"]:
            raise SystemExit(f"error: {report['failed']} connections failed: {report.get('failure')}")
        return Load(
            per_second=report["reviews"] / report["seconds"],
            processor_microseconds=(taken[1] - taken[0]) / report["reviews"] * 1e6,
            p50_ms=report["p50_ms"],
            p99_ms=report["p99_ms"],
        )
