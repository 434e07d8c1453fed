"""The webhook with certificates of cert-manager: made, trusted, and renewed while the real API server calls it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import ssl
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gpuslice.installing import configuration
from gpuslice.installing.options import WEBHOOK
from gpuslice.kube.resources import PODS
from gpuslice_cluster.binaries import folder as programs
from gpuslice_cluster.binaries import program
from gpuslice_cluster.clusters import ClusterError
from tests.cluster.kube.support import install_policies, policy, reach
from tests.cluster.served import GPUSLICE, Served, end
from tests.cluster.webhooks import bundles, listed
from tests.waiting import eventually, until
from tests.webhook.support import CASTSLICE, NO_GPU, Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from gpuslice.kube.client.api import Api
    from gpuslice_cluster.clusters import Cluster

Object = dict[str, Any]

AUTHORITY = f"{WEBHOOK}-authority"
#: Pods that are made in a state of things before the next one.
PODS_PER_STEP = 20


@pytest.fixture
def system(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[str]:
    """A namespace for gpuslice itself, where cert-manager makes certificates."""
    definitions = str(programs() / "cert-manager.yaml")
    cluster.kubectl("apply", "--server-side", "-f", definitions)
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", definitions)
    name = f"{namespace}-system"
    # Confined to the namespace: other tests share the API server.
    command = [str(program("cert-manager")), f"--kubeconfig={cluster.kubeconfig}", f"--namespace={name}"]
    with (tmp_path / "cert-manager.log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, text=True)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
    end(process)


@pytest.fixture
def installed(cluster: Cluster, system: str, namespace: str, tmp_path: Path) -> Iterator[Installation]:
    install_policies(cluster)
    objects = _manifests(system, namespace)
    deployments = [each for each in objects if each["kind"] == "Deployment"]
    served = Served(cluster, tmp_path, namespace)
    objects = [each for each in objects if each["kind"] != "Deployment"] + [_endpoint(system, served.ports[0])]
    made = Installation(served, system, objects, deployments[0]["spec"]["template"]["spec"])
    try:
        made.apply()
        made.start()
        yield made
    finally:
        served.stop()
        cluster.kubectl("delete", "--wait=false", "--ignore-not-found", "-f", "-", input=listed(objects))


async def test_the_api_server_trusts_what_cert_manager_made(installed: Installation, api: Api) -> None:
    authority = installed.secret(WEBHOOK)["ca.crt"]
    await until(lambda: installed.is_trusted(api, authority), "that bundles are injected")
    await until(lambda: _is_rewritten(api, installed.namespace), "that the webhook is called")

    installed.apply()
    assert await installed.is_trusted(api, authority), "an upgrade leaves the bundles as they are"

    # By the other configuration's bundle.
    broken = policy(installed.namespace, {"name": "rule", "match": {"expression": "object.spec &&"}})
    broken["metadata"]["labels"] = {"test": installed.namespace}
    with pytest.raises(ClusterError, match=r"admission webhook .* denied the request"):
        installed.cluster.kubectl("create", "-f", "-", "--dry-run=server", input=json.dumps(broken))


@pytest.mark.parametrize("with_authority", [False, True], ids=["certificate", "certificate-and-authority"])
async def test_a_renewal_leaves_no_pod_alone_and_drops_no_connection(
    installed: Installation, api: Api, *, with_authority: bool
) -> None:
    await until(lambda: _is_rewritten(api, installed.namespace), "that the webhook is called")
    before = installed.secret(WEBHOOK)
    authority = installed.secret(AUTHORITY)
    with installed.connect() as connection:
        assert connection.review(NO_GPU).response["allowed"]
        async with _Creating(api, installed.namespace) as pods:
            if with_authority:
                await asyncio.to_thread(installed.renew, AUTHORITY)
                assert installed.secret(AUTHORITY)["tls.crt"] != authority["tls.crt"]
                await pods.more()
            await asyncio.to_thread(installed.renew, WEBHOOK)
            after = installed.secret(WEBHOOK)
            assert after["tls.crt"] != before["tls.crt"]
            assert (after["ca.crt"] != before["ca.crt"]) == with_authority

            # The kubelet takes up to a minute: the API server trusts by the new Secret while we serve by the old one.
            # A client with the new authority alone, as after cert-manager replaced a bundle, trusts us as well.
            await until(lambda: installed.is_trusted(api, after["ca.crt"]), "that bundles have the new authority")
            await pods.more()
            assert installed.is_shown(before)
            installed.mount()
            await until(lambda: asyncio.to_thread(installed.is_shown, after), "that the new one is served")
            await pods.more()
        assert connection.review(NO_GPU).response["allowed"]
        assert _shown(connection) == _leaf(before)


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[Api]:
    async with reach(cluster) as connected:
        yield connected


@dataclass
class Installation:
    """What `gpuslice manifests` printed. In place of the kubelet, we start the webhook and mount its Secret."""

    served: Served
    system: str
    objects: list[Object]
    #: Of the Deployment, which is not among the objects: there are no nodes.
    pod: Object

    @property
    def cluster(self) -> Cluster:
        return self.served.cluster

    @property
    def namespace(self) -> str:
        """Where pods are rewritten."""
        return self.served.namespace

    def apply(self) -> None:
        self.cluster.kubectl("apply", "-f", "-", input=listed(self.objects))

    def start(self) -> None:
        """With the rights, and by the files, that are printed."""
        (container,) = self.pod["containers"]
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == "tls")
        (stored,) = (each["data"] for each in self.objects if each["metadata"]["name"] == configuration.NAME)
        said = yaml.safe_load(stored[configuration.FILE])["webhook"]
        files = {name: said[name].replace(mount["mountPath"], str(self._folder)) for name in ("certificate", "key")}
        self._folder.mkdir()
        self._wait_until_ready(WEBHOOK)
        self.mount()
        self.served.start(kubeconfig=str(self._kubeconfig()), **files)

    def mount(self) -> None:
        """As the kubelet does it: all files of a Secret change at once, with one link."""
        (volume,) = (each for each in self.pod["volumes"] if each["name"] == "tls")
        current = self._folder / "..data"
        old = current.resolve() if current.exists() else None
        made = Path(tempfile.mkdtemp(prefix="..", dir=self._folder))
        for name, content in self.secret(volume["secret"]["secretName"]).items():
            (made / name).write_text(content)
            with contextlib.suppress(FileExistsError):
                (self._folder / name).symlink_to(f"..data/{name}")
        link = self._folder / "..data_tmp"
        link.symlink_to(made.name)
        link.rename(current)
        if old is not None:
            shutil.rmtree(old)

    def renew(self, certificate: str) -> None:
        """As cert-manager's own command line does it; returns when that is done."""

        def revision() -> int:
            return int(self._certificate(certificate)["status"]["revision"])

        before = revision()
        wanted = {
            "apiVersion": "cert-manager.io/v1",
            "kind": "Certificate",
            "metadata": {"name": certificate, "namespace": self.system},
            "status": {"conditions": [{"type": "Issuing", "status": "True", "reason": "ManuallyTriggered"}]},
        }
        options = ("--server-side", "--subresource=status", "--force-conflicts")
        self.cluster.kubectl("apply", *options, "-f", "-", input=json.dumps(wanted))
        # By more than one, if its controllers cross with each other.
        eventually(lambda: revision() > before, f"that {certificate} is issued anew")
        self._wait_until_ready(certificate)

    def secret(self, name: str) -> dict[str, str]:
        found = json.loads(self.cluster.kubectl("get", "secret", name, "-n", self.system, "-o", "json"))
        return {key: base64.b64decode(text).decode() for key, text in found["data"].items()}

    async def is_trusted(self, api: Api, authority: str) -> bool:
        """In both configurations, for all webhooks. Former authorities stay in bundles until they expire."""
        return all(authority in base64.b64decode(each).decode() for each in await bundles(api, self.namespace))

    def connect(self) -> Client:
        context = ssl.create_default_context(cadata=self.secret(WEBHOOK)["ca.crt"])
        context.check_hostname = False  # the API server checks it
        return Client(self.served.ports[0], context)

    def is_shown(self, secret: dict[str, str]) -> bool:
        with self.connect() as client:
            return _shown(client) == _leaf(secret)

    def _certificate(self, name: str) -> Object:
        found: Object = json.loads(self.cluster.kubectl("get", "certificate", name, "-n", self.system, "-o", "json"))
        return found

    def _wait_until_ready(self, certificate: str) -> None:
        arguments = ("--for=condition=Ready", "-n", self.system, "--timeout=60s")
        self.cluster.kubectl("wait", f"certificate/{certificate}", *arguments)

    def _kubeconfig(self) -> Path:
        """With the rights of the webhook's own account."""
        found = yaml.safe_load(self.cluster.kubeconfig.read_text())
        token = self.cluster.kubectl("create", "token", self.pod["serviceAccountName"], "-n", self.system).strip()
        (user,) = found["users"]
        user["user"] = {"token": token}
        path = self.served.folder / "webhook.kubeconfig"
        path.write_text(yaml.safe_dump(found))
        return path

    @property
    def _folder(self) -> Path:
        return self.served.folder / "tls"


class _Creating:
    """Makes pods again and again, each of which must be rewritten."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._count = 0
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._running is not None
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running

    async def more(self) -> None:
        """Returns when a few were made since."""
        wanted = self._count + PODS_PER_STEP

        async def made() -> bool:
            assert self._running is not None
            if self._running.done():
                self._running.result()
            return self._count >= wanted

        await until(made, "that pods are made")

    async def _run(self) -> None:
        while True:
            assert await _is_rewritten(self._api, self._namespace), f"pod {self._count} was left as it was"
            self._count += 1


async def _is_rewritten(api: Api, namespace: str) -> bool:
    body = CASTSLICE | {"metadata": CASTSLICE["metadata"] | {"namespace": namespace}}
    made = json.loads(await api.call("POST", PODS.path(namespace), parameters={"dryRun": "All"}, body=body))
    return bool(made["metadata"].get("labels", {}).get("gpuslice.io/sliced") == "true")


def _manifests(system: str, namespace: str) -> list[Object]:
    """As printed, but what is not in a namespace has a name of the test's own, and concerns its pods alone."""
    command = [GPUSLICE, "manifests", "--cert-manager", "--namespace", system, "-o", "json"]
    text = subprocess.check_output([*command, "--only", "namespace", "--only", "webhook"], text=True)
    objects: list[Object] = json.loads(text)["items"]
    for each in objects:
        if "namespace" not in each["metadata"] and each["kind"] != "Namespace":
            each["metadata"]["name"] = namespace
        if each["kind"] == "ClusterRoleBinding":
            each["roleRef"]["name"] = namespace
        for webhook in each.get("webhooks", ()):
            about_pods = webhook["name"].startswith("pods.")
            here = {"kubernetes.io/metadata.name": namespace} if about_pods else {"test": namespace}
            webhook["namespaceSelector" if about_pods else "objectSelector"] = {"matchLabels": here}
    return objects


def _endpoint(system: str, port: int) -> Object:
    """Where the Service leads, as there are no pods. Only as a name may it be an address of this machine alone."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": WEBHOOK, "namespace": system, "labels": {"kubernetes.io/service-name": WEBHOOK}},
        "addressType": "FQDN",
        "endpoints": [{"addresses": ["127.0.0.1"]}],
        "ports": [{"name": "https", "port": port}],
    }


def _shown(client: Client) -> bytes | None:
    assert isinstance(client.socket, ssl.SSLSocket)
    return client.socket.getpeercert(binary_form=True)


def _leaf(secret: dict[str, str]) -> bytes:
    return x509.load_pem_x509_certificate(secret["tls.crt"].encode()).public_bytes(Encoding.DER)
