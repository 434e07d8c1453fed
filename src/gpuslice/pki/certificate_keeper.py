"""Keeps the webhook's certificates in a Secret that all replicas share, and the API servers' trust in them.

There is no leader. Every replica works out the next state (see `authority`) and writes it with the version that it
read as a precondition: one wins, the others take what it wrote. Every replica also puts the bundle of authorities into
the webhook configurations, and puts it back when a `kubectl apply` took it out. What is half done when a replica dies
is a state like any other: the next look of any replica goes on with it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import structlog

from gpuslice.kube.errors import ApiError
from gpuslice.kube.reconciler import Reconciler, Trigger
from gpuslice.kube.resources import Metadata, Resource
from gpuslice.pki import planning_process
from gpuslice.pki.authority_state import Authority, Lifetimes, State
from gpuslice.pki.planning_process import Plan, Question
from gpuslice.pki.trust import Trust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpuslice.kube.client.api import Api
    from gpuslice.kube.informers import Informer, Informers

SECRETS: Final = Resource("", "v1", "secrets")
SECRET_NAME: Final = "gpuslice-webhook-tls"  # noqa: S105 - a name

_CERTIFICATE: Final = "tls.crt"
_KEY: Final = "tls.key"
_AUTHORITIES: Final = "authorities.json"
#: For people who have to tell other programs which authority to trust; nothing here reads it.
_BUNDLE: Final = "ca.crt"

#: However long nothing is due: a clock may be set, and a computer may sleep.
_LONGEST_WAIT: Final = timedelta(hours=1)
#: Another replica was faster. The informer tells what it wrote; if not, this does.
_AFTER_A_LOST_RACE: Final = timedelta(seconds=1)

_decode_authorities: Final = msgspec.json.Decoder(tuple[Authority, ...]).decode


class _Secret(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: dict[str, bytes] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose certificates they are."""

    namespace: str
    #: What the API servers call the webhook by: DNS names, or addresses.
    names: Sequence[str]
    #: The webhook configurations that are to trust it.
    configurations: Sequence[tuple[Resource, str]]


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


class CertificateKeeper(Reconciler[str]):
    """One replica's part. `use` gets a certificate and its key, as PEM, whenever the server is to take another one.

    The one key is the Secret's name: trust in the certificates is a part of their state.
    """

    name: ClassVar[str] = "certificates"
    longest_wait: ClassVar[float] = 30.0

    def __init__(
        self,
        api: Api,
        informers: Informers,
        owner: Owner,
        use: Callable[[bytes, bytes], None],
        *,
        lifetimes: Lifetimes | None = None,
        now: Callable[[], datetime] = _now,
    ) -> None:
        #: Set once there is a certificate to serve with.
        self.serving: Final = asyncio.Event()
        self._api = api
        self._owner = owner
        self._use = use
        self._lifetimes = lifetimes or Lifetimes()
        self._now = now
        self._secret: Informer[_Secret] = informers.informer(
            SECRETS,
            _Secret,
            lambda found: found,
            namespace=owner.namespace,
            fields=f"metadata.name={SECRET_NAME}",
        )
        self._trust = Trust(api, informers, owner.configurations)
        #: What this replica serves with. If the Secret is lost, it is also what is put back.
        self._served: Plan | None = None
        self._last: tuple[Question, Plan] | None = None
        self._log = structlog.get_logger().bind(secret=f"{owner.namespace}/{SECRET_NAME}")

    def triggers(self) -> Iterator[Trigger[str]]:
        watched: list[Informer[Any]] = [self._secret, *self._trust.informers]
        for informer in watched:
            yield Trigger(informer, lambda _key, _old, _new: self.first_keys())

    def first_keys(self) -> Iterable[str]:
        return (SECRET_NAME,)

    async def reconcile(self, _key: str) -> float:
        return (await self._look()).total_seconds()

    async def _look(self) -> timedelta:
        """Does what there is to do, and says when to look again at the latest."""
        now = self._now()
        stored = self._secret.store.get(self._owner.namespace, SECRET_NAME)
        plan = await self._plan(stored, now)
        if plan.changed or not self._trust.is_just(plan.state.bundle):
            # To act on an old state would undo what another replica did since: so first the newest.
            newest = await self._fetch()
            if newest != stored:
                stored, plan = newest, await self._plan(newest, now)
        if plan.changed and not await self._write(stored, plan):
            return _AFTER_A_LOST_RACE
        await self._trust.put(plan.state.bundle)
        self._serve(plan, now)
        return min(_LONGEST_WAIT, plan.next_change - now) if plan.next_change else _LONGEST_WAIT

    async def _plan(self, stored: _Secret | None, now: datetime) -> Plan:
        state = self._read(stored) if stored is not None else None
        question = Question(
            stored=state,
            served=self._served.state if self._served else None,
            names=tuple(self._owner.names),
            trusted=self._trusted(state),
            now=now,
            lifetimes=self._lifetimes,
        )
        if (known := self._answered(question)) is None:
            known = await planning_process.ask(question)
            self._last = (question, known)
        return known

    def _answered(self, question: Question) -> Plan | None:
        """The last answer, if it is still one: most of what happens is our own doing, and changes nothing."""
        if self._last is None:
            return None
        asked, plan = self._last
        same = (asked.stored, asked.trusted) == (question.stored, question.trusted) and not plan.changed
        in_time = plan.next_change is None or asked.now <= question.now < plan.next_change
        return plan if same and in_time else None

    def _trusted(self, state: State | None) -> frozenset[str]:
        """Only authorities that wait to be used count: the others have their place in the bundles repaired."""
        waiting = (
            frozenset(each.certificate for each in state.authorities if each.serves_until is None) if state else ()
        )
        common = self._trust.common()
        return frozenset(waiting) if common is None else common.intersection(waiting)

    def _read(self, stored: _Secret) -> State | None:
        data = stored.data or {}
        try:
            return State(
                authorities=_decode_authorities(data[_AUTHORITIES]),
                certificate=data[_CERTIFICATE].decode(),
                key=data[_KEY].decode(),
            )
        except (KeyError, UnicodeDecodeError, msgspec.DecodeError) as error:
            self._log.warning("what is in the Secret cannot be read, and is replaced", error=str(error))
            return None

    async def _fetch(self) -> _Secret | None:
        try:
            return await self._api.get(SECRETS, SECRET_NAME, _Secret, namespace=self._owner.namespace)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def _write(self, stored: _Secret | None, plan: Plan) -> bool:
        """False if another replica was faster."""
        state = plan.state
        data = {
            _CERTIFICATE: state.certificate.encode(),
            _KEY: state.key.encode(),
            _BUNDLE: state.bundle.encode(),
            _AUTHORITIES: msgspec.json.encode(state.authorities),
        }
        namespace = self._owner.namespace
        try:
            if stored is None:
                await self._api.create(SECRETS, _document(namespace, data), namespace=namespace)
            else:
                changes = {"metadata": {"resourceVersion": stored.metadata.resource_version}, "data": data}
                await self._api.merge(SECRETS, SECRET_NAME, changes, namespace=namespace)
        except ApiError as error:
            if error.conflict or (stored is not None and error.not_found):
                return False
            raise
        self._log.info(
            "wrote the webhook's certificates", authorities=len(state.authorities), found=plan.complaint or None
        )
        return True

    def _serve(self, plan: Plan, now: datetime) -> None:
        served = self._served
        if served is None or served.state.certificate != plan.state.certificate:
            trusted = self._trust.common()
            if served is not None and now < served.ends and _better(served, plan, trusted):
                return  # until the configurations have the authority; an informer tells when
            self._use(plan.state.certificate.encode(), plan.state.key.encode())
            self.serving.set()
            self._log.info("serving with another certificate", expires=plan.ends.isoformat())
        self._served = plan


def _better(served: Plan, plan: Plan, trusted: frozenset[str] | None) -> bool:
    """Whether what is served now is trusted, and what should be is not yet."""
    return trusted is not None and plan.issuer not in trusted and served.issuer in trusted


def _document(namespace: str, data: dict[str, bytes]) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": SECRET_NAME,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "gpuslice"},
        },
        "type": "kubernetes.io/tls",
        "data": data,
    }
