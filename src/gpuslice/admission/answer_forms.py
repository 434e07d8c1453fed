"""Answers that differ in nothing but the names of containers.

Workloads that ask for the same often differ in how they call their containers. Admission tells containers apart by
their places; it writes their names into annotations that list what each has (`main: 4Gi memory; helper: 2 slots`), and
reads them where the pod itself names one. So the answer to a pod that names none is a form, into which the names are
filled.

A form is taken from an answer only if the names occur in such lists and nowhere else. A container that is called `add`
or `memory` leaves no form, but is filled into one that other pods left.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Final

from gpuslice.admission import pod_annotations
from gpuslice.admission.decision import Answer, Decision, Outcome
from gpuslice.dialects import registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.model.pods import Pod

#: With one of these annotations or labels, a pod names containers.
_NAMING: Final = frozenset(
    (*pod_annotations.NAMES, *(dialect.target.name for dialect in registry.DIALECTS if dialect.target is not None))
)
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
#: A few are looked for one by one.
_MOST_CONTAINERS: Final = 8


class AnswerForm:
    """One answer with places for names."""

    __slots__ = ("_after", "_before", "_decision", "_patch")

    def __init__(self, decision: Decision, before: bytes, patch: Sequence[bytes | int], after: bytes) -> None:
        self._decision = decision
        self._before = before
        #: The operations: texts, and between them the numbers of containers.
        self._patch = patch
        self._after = after

    def fill(self, names: Sequence[bytes]) -> Answer:
        patch = b"".join([part if type(part) is bytes else names[part] for part in self._patch])  # type: ignore[index]
        return Answer(self._decision, b"%b%b%b" % (self._before, base64.b64encode(patch), self._after))


def names_of(pod: Pod) -> list[bytes] | None:
    """The names of the containers, if the pod's answer depends on them in no other way than by showing them."""
    spec = pod.spec
    if spec is None or not (_NAMING.isdisjoint(pod.annotations) and _NAMING.isdisjoint(pod.labels)):
        return None
    containers = [*(spec.containers or ()), *(spec.init_containers or ())]
    names = {container.name for container in containers}
    if len(names) != len(containers) or len(containers) > _MOST_CONTAINERS:
        return None
    if not all(map(_NAME.fullmatch, names)):
        return None
    return [container.name.encode() for container in containers]


def without_names(read: bytes, names: Sequence[bytes]) -> bytes | None:
    """What is read of a pod, with numbers instead of containers' names; None if something else is named so, too."""
    for number, name in enumerate(names):
        field = b'"name":"%b"' % name
        if read.count(field) != 1:
            return None
        read = read.replace(field, b'"name":%d' % number)
    return read


def form_of(answer: Answer, names: Sequence[bytes]) -> AnswerForm | None:
    """The form of a pod's answer; None if it has none."""
    decision = answer.decision
    if decision.outcome is not Outcome.REWRITTEN or decision.warnings:
        return None
    before, _, rest = answer.response.partition(_PATCH)
    encoded, _, after = rest.partition(b'"')
    patch = base64.b64decode(encoded)
    parts: list[bytes | int] = [patch]
    for number, name in enumerate(names):
        if patch.count(name) != patch.count(b'"%b: ' % name) + patch.count(b"; %b: " % name):
            return None
        parts = [piece for part in parts for piece in _split(part, name, number)]
    return AnswerForm(decision, before + _PATCH, parts, b'"' + after)


def _split(part: bytes | int, name: bytes, number: int) -> list[bytes | int]:
    if isinstance(part, int):
        return [part]
    first, *others = part.split(name)
    return [first, *(piece for other in others for piece in (number, other))]


_PATCH: Final = b'"patch":"'
