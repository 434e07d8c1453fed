"""Pods and reviews, as tests write them."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec

from gpuslice.admission import patching
from gpuslice.admission.context import Context
from gpuslice.admission.review import Reviewed, examine
from gpuslice.dialects.pod_values import Reader
from gpuslice.dialects.recognizing import Reading, read_pod
from gpuslice.model.pods import Pod
from gpuslice.model.settings import DEFAULT_SETTINGS, Settings
from gpuslice.policies.parsing import parse_policy
from gpuslice.policies.rule_set import PolicySet

Object = dict[str, Any]


def container(name: str = "main", limits: Object | None = None, **more: Any) -> Object:  # noqa: ANN401 - fields of the API
    resources: Object = {} if limits is None else {"resources": {"limits": limits}}
    return {"name": name, "image": "registry.example/image"} | resources | more


def pod(*containers: Object, annotations: Object | None = None, init: tuple[Object, ...] = (), **spec: Any) -> Object:  # noqa: ANN401 - fields of the API
    metadata: Object = {"name": "test", "namespace": "team"}
    if annotations is not None:
        metadata["annotations"] = annotations
    started = {"initContainers": list(init)} if init else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": list(containers), **started, **spec},
    }


def review_of(pod: Object, **request: Any) -> bytes:  # noqa: ANN401 - fields of the API
    base = {
        "uid": "e0fcbb83-7f0c-4d8b-a8c3-2d0c4f3a9d11",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": "team",
        "object": pod,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": base | request}
    return json.dumps(review).encode()


def admit(pod: Object, context: Context | None = None, **request: Any) -> Reviewed:  # noqa: ANN401 - fields of the API
    return examine(review_of(pod, **request), context or Context())


def response_of(reviewed: Reviewed) -> Object:
    answer: Object = json.loads(reviewed.body)
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    assert answer["kind"] == "AdmissionReview"
    response: Object = answer["response"]
    return response


def patched(pod: Object, reviewed: Reviewed) -> Object:
    """The pod as the API server would have it after the answer."""
    response = response_of(reviewed)
    assert response["allowed"], response
    if "patch" not in response:
        return pod
    result: Object = patching.apply(pod, json.loads(base64.b64decode(response["patch"])))
    return result


def admitted(pod: Object, context: Context | None = None) -> Object:
    return patched(pod, admit(pod, context))


def denied(pod: Object, context: Context | None = None) -> str:
    """The message with which the pod is refused."""
    response = response_of(admit(pod, context))
    assert not response["allowed"], response
    assert "patch" not in response
    message: str = response["status"]["message"]
    assert message.startswith("gpuslice: ")
    return message.removeprefix("gpuslice: ")


def read(pod: Object, settings: Settings = DEFAULT_SETTINGS, *, opted_in: bool = False) -> list[Reading]:
    """What the containers ask for."""
    decoded = msgspec.convert(pod, Pod)
    return read_pod(Reader(decoded, settings, opted_in=opted_in))


def under(*rules: Object, **context: Any) -> Context:  # noqa: ANN401 - fields of the context
    """A cluster with one policy of these rules."""
    named = [{"name": f"rule-{index}"} | rule for index, rule in enumerate(rules)]
    return Context(policies=PolicySet(parse_policy(policy(*named))), **context)


def policy(*rules: Object, name: str = "test", priority: int = 0) -> Object:
    return {
        "apiVersion": "gpuslice.io/v1alpha1",
        "kind": "SlicePolicy",
        "metadata": {"name": name},
        "spec": {"priority": priority, "rules": list(rules)},
    }
