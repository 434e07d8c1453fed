"""AdmissionReview bytes in, AdmissionReview bytes out (admission.k8s.io/v1).

Nearly every review is of a new and well-formed pod: that is read in one pass, and answered from memory if such a pod
was answered before. Whatever is not so simple is read again, step by step, to say what it is.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuslice.admission import answer_forms
from gpuslice.admission.deciding import decide, decide_added, decide_under
from gpuslice.admission.decision import NO_GPU, Answer, Decision, Denial, Outcome
from gpuslice.admission.decision_cache import CacheKey, cache_key, is_small
from gpuslice.dialects import registry
from gpuslice.model.errors import GpusliceError
from gpuslice.model.pods import Container, Pod
from gpuslice.policies.subject import Subject, User

if TYPE_CHECKING:
    from gpuslice.admission.context import Context
    from gpuslice.policies.rule_set import Choice

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
    user_info: User | None = None

    @property
    def of_pod(self) -> bool:
        return self.kind.kind == "Pod" and not self.kind.group and not self.sub_resource

    @property
    def adds_containers(self) -> bool:
        return self.kind.kind == "Pod" and not self.kind.group and self.sub_resource == "ephemeralcontainers"


class _PodRequest(_Request, frozen=True, gc=False, rename="camel", kw_only=True):
    object: Pod


class AnyRequest(_Request, frozen=True, gc=False, rename="camel", kw_only=True):
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")
    dry_run: bool | None = None


class _AddingSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    ephemeral_containers: list[Container] | None = None


class _Adding(msgspec.Struct, frozen=True, gc=False):
    """The part of a stored pod to which containers are added."""

    spec: _AddingSpec = _AddingSpec()

    def containers(self) -> dict[str, tuple[str, Container]]:
        """By their names: the field, and the container."""
        found = enumerate(self.spec.ephemeral_containers or ())
        return {each.name: (f"spec.ephemeralContainers[{index}]", each) for index, each in found}


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
_decode_adding: Final = msgspec.json.Decoder(_Adding).decode
_encode: Final = msgspec.json.Encoder().encode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Reviewed(msgspec.Struct, frozen=True, kw_only=True):
    """An answered review, and what the log and the metrics say of it."""

    uid: str
    body: bytes
    decision: Decision
    namespace: str
    name: str


def review(body: bytes, context: Context) -> bytes:
    """The answer to a review."""
    return examine(body, context).body


def examine(body: bytes, context: Context) -> Reviewed:
    """Answers a review. Raises ReviewError if there is nothing to answer, and nothing else."""
    request: _Request | None = _read_new_pod(body)
    try:
        if isinstance(request, _PodRequest):
            answer = _answer_pod(request, body, context)
            name = request.name or _name_of(request.object)
        else:
            request = read_request(body)
            answer = _answer_any(request, context)
            name = request.name
    except RecursionError:
        raise UnreadableError("the pod is nested too deep for the expressions of policies") from None
    decision, response = answer
    return Reviewed(
        uid=request.uid,
        name=name,
        body=b"%b%b,%b}" % (_HEAD, _encode(request.uid), response),
        decision=decision,
        namespace=request.namespace,
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
    if choice.failures:  # these are of this pod alone
        return _answer(decide_under(choice, pod, request.namespace, context))
    key = cache_key(pod, choice.rule, context.settings)
    if key is None:
        return _answer(decide_under(choice, pod, request.namespace, context))
    known = context.answers.get(key)
    if known is None:
        known = _answer_unlike(request, choice, key, context)
        if is_small(known):
            context.answers.put(key, known)
    return known


def _answer_unlike(request: _PodRequest, choice: Choice, key: CacheKey, context: Context) -> Answer:
    """Answers a pod unlike those before, or like some of them but for the names of its containers."""
    pod, namespace = request.object, request.namespace
    names = answer_forms.names_of(pod)
    nameless = answer_forms.without_names(key.read, names) if names is not None else None
    if names is None or nameless is None:
        return _answer(decide_under(choice, pod, namespace, context))
    kind = CacheKey(key.policy, key.position, nameless)
    form = context.forms.get(kind)
    if form is not None:
        return form.fill(names)
    answer = _answer(decide_under(choice, pod, namespace, context))
    if is_small(answer) and (form := answer_forms.form_of(answer, names)) is not None:
        context.forms.put(kind, form)
    return answer


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
    if not (request.of_pod or request.adds_containers):
        return Decision(outcome=Outcome.UNTOUCHED, reason="it is not a pod")
    if request.of_pod and request.operation != "CREATE":
        return Decision(outcome=Outcome.UNTOUCHED, reason="only new pods are rewritten")
    try:
        if request.adds_containers:
            return _decide_added(request, context)
        return decide_document(request.object, request.namespace, context, request.user_info)[0]
    except ValueError as error:
        return Decision(outcome=Outcome.DENIED, denial=Denial(message=str(error), malformed=True))


def _decide_added(request: AnyRequest, context: Context) -> Decision:
    """Those that were there before were decided about then. Raises ValueError if it is no pod."""
    pod = read_pod(request.object)
    subject = _subject(pod, request.namespace, context, request.user_info, request.object)
    before, after = (_decode_adding(document).containers() for document in (request.old_object, request.object))
    added = dict(place for name, place in after.items() if name not in before)
    return decide_added(pod, added, subject, context)


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
