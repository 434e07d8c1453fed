"""What would become of pods: one line for each workload and outcome, however many pods it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gpuslice.admission import explanation, pod_annotations
from gpuslice.admission.decision import NO_GPU, Outcome

if TYPE_CHECKING:
    from gpuslice.cli.manifests.admitted import Admitted, Pod


class Line(msgspec.Struct, frozen=True):
    """All pods of a workload that have the same to expect."""

    workload: str
    outcome: str
    dialect: str = ""
    backend: str = ""
    slice: str = ""
    policy: str = ""
    why: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class Workload:
    """A line, the pods that it counts, and the first of them before and after admission."""

    line: Line
    example: Admitted
    pods: int = 0


class Outcomes:
    """Takes pods, and keeps one of each kind."""

    def __init__(self) -> None:
        self._workloads: dict[Line, Workload] = {}
        #: Pods that ask for no GPU in any way: of most clusters nearly all.
        self.others = 0

    def add(self, workload: str, admitted: Admitted) -> None:
        for problem in admitted.problems:
            self._count(Line(workload, str(Outcome.DENIED), why=problem), admitted)
        for pod in admitted.pods:
            if pod.decision is NO_GPU and not _held(pod):
                self.others += 1
            else:
                self._count(_line(workload, pod), admitted)

    def leave(self, workload: str, reason: str, admitted: Admitted) -> None:
        """A pod about which admission is not asked."""
        if all(pod.decision is NO_GPU for pod in admitted.pods):
            self.others += 1
        else:
            self._count(Line(workload, str(Outcome.UNTOUCHED), why=reason), admitted)

    @property
    def workloads(self) -> list[Workload]:
        """Those that are denied first, then by name."""

        def order(each: Workload) -> tuple[bool, str, str]:
            return each.line.outcome != Outcome.DENIED, each.line.workload, each.line.why

        return sorted(self._workloads.values(), key=order)

    def _count(self, line: Line, admitted: Admitted) -> None:
        known = self._workloads.setdefault(line, Workload(line, admitted))
        known.pods += 1


def _line(workload: str, pod: Pod) -> Line:
    decision = pod.decision
    explained: dict[str, Any] = explanation.explain(decision, (), pod.template)
    given = [f"{each['container']}: {each['slice']}" for each in explained["given"]]
    held = _held(pod) if decision.outcome is Outcome.UNTOUCHED and not decision.readings else {}
    return Line(
        workload,
        explained["outcome"],
        decision.dialects or held.get(pod_annotations.DIALECT, ""),
        decision.backends or held.get(pod_annotations.BACKEND, ""),
        "; ".join(given) or held.get(pod_annotations.SLICE, ""),
        explained["policy"],
        explained["reason"],
        decision.warnings,
    )


def _held(pod: Pod) -> dict[str, str]:
    """The annotations of a pod that has its slice already; else empty."""
    annotations = (pod.template.get("metadata") or {}).get("annotations") or {}
    return annotations if pod_annotations.DIALECT in annotations else {}
