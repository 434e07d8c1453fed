"""What a node agent sees of Kubernetes, for tests.

The kubelet's calls come over the agent's real sockets; the API server knows nothing but claims.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import grpc
import msgspec
import yaml

from gpuslice.model import devices
from gpuslice.node.kubelet.generated import dra_health_pb2, dra_pb2, registration_pb2
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.message import Message

_M = TypeVar("_M", bound="Message")
NODE = "node-1"
POOL = "node-1/gpuslice"


# ---- claims ----


@dataclass(frozen=True)
class Share:
    """A device of a claim, as the scheduler allocates it."""

    device: str
    memory: str | None = None
    cores: int | None = None
    request: str = "gpu"
    share_id: str | None = None
    pool: str = POOL
    driver: str = devices.DRIVER
    admin: bool = False

    def result(self) -> dict[str, Any]:
        capacity = {"memory": self.memory, "cores": None if self.cores is None else str(self.cores)}
        consumed = {name: amount for name, amount in capacity.items() if amount is not None}
        result = {"request": self.request, "driver": self.driver, "pool": self.pool, "device": self.device}
        return (
            result
            | ({"consumedCapacity": consumed} if consumed else {})
            | ({"shareID": self.share_id} if self.share_id else {})
            | ({"adminAccess": True} if self.admin else {})
        )


@dataclass(frozen=True)
class TestClaim:
    """A claim that one pod uses."""

    __test__ = False

    name: str
    uid: str
    shares: tuple[Share, ...]
    pod: str = "trainer-0"
    namespace: str = "team"
    pod_uid: str = "12345678-0000-4000-8000-000000000000"

    def document(self) -> dict[str, Any]:
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"namespace": self.namespace, "name": self.name, "uid": self.uid},
            "spec": {},
            "status": {
                "allocation": {"devices": {"results": [share.result() for share in self.shares]}},
                "reservedFor": [{"resource": "pods", "name": self.pod, "uid": self.pod_uid}],
            },
        }

    def message(self) -> dra_pb2.Claim:
        return dra_pb2.Claim(namespace=self.namespace, name=self.name, uid=self.uid)


@dataclass
class ClaimServer:
    """Answers for claims and tokens over HTTP as the API server does; everything else is not found."""

    folder: Path
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: By claim: what was written into its status.
    reported: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    reads: int = 0
    #: By bearer token; and what accounts may do: account, path, verb.
    accounts: dict[str, str] = field(default_factory=dict)
    allowed: set[tuple[str, str, str]] = field(default_factory=set)
    token_reviews: int = 0
    decides: bool = True
    #: What becomes of ResourceSlices: kept whole, without devices that claims share, or not known at all (None); else
    #: the status with which they are refused.
    slices: Literal["whole", "unshared"] | int | None = "whole"
    #: Waits before each answer, so that tests decide when a read ends.
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()
        claims = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet, or the second waits for the first to be acknowledged

            def do_GET(self) -> None:
                if "/resourceclaims/" in self.path:
                    claims.reads += 1
                    claims.gate.wait(PATIENCE_SECONDS)
                self._answer(claims.claims.get(self.path.rpartition("/")[2]))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                path, document = self.path.partition("?")[0], msgspec.json.decode(body)
                if path.endswith("/resourceslices"):
                    refusal = claims.slices if isinstance(claims.slices, int) else None
                    self._answer(claims.made(document), refusal)
                else:
                    self._answer(claims.review(path.rpartition("/")[2], document.get("spec", {})))

            def do_PATCH(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                name = self.path.partition("?")[0].removesuffix("/status").rpartition("/")[2]
                if name in claims.claims:
                    claims.reported[name] = msgspec.json.decode(body)["status"]["devices"]
                self._answer(claims.claims.get(name))

            def _answer(self, document: dict[str, Any] | None, refusal: int | None = None) -> None:
                code = refusal or 404
                refused = {"kind": "Status", "code": code, "reason": "NotFound" if code == 404 else "", "message": ""}
                content = msgspec.json.encode(document or refused)
                self.send_response(200 if document else code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_arguments: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_arguments: object) -> None:
                pass  # an agent that is killed does not say goodbye

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "agent"}}],
                    "clusters": [
                        {"name": "test", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}
                    ],
                    "users": [{"name": "agent", "user": {}}],
                }
            )
        )

    def made(self, document: dict[str, Any]) -> dict[str, Any] | None:
        """What a ResourceSlice becomes."""
        if self.slices == "unshared":
            for device in document["spec"]["devices"]:
                del device["allowMultipleAllocations"]
        return document if isinstance(self.slices, str) else None

    def review(self, kind: str, spec: dict[str, Any]) -> dict[str, Any] | None:
        """What the API server says to a TokenReview or a SubjectAccessReview."""
        if not self.decides:
            return None
        if kind == "tokenreviews":
            self.token_reviews += 1
            user = self.accounts.get(spec["token"])
            return {"status": {"authenticated": user is not None, "user": {"username": user or ""}}}
        if kind == "subjectaccessreviews":
            wanted = spec["nonResourceAttributes"]
            return {"status": {"allowed": (spec["user"], wanted["path"], wanted["verb"]) in self.allowed}}
        return None

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def put(self, claim: TestClaim) -> TestClaim:
        self.claims[claim.name] = claim.document()
        return claim

    def close(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


# ---- the kubelet ----


@dataclass
class Kubelet:
    """The kubelet's side of the plugin's sockets."""

    folder: Path

    @property
    def registration_socket(self) -> Path:
        return self.folder / "plugins_registry" / f"{devices.DRIVER}-reg.sock"

    def information(self) -> registration_pb2.PluginInfo:
        """What the plugin says of itself."""
        return call(
            self.registration_socket,
            "/pluginregistration.Registration/GetInfo",
            registration_pb2.InfoRequest(),
            registration_pb2.PluginInfo,
        )

    def tell_registered(self, error: str = "") -> None:
        call(
            self.registration_socket,
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            registration_pb2.RegistrationStatus(plugin_registered=not error, error=error),
            registration_pb2.RegistrationStatusResponse,
        )

    @property
    def endpoint(self) -> Path:
        return self.folder / "plugins" / devices.DRIVER / "dra.sock"

    @contextmanager
    def health(self) -> Iterator[Iterator[dict[str, int]]]:
        """The health of the devices by name, each time that the plugin tells it."""
        with grpc.insecure_channel(f"unix:{self.endpoint}") as channel:
            watch = channel.unary_stream(
                "/v1alpha1.DRAResourceHealth/NodeWatchResources",
                request_serializer=dra_health_pb2.NodeWatchResourcesRequest.SerializeToString,
                response_deserializer=dra_health_pb2.NodeWatchResourcesResponse.FromString,
            )
            answers = watch(dra_health_pb2.NodeWatchResourcesRequest(), timeout=2 * PATIENCE_SECONDS)
            yield ({each.device.device_name: each.health for each in answer.devices} for answer in answers)
            answers.cancel()

    def prepare(self, *claims: TestClaim) -> dict[str, dra_pb2.NodePrepareResourceResponse]:
        """The answers, by UID."""
        answer = call(
            self.endpoint,
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            dra_pb2.NodePrepareResourcesRequest(claims=[claim.message() for claim in claims]),
            dra_pb2.NodePrepareResourcesResponse,
        )
        return dict(answer.claims)

    def prepared(self, claim: TestClaim) -> list[dra_pb2.Device]:
        """The devices of a claim that must be prepared without trouble."""
        answer = self.prepare(claim)[claim.uid]
        assert not answer.error, answer.error
        return list(answer.devices)

    def unprepare(self, *claims: TestClaim) -> dict[str, str]:
        """The errors, by UID."""
        answer = call(
            self.endpoint,
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            dra_pb2.NodeUnprepareResourcesRequest(claims=[claim.message() for claim in claims]),
            dra_pb2.NodeUnprepareResourcesResponse,
        )
        return {uid: result.error for uid, result in answer.claims.items()}


def call(socket: Path, method: str, request: Message, answer: type[_M]) -> _M:
    """One call on a connection of its own."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        made = channel.unary_unary(
            method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        result: _M = made(request, timeout=PATIENCE_SECONDS)
        return result
