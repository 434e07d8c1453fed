"""The review that holds pods to the quotas of their namespace: /validate-quota.

It comes after all mutation: the pod has its final shape, its name, and the UID by which it is counted, which is the
API server's to give. It is asked of new pods in namespaces with a quota alone, and of changes to what a pod says that
it asked for, which are refused: ResourceQuotas are counted by it.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.admission.cluster.quota_reservations import Wanted
from gpuslice.admission.context import UnknownError
from gpuslice.admission.quota_charges import asked_resources, charging
from gpuslice.admission.quota_charges.asked_proof import UnprovenError, check_proven
from gpuslice.admission.quota_charges.charging import ChargedPod, Terms, UnsizedError
from gpuslice.admission.restrictions.other_claims import OtherClaims
from gpuslice.admission.review import UnreadableError, read_request
from gpuslice.admission.webhook import validation
from gpuslice.admission.webhook.metrics import Refusal
from gpuslice.model.errors import GpusliceError
from gpuslice.model.pods import Pod  # noqa: TC001 - msgspec reads the types
from gpuslice.quotas.tally import OverQuotaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice.admission.context import Context
    from gpuslice.admission.review import AnyRequest
    from gpuslice.admission.webhook.cluster_view import Cluster
    from gpuslice.admission.webhook.large_reviews import LargeReviews
    from gpuslice.admission.webhook.metrics import Metrics
    from gpuslice.admission.webhook.validation import Verdict

#: The pod is to blame, and the same pod gets the same answer until something else changes.
_REFUSALS: Final = (OverQuotaError, UnsizedError, UnprovenError)

#: How often a review asks for something of the cluster.
_MOST_TO_LEARN: Final = 4


class _Old(msgspec.Struct, frozen=True, rename="camel"):
    object: Pod
    old_object: Pod


class _Update(msgspec.Struct, frozen=True):
    request: _Old


class QuotaReviews:
    """Of one server."""

    def __init__(self, cluster: Cluster, metrics: Metrics, large: LargeReviews) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._large = large

    async def review(self, body: bytes, *, large: bool) -> Verdict:
        """A large one is read in a thread, so that others do not wait for it."""
        request = await self._large.run(lambda: read_request(body)) if large else read_request(body)
        if not request.of_pod or request.operation not in ("CREATE", "UPDATE"):
            return validation.allow(request.uid)
        if request.operation == "UPDATE":
            return self._review_update(request, body)
        if not self._cluster.synced():
            return _unavailable(request, "the cluster has not been seen as a whole yet; try again")
        try:
            await self._reserve(request, large=large)
        except _REFUSALS as error:
            self._metrics.over_quota(request.namespace)
            return _forbidden(request, str(error))
        except GpusliceError as error:
            return _unavailable(request, str(error))
        return validation.allow(request.uid)

    async def _reserve(self, request: AnyRequest, *, large: bool) -> None:
        context = self._cluster.context()
        # The labels of the namespace first, and then what the pod claims there. The checks of a large one are made in
        # a thread, with what is known by then.
        for left in reversed(range(_MOST_TO_LEARN + 1)):
            if large:
                wanted = await self._large.run(lambda: _settled(_wanted(request, context)))
            else:
                wanted = _wanted(request, context)
            if wanted is None:
                return
            try:
                await self._cluster.reserve(request.namespace, wanted)
            except UnknownError as unknown:
                if not left:
                    raise
                await self._cluster.learn(unknown)
            else:
                return

    def _review_update(self, request: AnyRequest, body: bytes) -> Verdict:
        try:
            update = _decode_update(body).request
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UnreadableError(f"this is not a pod: {error}") from None
        before, after = (pod.annotations.get(asked_resources.ANNOTATION) for pod in (update.old_object, update.object))
        if before == after:
            return validation.allow(request.uid)
        self._metrics.refused(Refusal.QUOTA)
        return _forbidden(
            request,
            f"metadata.annotations[{asked_resources.ANNOTATION}]: ResourceQuotas are counted by it, so that it stays "
            "as it is; leave it out of the change",
        )


def _wanted(request: AnyRequest, context: Context) -> Wanted | None:
    """None if the pod holds nothing that a quota could count."""
    try:
        pod = _decode_pod(request.object)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableError(f"this is not a pod: {error}") from None
    if not charging.is_charged(pod):
        return None
    terms = terms_of(context)
    others = OtherClaims(pod.spec, request.namespace, context)
    metadata = pod.metadata
    return Wanted(
        uid=metadata.uid if metadata else "",
        name=(metadata.name if metadata else None) or request.name,
        charge=charging.charge(pod, terms),
        dry_run=bool(request.dry_run),
        check_for_gpus=lambda: charging.check_sized(pod, terms, others.gpus),
        check_for_names=lambda: check_proven(request.object, request.namespace, context, request.user_info),
    )


def terms_of(context: Context) -> Terms:
    settings = context.settings
    slots = frozenset((settings.shared_resource, *context.policies.target_resources))
    return Terms(settings, max(context.gpu_sizes), slots)


def _settled(wanted: Wanted | None) -> Wanted | None:
    """With both checks made already."""
    if wanted is None:
        return None
    return Wanted(
        uid=wanted.uid,
        name=wanted.name,
        charge=wanted.charge,
        dry_run=wanted.dry_run,
        check_for_gpus=_outcome(wanted.check_for_gpus),
        check_for_names=_outcome(wanted.check_for_names),
    )


def _outcome(check: Callable[[], None]) -> Callable[[], None]:
    try:
        check()
    except (GpusliceError, UnknownError) as error:
        failure = error

        def fail() -> None:
            raise failure

        return fail
    return lambda: None


def _forbidden(request: AnyRequest, message: str) -> Verdict:
    return validation.deny(request.uid, message, HTTPStatus.FORBIDDEN, "Forbidden")


def _unavailable(request: AnyRequest, message: str) -> Verdict:
    return validation.deny(request.uid, message, HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailable")


_decode_pod: Final = msgspec.json.Decoder(ChargedPod).decode
_decode_update: Final = msgspec.json.Decoder(_Update).decode
