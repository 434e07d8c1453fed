"""A pod as dialects read it: each value once, checked by the form that its field declares."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

from gpuslice.dialects import fields
from gpuslice.dialects.dialect import Field, PodField, Resource, WholeGpus
from gpuslice.dialects.forms import FormError, is_share
from gpuslice.model.requests import RequestError
from gpuslice.model.settings import DEFAULT_SETTINGS, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuslice.dialects.dialect import Dialect, Exclusive, Need, ResourceFamily, TargetField
    from gpuslice.model.pods import Place, Pod

_Value = TypeVar("_Value")


class Reader:
    """One pod, and how to read it: the installation's settings, as the deciding policy changed them."""

    def __init__(self, pod: Pod, settings: Settings = DEFAULT_SETTINGS, *, opted_in: bool = False) -> None:
        self.pod = pod
        self.annotations: Mapping[str, str] = pod.annotations
        self.labels: Mapping[str, str] = pod.labels
        self.settings = settings
        #: Whether whole GPUs ask in the dialect that asks by them, with no annotation of the pod's own.
        self.opted_in = opted_in
        self.places: tuple[Place, ...] = tuple(pod.places())
        # What holds for the whole pod is found once, not once per container: a pod may have hundreds of them.
        self._values: dict[str, dict[PodField[Any], Any]] = {}
        self._targets: dict[str, frozenset[str]] = {}
        self._switched_on: dict[str, bool] = {}

    def forget(self, asked: Iterable[PodField[Any]]) -> None:
        """The fields stay on the pod for people to see, but ask for nothing any more."""
        for field in asked:
            if field.kind == "annotations":
                self.annotations = _without(self.annotations, field.name)
            else:
                self.labels = _without(self.labels, field.name)

    @property
    def names(self) -> tuple[str, ...]:
        """The containers' names, those that run for the pod's whole life first."""
        return tuple(place.name for place in sorted(self.places, key=lambda place: place.init))

    def text(self, field: PodField[Any]) -> str | None:
        texts = self.annotations if field.kind == "annotations" else self.labels
        return texts.get(field.name_in(self.settings) if field.setting else field.name) if texts else None

    def values(self, dialect: Dialect) -> dict[PodField[Any], Any]:
        """What the pod says in the dialect, by field."""
        found = self._values.get(dialect.name)
        if found is None:
            found = self._values[dialect.name] = {
                field: self._parse(field, text)
                for field in dialect.read_fields
                if (text := self.text(field)) is not None
            }
        return found

    def parsed(self, field: PodField[_Value]) -> _Value | None:
        """The value of a field that is no dialect's own; None if the pod does not say it."""
        text = self.text(field)
        return None if text is None else self._parse(field, text)

    def _parse(self, field: PodField[_Value], text: str) -> _Value:
        try:
            return field.form.parse(text)
        except FormError as error:
            raise RequestError(field.path_in(self.settings), error.reason, error.remedy) from None

    def targets(self, dialect: Dialect) -> frozenset[str]:
        """The names of the containers that the pod's fields ask for."""
        found = self._targets.get(dialect.name)
        if found is None:
            found = self._targets[dialect.name] = self._find_targets(dialect.target)
        return found

    def _find_targets(self, target: TargetField | None) -> frozenset[str]:
        text = None if target is None else self.text(target)
        if target is None or text is None:
            return frozenset(self.names[:1])
        named = self._parse(target, text)
        for name in sorted({*named} - {*self.names}):
            raise RequestError(
                target.path_in(self.settings),
                f"the pod has no container {name!r}",
                f"its containers are {', '.join(self.names)}",
            )
        return frozenset(named)

    def switched_on(self, dialect: Dialect) -> bool:
        """Whether the pod itself says that its whole GPUs ask in the dialect."""
        found = self._switched_on.get(dialect.name)
        if found is None:
            found = dialect.switch is not None and self.text(dialect.switch) == "true"
            self._switched_on[dialect.name] = found
        return found


def _without(texts: Mapping[str, str], forgotten: str) -> Mapping[str, str]:
    return {name: text for name, text in texts.items() if name != forgotten} if forgotten in texts else texts


class Said:
    """What a container, and its pod for it, say in one dialect."""

    __slots__ = ("_amounts", "_is_target", "_values", "dialect", "place", "reader")

    def __init__(self, dialect: Dialect, place: Place, reader: Reader) -> None:
        """Complains with a RequestError about what does not have its form or contradicts itself."""
        self.dialect = dialect
        self.place = place
        self.reader = reader
        self._is_target = bool(dialect.asking) and place.name in reader.targets(dialect)
        self._amounts = self._read_amounts()
        self._values: dict[PodField[Any], Any] = {}
        self._check()

    def amount(self, resource: Resource) -> int:
        """0 if the container does not ask for it."""
        return self._amounts.get(resource.name, 0)

    @property
    def whole_gpus(self) -> int:
        """How many the container asks for beside, or by."""
        return self._amounts.get(self.reader.settings.whole_resource, 0)

    def value(self, field: PodField[_Value]) -> _Value | None:
        """None if the pod does not say it, or not for this container."""
        found: _Value | None = self._values.get(field) if self._is_target or not field.asks else None
        return found

    @property
    def amounts(self) -> dict[str, int]:
        """The amounts that the container asks for, without zeros."""
        return {name: amount for name, amount in self._amounts.items() if amount}

    def path(self, field: Field) -> str:
        """Where it stands, as a message names it."""
        if isinstance(field, PodField):
            return field.path_in(self.reader.settings)
        return fields.resource_field(self.place, field.name)

    def _read_amounts(self) -> dict[str, int]:
        """The amounts of the dialect's resources that the container names."""
        dialect, place = self.dialect, self.place
        names = [resource.name for resource in dialect.signs]
        if dialect.whole_gpus is not WholeGpus.CONTRADICT:
            names.append(self.reader.settings.whole_resource)
        if dialect.family is not None:
            names += self._members(dialect.family)
        limits, requests = place.limits, place.requests
        return {name: fields.read_resource(place, name) for name in names if name in limits or name in requests}

    def _members(self, family: ResourceFamily) -> Iterable[str]:
        for name in fields.members(self.place, family):
            rest = name.removeprefix(family.prefix)
            if re.fullmatch(family.form, rest, re.ASCII) is None:
                raise RequestError(
                    fields.resource_field(self.place, name),
                    f"{rest!r} is not {family.what}",
                    f"the known ones are {', '.join(family.examples)}",
                )
            yield name

    def _check(self) -> None:
        dialect = self.dialect
        for need in dialect.needs:
            if self._has(need.field):
                self._check_need(need)
        for resource in dialect.signs if self._amounts else ():
            if amount := self._amounts.get(resource.name):
                try:
                    resource.form.check(amount)
                except FormError as error:
                    raise RequestError(self.path(resource), error.reason, error.remedy) from None
        if dialect.read_fields:
            self._values = self.reader.values(dialect)
        for pair in dialect.exclusive:
            self._check_exclusive(pair)
        if dialect.whole_gpus is WholeGpus.COUNT:
            self._check_count()

    def _has(self, field: Field) -> bool:
        if isinstance(field, PodField):
            return self._is_target and self.reader.text(field) is not None
        return self._amounts.get(field.name, 0) > 0

    def _check_need(self, need: Need) -> None:
        if any(map(self._has, need.any_of)):
            return
        amount = self.amount(need.field) if isinstance(need.field, Resource) else 0
        if not need.of_shares or is_share(amount):
            raise RequestError(self.path(need.field), need.reason.format(amount=amount), need.remedy)

    def _check_exclusive(self, pair: Exclusive) -> None:
        if self._has(pair.first) and self._has(pair.second):
            raise RequestError(
                self.path(pair.first), f"asks for {pair.what}, and so does {self.path(pair.second)}", "keep one of them"
            )

    def _check_count(self) -> None:
        whole = self.reader.settings.whole_resource
        if self._amounts.get(whole) == 0:
            raise RequestError(
                fields.resource_field(self.place, whole),
                "is 0, but the container says how large its shares are",
                "write 1",
            )
