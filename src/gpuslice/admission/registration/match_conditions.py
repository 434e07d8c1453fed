"""Which pods the API server asks the webhook about at all, as CEL made from what the dialects declare.

Two questions. May the pod ask for a GPU? That is `registry.may_ask`, word for word, so that no other pod ever leaves
the API server. And is its request malformed, as far as can be told without policies? Whatever this calls malformed,
the core refuses under every policy that reads the pod; what it does not notice is found by the core alone.

The API server gives conditions a budget, and takes a condition that exceeds it for a failure: the pod would pass
unseen. So a pod with an absurd number of containers or resources is sent without a further look.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from gpuslice.admission import pod_annotations
from gpuslice.admission.quota_charges import asked_resources
from gpuslice.dialects import common_fields, forms, registry
from gpuslice.dialects.cel import all_of, any_of, matches, quote
from gpuslice.dialects.dialect import PodField, Resource, WholeGpus
from gpuslice.model.values import written_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuslice.dialects.dialect import Dialect, Field, Need, ResourceFamily
    from gpuslice.model.settings import Settings

_CONTAINERS: Final = "(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))"
#: Of containers of each kind, and of resources in one: at most so many are looked at.
_MOST: Final = 64
#: Of a text that has a meaning however long it is. Longer ones would take the API server seconds, and are left to us.
_LONGEST: Final = 1024
#: Of a container `c`.
_LIMITS: Final = "c.resources.limits"
_FIRST: Final = "c.name == object.spec.containers[0].name"
_MARKED: Final = (
    "(has(object.metadata.annotations) && " + f"{quote(pod_annotations.DIALECT)} in object.metadata.annotations)"
)


def may_ask(settings: Settings) -> str:
    """Whether anything in the pod could be a request, or there is so much in it that only we can tell."""
    return any_of([_TOO_MUCH, _may_ask(settings), *map(_of_own_domain, ("annotations", "labels"))])


def _of_own_domain(kind: str) -> str:
    """A name that is meant for us, and perhaps misspelt."""
    texts = f"object.metadata.{kind}"
    written = f"[{', '.join(map(quote, sorted(written_names.ALL)))}]"
    begins = any_of(f"n.startsWith({quote(domain)})" for domain in registry.ASKING_DOMAINS)
    return all_of(
        [
            f"has({texts})",
            f"{texts}.size() <= {registry.MOST_SEARCHED}",
            f"{texts}.exists(n, {begins} && !(n in {written}))",
        ]
    )


def _may_ask(settings: Settings) -> str:
    named = [f"n == {quote(name)}" for name in (settings.whole_resource, settings.shared_resource)]
    sign = any_of([*(f"n.startsWith({quote(prefix)})" for prefix in registry.RESOURCE_PREFIXES), *named])
    of_container, of_pod = (
        f"has({owner}.resources) && "
        + any_of(
            f"has({owner}.resources.{part}) && {owner}.resources.{part}.exists(n, {sign})"
            for part in ("limits", "requests")
        )
        for owner in ("c", "object.spec")
    )
    asking = [field for dialect in registry.DIALECTS for field in dialect.asking]
    by_fields = []
    for kind in ("annotations", "labels"):
        names = [field.name for field in asking if field.kind == kind]
        if kind == "annotations":
            names += sorted(registry.RESOURCES_AS_ANNOTATIONS)
        if names:
            texts = f"object.metadata.{kind}"
            by_fields.append(all_of([f"has({texts})", any_of(f"({quote(name)} in {texts})" for name in names)]))
    return any_of([*by_fields, _CLAIMS, f"{_CONTAINERS}.exists(c, {of_container})", of_pod])


def malformed(settings: Settings) -> str:
    """Whether the pod asks in a way that has no meaning, whichever policy is for it."""
    return all_of(
        [
            # First, because most pods end here.
            _may_ask(settings),
            f"!{_TOO_MUCH}",
            any_of(_Malformed(settings).clauses()),
        ]
    )


def may_be_charged() -> str:
    """Whether quotas may count anything of a new pod, as `charging.is_charged` has it, or a change touches what they
    are counted by.
    """
    name = quote(asked_resources.ANNOTATION)
    before, after = (
        f"(has({pod}.metadata.annotations) && {name} in {pod}.metadata.annotations ? "
        f'{pod}.metadata.annotations[{name}] : "")'
        for pod in ("oldObject", "object")
    )
    extended = any_of(
        f"has(c.resources.{part}) && c.resources.{part}.exists(n, n.contains({quote('/')}))"
        for part in ("limits", "requests")
    )
    claims = "(has(object.spec.resourceClaims) && object.spec.resourceClaims.size() > 0)"
    new = any_of([_TOO_MUCH, claims, f"{_CONTAINERS}.exists(c, has(c.resources) && {extended})"])
    return f'request.operation == "UPDATE" ? {before} != {after} : {new}'


class _Malformed:
    """What makes a request malformed, derived from the dialects."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._whole = _asked(settings.whole_resource)
        self._spoken = {dialect.name: _spoken(dialect) for dialect in registry.DIALECTS if _has_resources(dialect)}

    def clauses(self) -> Iterator[str]:
        yield _in_a_container([*self._resources(), *self._two_ways()])
        yield from map(self._asked_by_whole_gpus, registry.BY_WHOLE_GPUS)
        # What annotations asked for stays on the pod that was served. It is not read again.
        fields = any_of(self._pod_fields())
        yield all_of([f"!{_MARKED}", f"!{self._too_long()}", fields])

    def _resources(self) -> Iterator[str]:
        """In a container, one dialect by itself."""
        for dialect in registry.DIALECTS:
            if dialect.family is not None:
                family = dialect.family
                yield _in_family(family, f" && !{matches('n', f'^{family.prefix}{family.form}$')}")
            for need in dialect.needs:
                if isinstance(need.field, Resource):
                    yield _unmet(need)
            for resource in dialect.signs:
                name = quote(resource.name)
                wrong = resource.form.malformed(f"{_LIMITS}[{name}]")
                if wrong is not None:
                    yield f"{name} in {_LIMITS} && {wrong}"
            for pair in dialect.exclusive:
                if isinstance(pair.first, Resource) and isinstance(pair.second, Resource):
                    yield all_of([_asked(pair.first.name), _asked(pair.second.name)])
            if dialect.whole_gpus is WholeGpus.COUNT:
                whole = quote(self._settings.whole_resource)
                none = f"{whole} in {_LIMITS} && {_LIMITS}[{whole}] == {quote('0')}"
                yield all_of([none, self._spoken[dialect.name]])

    def _two_ways(self) -> Iterator[str]:
        """One container, two dialects; or a dialect beside a whole GPU. What a claim is for, only we can find out."""
        spoken = list(self._spoken.values())
        yield f"[{', '.join(spoken)}].filter(spoken, spoken).size() > 1"
        yield all_of([self._whole, any_of(self._beside_whole_gpus(WholeGpus.CONTRADICT))])

    def _beside_whole_gpus(self, what: WholeGpus) -> list[str]:
        """The dialects of a container to which whole GPUs are that."""
        return [spoken for name, spoken in self._spoken.items() if registry.BY_NAME[name].whole_gpus is what]

    def _asked_by_whole_gpus(self, dialect: Dialect) -> str:
        """Where a pod's own switch makes whole GPUs ask in a dialect."""
        assert dialect.switch is not None
        switched = f'{self._text(dialect.switch)} == "true"'
        beside = _in_a_container([all_of([self._whole, any_of(self._beside_whole_gpus(WholeGpus.COUNT))])])
        fields = (*dialect.fields, *common_fields.FIELDS)
        bad = [all_of([wrong, _in_a_container([self._whole])]) for wrong in self._bad(fields)]
        return all_of([self._present(dialect.switch), switched, any_of([beside, *bad])])

    def _pod_fields(self) -> Iterator[str]:
        """Fields of the pod with a bad value, for no container, or for a container that also asks in another way."""
        for dialect in registry.DIALECTS:
            if dialect.whole_gpus is not WholeGpus.ASK:
                yield from self._said_wrongly(dialect)
            if dialect.asking:
                yield self._said_of_one_that_asks_otherwise(dialect)
        spoken = any_of([*map(self._asks, _asking_dialects()), _in_a_container([any_of(self._spoken.values())])])
        for wrong in self._bad(common_fields.FIELDS):
            yield all_of([wrong, spoken])
        for first, second in combinations(_asking_dialects(), 2):
            same = f"{_CONTAINERS}.exists(c, {self._is_target(first)} && {self._is_target(second)})"
            yield all_of([self._asks(first), self._asks(second), same])

    def _said_wrongly(self, dialect: Dialect) -> Iterator[str]:
        yield from self._bad(dialect.asking)
        speaks = self._speaks(dialect)
        for wrong in self._bad(field for field in dialect.fields if not field.asks):
            yield all_of([wrong, speaks])
        for pair in dialect.exclusive:
            if isinstance(pair.first, PodField) and isinstance(pair.second, PodField):
                yield all_of([self._present(pair.first), self._present(pair.second)])
        for need in dialect.needs:
            if isinstance(need.field, PodField):
                missing = [f"!{self._present(field)}" for field in need.any_of if isinstance(field, PodField)]
                yield all_of([self._present(need.field), *missing])
        if dialect.target is not None:
            another = dialect.target.form.names_another(self._text(dialect.target), _CONTAINERS)
            yield all_of([speaks, self._present(dialect.target), another])

    def _said_of_one_that_asks_otherwise(self, dialect: Dialect) -> str:
        others = [spoken for name, spoken in self._spoken.items() if name != dialect.name]
        if dialect.whole_gpus is WholeGpus.CONTRADICT:
            others.append(self._whole)
        others += [_asked(resource.name) for resource in _excluded_by_fields(dialect)]
        beside = _in_limits(others)
        is_one = f"{_CONTAINERS}.exists(c, {self._is_target(dialect)} && has(c.resources) && {beside})"
        return all_of([self._asks(dialect), is_one])

    def _speaks(self, dialect: Dialect) -> str:
        """Whether any container of the pod speaks it."""
        ways = [self._present(field) for field in dialect.asking]
        if dialect.name in self._spoken:
            ways.append(_in_a_container([self._spoken[dialect.name]]))
        return any_of(ways)

    def _asks(self, dialect: Dialect) -> str:
        """Whether the pod asks in it by fields of its own."""
        return any_of(map(self._present, dialect.asking))

    def _is_target(self, dialect: Dialect) -> str:
        """Whether the fields ask for the container `c`."""
        target = dialect.target
        if target is None:
            return _FIRST
        return f"({self._present(target)} ? {target.form.names(self._text(target), 'c.name')} : {_FIRST})"

    def _bad(self, fields: Iterable[PodField[Any]]) -> Iterator[str]:
        """Fields whose texts do not have their form."""
        for field in fields:
            wrong = None if field.unread else field.form.malformed(self._text(field))
            if wrong is not None:
                yield all_of([self._present(field), wrong])

    def _too_long(self) -> str:
        return any_of(
            f"{self._present(field)} && {self._text(field)}.size() > {_LONGEST}"
            for field in registry.fields_of_pods()
            if field.form.any_length
        )

    def _present(self, field: PodField[Any]) -> str:
        texts = f"object.metadata.{field.kind}"
        return f"(has({texts}) && {quote(field.name_in(self._settings))} in {texts})"

    def _text(self, field: PodField[Any]) -> str:
        return f"object.metadata.{field.kind}[{quote(field.name_in(self._settings))}]"


def _asking_dialects() -> list[Dialect]:
    return [dialect for dialect in registry.DIALECTS if dialect.asking]


def _has_resources(dialect: Dialect) -> bool:
    return bool(dialect.signs) or dialect.family is not None


def _spoken(dialect: Dialect) -> str:
    """Whether a container speaks the dialect by its resources."""
    ways = [_asked(resource.name) for resource in dialect.signs]
    if dialect.family is not None:
        ways.append(_in_family(dialect.family))
    return any_of(ways)


def _excluded_by_fields(dialect: Dialect) -> Iterator[Resource]:
    """Its resources that no container has beside one of the pod's fields."""
    for pair in dialect.exclusive:
        sides: tuple[Field, Field] = (pair.first, pair.second)
        if any(isinstance(side, PodField) for side in sides):
            yield from (side for side in sides if isinstance(side, Resource))


def _unmet(need: Need) -> str:
    assert isinstance(need.field, Resource)
    name = need.field.name
    amount = f"{_LIMITS}[{quote(name)}]"
    applies = all_of([f"{quote(name)} in {_LIMITS}", forms.is_share_in_cel(amount)]) if need.of_shares else _asked(name)
    return all_of([applies, *(f"!{_asked(other.name)}" for other in need.any_of)])


def _in_family(family: ResourceFamily, more: str = "") -> str:
    return f"{_LIMITS}.exists(n, {family.has_in_cel('n')} && {_LIMITS}[n] != {quote('0')}{more})"


def _in_a_container(clauses: Iterable[str]) -> str:
    return f"{_CONTAINERS}.exists(c, has(c.resources) && {_in_limits(clauses)})"


def _in_limits(clauses: Iterable[str]) -> str:
    return f"(has({_LIMITS}) && {any_of(clauses)})"


def _asked(resource: str) -> str:
    """Zero asks for nothing."""
    name = quote(resource)
    return f"({name} in {_LIMITS} && {_LIMITS}[{name}] != {quote('0')})"


def _many_resources(owner: str) -> str:
    parts = (f"{owner}.resources.{part}" for part in ("limits", "requests"))
    return f"has({owner}.resources) && " + any_of(f"has({part}) && {part}.size() > {_MOST}" for part in parts)


#: What they are for is not in the pod.
_CLAIMS: Final = "(has(object.spec.resourceClaims) && object.spec.resourceClaims.size() > 0)"
_TOO_MUCH: Final = any_of(
    [
        f"has(object.spec.resourceClaims) && object.spec.resourceClaims.size() > {_MOST}",
        f"object.spec.containers.size() > {_MOST}",
        f"has(object.spec.initContainers) && object.spec.initContainers.size() > {_MOST}",
        f"{_CONTAINERS}.exists(c, {_many_resources('c')})",
        _many_resources("object.spec"),
    ]
)
