"""AdmissionReview bytes in, AdmissionReview bytes out (admission.k8s.io/v1).

Nearly every review is of a new and well-formed pod: that is read in one pass, and answered from memory if such a pod
was answered before. Whatever is not so simple is read again, step by step, to say what it is.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuslice.admission.deciding import decide, decide_under
from gpuslice.admission.decision import NO_GPU, Answer, Decision, Denial, Outcome
from gpuslice.admission.decision_cache import cache_key, is_small
from gpuslice.dialects import registry
from gpuslice.model.errors import GpusliceError
from gpuslice.model.pods import Pod
from gpuslice.policies.subject import Subject, User

if TYPE_CHECKING:
    from gpuslice.admission.backends.dra import Template
    from gpuslice.admission.context import Context

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

#: The API server cuts warnings off at 256 characters when they are many; a message is for people, too.
_LONGEST_WARNING: Final = 256
_LONGEST_MESSAGE: Final = 2048
_MOST_WARNINGS: Final = 16

#: Where a review has its pod.
_POD_PATH: Final = ("request", "object")


class ReviewError(GpusliceError):
    """Raised when the bytes are no review that can be answered: there is no uid to answer to. An edge says HTTP 400."""


class UnreadableError(ReviewError):
    """Raised when a review, or the pod in it, cannot be decoded: an edge that finds the uid denies it. A failure of the
    webhook would leave the decision to the failurePolicy, and the author of a pod can nest it as deep as it takes.
    """


class _GroupVersionKind(msgspec.Struct, frozen=True, gc=False):
    group: str = ""
    kind: str = ""


class _Request(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True):
    uid: str
    kind: _GroupVersionKind
    operation: str = "CREATE"
    sub_resource: str = ""
    #: Empty if the API server is to make one up.
    name: str = ""
    namespace: str = ""
    dry_run: bool | None = None
    user_info: User | None = None

    @property
    def of_pod(self) -> bool:
        return self.kind.kind == "Pod" and not self.kind.group and not self.sub_resource


class _PodRequest(_Request, frozen=True, gc=False, rename="camel", kw_only=True):
    object: Pod


class AnyRequest(_Request, frozen=True, gc=False, rename="camel", kw_only=True):
    object: msgspec.Raw = msgspec.Raw(b"null")


class _PodReview(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    api_version: str
    kind: str
    request: _PodRequest


class _AnyReview(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    api_version: str
    kind: str
    request: AnyRequest


_decode_pod_review: Final = msgspec.json.Decoder(_PodReview).decode
_decode_any_review: Final = msgspec.json.Decoder(_AnyReview).decode
_decode_pod: Final = msgspec.json.Decoder(Pod).decode
_encode: Final = msgspec.json.Encoder().encode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Reviewed(msgspec.Struct, frozen=True, kw_only=True):
    """An answered review, and what is to be done beside answering."""

    uid: str
    body: bytes
    decision: Decision
    namespace: str
    name: str
    #: To be created before the answer is given. None on a dry run: it must leave nothing behind.
    templates: tuple[Template, ...] = ()


def review(body: bytes, context: Context) -> bytes:
    """The answer to a review. See `examine` for what else must be done."""
    return examine(body, context).body


def examine(body: bytes, context: Context) -> Reviewed:
    """Answers a review. Raises ReviewError if there is nothing to answer, and nothing else."""
    request: _Request | None = _read_new_pod(body)
    if isinstance(request, _PodRequest):
        try:
            answer = _answer_pod(request, body, context)
        except RecursionError:
            raise UnreadableError("the pod is nested too deep for the expressions of policies") from None
        name = request.name or _name_of(request.object)
    else:
        request = read_request(body)
        answer = _answer_any(request, context)
        name = request.name
    decision, response = answer
    return Reviewed(
        uid=request.uid,
        name=name,
        body=b"%b%b,%b}" % (_HEAD, _encode(request.uid), response),
        decision=decision,
        namespace=request.namespace,
        templates=() if request.dry_run else decision.templates,
    )


def _name_of(pod: Pod) -> str:
    """Pods of a workload have no name yet when they are reviewed, but the beginning of one."""
    metadata = pod.metadata
    if metadata is None:
        return ""
    return metadata.name or (f"{metadata.generate_name}..." if metadata.generate_name else "")


def _read_new_pod(body: bytes) -> _PodRequest | None:
    """The request, if it is to make a pod and there is nothing odd about it."""
    try:
        found = _decode_pod_review(body)
    except _UNREADABLE:
        return None
    request = found.request
    usual = found.api_version == API_VERSION and found.kind == KIND and request.uid
    return request if usual and request.of_pod and request.operation == "CREATE" else None


def _answer_pod(request: _PodRequest, body: bytes, context: Context) -> Answer:
    """Answers as `decide` does, or from the cache if a pod like this was answered before."""
    pod = request.object
    if not registry.may_ask(pod, context.settings):
        return _NO_GPU
    subject = _subject(pod, request.namespace, context, request.user_info, body, _POD_PATH)
    choice = context.policies.choose(subject)
    key = cache_key(pod, choice.rule, context.settings)
    known = context.answers.get(key)
    # Failures of expressions are of this pod alone.
    if known is None or choice.failures:
        known = _answer(decide_under(choice, pod, context))
        if key is not None and not choice.failures and is_small(known):
            context.answers.put(key, known)
    return known


def read_request(body: bytes) -> AnyRequest:
    """The request of a review of anything. Raises ReviewError if it is none."""
    try:
        found = _decode_any_review(body)
    except _UNREADABLE as error:
        raise UnreadableError(f"the body is not an {KIND} of {API_VERSION}: {_one_line(error)}") from None
    if found.api_version != API_VERSION or found.kind != KIND:
        raise ReviewError(
            f"the body is a {found.kind[:64]!r} of {found.api_version[:64]!r}, not an {KIND} of {API_VERSION}; "
            "set admissionReviewVersions to v1"
        )
    if not found.request.uid:
        raise ReviewError("request.uid is empty, so there is nothing to answer to")
    return found.request


def _answer_any(request: AnyRequest, context: Context) -> Answer:
    return _answer(_decide(request, context))


def _decide(request: AnyRequest, context: Context) -> Decision:
    if not request.of_pod:
        return Decision(outcome=Outcome.UNTOUCHED, reason="it is not a pod")
    if request.operation != "CREATE":
        return Decision(outcome=Outcome.UNTOUCHED, reason="only new pods are rewritten")
    try:
        return decide_document(request.object, request.namespace, context, request.user_info)[0]
    except ValueError as error:
        return Decision(outcome=Outcome.DENIED, denial=Denial(message=str(error), malformed=True))


def read_pod(document: bytes | msgspec.Raw) -> Pod:
    """A pod, or a pod template, in JSON. ValueError says that it is neither."""
    try:
        return _decode_pod(document)
    except _UNREADABLE as error:
        raise ValueError(f"this is not a pod: {_one_line(error)}") from None


def decide_document(
    document: bytes | msgspec.Raw, namespace: str, context: Context, user: User | None = None
) -> tuple[Decision, Subject]:
    """Decides about a pod, or a pod template, in JSON, and returns the subject that the policies saw.

    Raises ValueError if it is neither.
    """
    pod = read_pod(document)
    subject = _subject(pod, namespace, context, user, document)
    return decide(pod, subject, context), subject


def _subject(
    pod: Pod,
    namespace: str,
    context: Context,
    user: User | None,
    document: bytes | msgspec.Raw,
    path: tuple[str, ...] = (),
) -> Subject:
    return Subject(
        namespace=namespace,
        namespace_labels=context.namespace_labels(namespace),
        pod_labels=pod.labels,
        service_account=pod.service_account,
        user=user or User(),
        document=document,
        path=path,
    )


def _answer(decision: Decision) -> Answer:
    response: dict[str, Any] = {"allowed": decision.denial is None}
    if decision.denial is not None:
        malformed = decision.denial.malformed
        response["status"] = {
            "status": "Failure",
            "message": f"gpuslice: {_shorten(decision.denial.message, _LONGEST_MESSAGE)}",
            "reason": "Invalid" if malformed else "Forbidden",
            "code": 422 if malformed else 403,
        }
    if decision.operations:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(_encode(decision.operations)).decode()
    if decision.warnings:
        shown = decision.warnings[:_MOST_WARNINGS]
        response["warnings"] = [_shorten(f"gpuslice: {warning}", _LONGEST_WARNING) for warning in shown]
    if decision.readings:
        response["auditAnnotations"] = {
            "outcome": str(decision.outcome),
            "dialect": decision.dialects,
            "policy": decision.rule.label,
        }
    told = msgspec.structs.replace(decision, operations=()) if decision.operations else decision
    return Answer(told, _encode(response).removeprefix(b"{"))


def _shorten(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _one_line(error: Exception) -> str:
    return _shorten(" ".join(str(error).replace("`", "'").split()), _LONGEST_WARNING)


#: A review up to the uid; what an Answer holds comes after it.
_HEAD: Final = b'{"apiVersion":"%b","kind":"%b","response":{"uid":' % (API_VERSION.encode(), KIND.encode())
_NO_GPU: Final = _answer(NO_GPU)
