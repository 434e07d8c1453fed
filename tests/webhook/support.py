"""The server in a process or a thread of its own, and clients that speak to it byte by byte."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import trustme
import uvloop

from gpuslice.admission.webhook.cluster_view import Cluster, StaticCluster
from gpuslice.admission.webhook.server import Options, Webhook
from gpuslice.http.serving_certificate import ServingCertificate
from gpuslice.pki.signing import Subject, issue
from tests.node.support import clean_environment, read_line
from tests.unit.admission.making import container, pod, review_of
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HAMI = pod(container(limits={"nvidia.com/gpumem": 1000}))
#: Asks in a dialect whose usual backend needs no claim template.
CASTSLICE = pod(container(limits={"nvidia.com/gpu": 1}), annotations={"castops.io/optimize": "true"})
MALFORMED = pod(container(limits={"tencent.com/vcuda-core": 150}))
NO_GPU = pod(container(limits={"cpu": "1"}))
UID = "e0fcbb83-7f0c-4d8b-a8c3-2d0c4f3a9d11"
JSON = {"Content-Type": "application/json"}


class Authority:
    """Issues certificates for this machine."""

    def __init__(self) -> None:
        self._authority = trustme.CA(key_type=trustme.KeyType.ECDSA)

    def issue(self) -> tuple[bytes, bytes]:
        """A certificate with its chain, and its key."""
        made = self._authority.issue_cert("localhost", "127.0.0.1", key_type=trustme.KeyType.ECDSA)
        return b"".join(part.bytes() for part in made.cert_chain_pems), made.private_key_pem.bytes()

    def write(self, folder: Path) -> tuple[Path, Path]:
        folder.mkdir(parents=True, exist_ok=True)
        paths = folder / "tls.crt", folder / "tls.key"
        for path, content in zip(paths, self.issue(), strict=True):
            path.write_bytes(content)
        return paths

    def client_context(self, client: Authority | None = None, name: str = "kube-apiserver") -> ssl.SSLContext:
        """Trusts this authority; with a client certificate of another's, if one is given."""
        context = ssl.create_default_context()
        self._authority.configure_trust(context)
        if client is not None:
            client._authority.issue_cert(common_name=name, key_type=trustme.KeyType.ECDSA).configure_cert(context)
        return context

    def use_for_serving(self, context: ssl.SSLContext) -> None:
        """A certificate that says that it is for servers, and for nothing else."""
        now = datetime.now(UTC)
        authority, authority_key = (
            pem.bytes().decode() for pem in (self._authority.cert_pem, self._authority.private_key_pem)
        )
        server = Subject(common_name="kube-apiserver", names=["kube-apiserver"])
        certificate, key = issue(authority, authority_key, server, now, now + timedelta(days=1))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "pair.pem")
            file.write_text(certificate + key)
            context.load_cert_chain(file)

    @property
    def certificate(self) -> str:
        """The authority's own."""
        return self._authority.cert_pem.bytes().decode()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def response(self) -> dict[str, Any]:
        """Of an AdmissionReview."""
        assert self.status == 200, self
        review = json.loads(self.body)
        assert review["kind"] == "AdmissionReview"
        response: dict[str, Any] = review["response"]
        return response


class Client:
    """One connection."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None, source: str = "127.0.0.1") -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS, source_address=(source, 0))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket = plain if context is None else context.wrap_socket(plain, server_hostname="127.0.0.1")
        except OSError:
            plain.close()
            raise
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> Answer:
        """The next answer."""
        line = self._file.readline()
        if not line:
            raise ConnectionResetError("the connection ended instead of an answer")
        status = int(line.split()[1])
        headers = {}
        while (line := self._file.readline().rstrip(b"\r\n")) != b"":
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return Answer(status, headers, self._file.read(int(headers.get("content-length", 0))))

    def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        self.send(request(method, path, body, headers))
        return self.receive()

    def review(self, pod: dict[str, Any] | bytes, path: str = "/mutate", **fields: Any) -> Answer:  # noqa: ANN401 - of the API
        body = pod if isinstance(pod, bytes) else review_of(pod, **fields)
        return self.ask("POST", path, body, JSON)

    def is_closed(self) -> bool:
        """Whether the server has ended it, or said something unasked: so it is looked at before its use."""
        self.socket.settimeout(0)
        try:
            self.socket.recv(1)
        except (ssl.SSLWantReadError, BlockingIOError):
            return False
        except OSError:
            return True
        finally:
            self.socket.settimeout(PATIENCE_SECONDS)
        return True

    def rest(self) -> bytes:
        """All that comes until the server closes it; waits for that."""
        received = b""
        try:
            while part := self._file.read1(65536):
                received += part
        except (ConnectionError, ssl.SSLError):
            pass
        return received


def request(method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """As the API server writes it."""
    fields = {"Host": "localhost", "Content-Length": str(len(body))} | dict(headers or {})
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


class Served:
    """A server that answers on two ports."""

    port: int
    metrics_port: int

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self._context = authority.client_context()

    def connect(self) -> Client:
        return Client(self.port, self._context)

    def connect_as(self, client: Authority, name: str = "kube-apiserver") -> Client:
        """With a certificate of that authority."""
        return self.connect_with(self.authority.client_context(client, name))

    def connect_with(self, context: ssl.SSLContext, source: str = "127.0.0.1") -> Client:
        """From one of this machine's addresses."""
        return Client(self.port, context, source)

    def plain(self, port: int | None = None) -> Client:
        """Without TLS."""
        return Client(port or self.metrics_port)

    def review(self, pod: dict[str, Any] | bytes, path: str = "/mutate", **fields: Any) -> Answer:  # noqa: ANN401 - of the API
        """On a connection of its own."""
        with self.connect() as client:
            return client.review(pod, path, **fields)

    def get(self, path: str) -> Answer:
        with self.plain() as client:
            return client.ask("GET", path)

    def metrics(self) -> dict[str, float]:
        """The samples by name, with labels as they are written."""
        lines = self.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def faults(self, reason: str) -> float:
        return self.metrics().get(f'gpuslice_webhook_faults_total{{reason="{reason}"}}', 0.0)


class WebhookProcess(Served):
    """`gpuslice webhook`, as users start it."""

    def __init__(self, command: Path, authority: Authority, folder: Path) -> None:
        super().__init__(authority)
        self._command = command
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.log = folder / "log.jsonl"
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        self.process: subprocess.Popen[str] | None = None

    def start(self, *options: str, port: int = 0, metrics_port: int = 0) -> Self:
        if not self.certificate.exists():
            self.authority.write(self.folder)
        named = ["--certificate", str(self.certificate), "--key", str(self.key), "--address", "127.0.0.1"]
        ports = ["--port", str(port), "--metrics-port", str(metrics_port)]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [str(self._command), "webhook", *named, *ports, *options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=clean_environment(),
            )
        line = read_line(self.process)
        assert "is ready" in line, line + self.log.read_text()
        self.port, self.metrics_port = map(int, re.findall(r":(\d+)[, ]", line))
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def terminate(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        code = self.process.wait(PATIENCE_SECONDS)
        self.process.stdout.close()
        return code

    def end(self) -> None:
        """However it is."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.wait()

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["event"] == name]


@dataclass
class ServerThread(Served):
    """The server in this process, with other limits than the command offers, or with a cluster of the test's."""

    authority: Authority
    options: Options
    cluster: Cluster = field(default_factory=StaticCluster)
    identity: ServingCertificate = field(default_factory=ServingCertificate)

    def __post_init__(self) -> None:
        super().__init__(self.authority)
        self._ready: Future[tuple[str, str]] = Future()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._run()), daemon=True)

    def start(self) -> Self:
        if not self.identity.loaded:
            self.identity.set_certificate(*self.authority.issue())
        self._thread.start()
        self.port, self.metrics_port = (
            int(address.rpartition(":")[2]) for address in self._ready.result(PATIENCE_SECONDS)
        )
        return self

    def call(self, function: Callable[[], object]) -> None:
        """In the server's thread."""
        self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        self.call(lambda: self._webhook.stop(hurry=True))
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the server does not stop"

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            self._webhook = Webhook(self.options, self.cluster, self.identity)
            await self._webhook.run(lambda *addresses: self._ready.set_result(addresses))
        except Exception as error:
            self._ready.set_exception(error)
            raise


def eventually(condition: Callable[[], object], what: str) -> None:
    """Waits until it holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"did not happen: {what}"
        time.sleep(0.02)
