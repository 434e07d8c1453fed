"""Label selectors, as Kubernetes defines them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Operator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label. An exact label is `In` with one value."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def met_by(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None

    def __str__(self) -> str:
        if self.operator in (Operator.IN, Operator.NOT_IN):
            return f"{self.key} {self.operator} ({', '.join(sorted(self.values))})"
        return f"{self.key} {self.operator}"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements must be met; with none it selects everything."""

    requirements: tuple[Requirement, ...] = ()

    def unmet(self, labels: Mapping[str, str]) -> Requirement | None:
        """The first requirement that the labels do not meet."""
        for requirement in self.requirements:
            if not requirement.met_by(labels):
                return requirement
        return None

    def __bool__(self) -> bool:
        return bool(self.requirements)


#: The selector without requirements.
EVERYTHING: Final = LabelSelector()
