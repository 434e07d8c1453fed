"""Which pods the API server asks the webhook about at all, as CEL made from the dialects' own names.

Two questions. May the pod ask for a GPU? That is `registry.may_ask`, word for word, so that no other pod ever leaves
the API server. And is its request malformed, as far as can be told without policies? Whatever this calls malformed,
the core refuses under every policy that reads the pod; what it does not notice is found by the core alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from gpuslice.admission import marks
from gpuslice.dialects import hami, instaslice, kai, native, registry, vcuda
from gpuslice.model.slices import known_mig_profiles

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuslice.model.settings import Settings

_CONTAINERS: Final = "(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))"
_ANNOTATIONS: Final = "object.metadata.annotations"
_LIMITS: Final = "c.resources.limits"

#: A superset of what Python takes for white space, for RE2.
_SPACE: Final = r"[\s\p{Z}\x{85}\x0b\x1c-\x1f]*"
_FRACTION: Final = rf"^{_SPACE}([0-9]{{1,9}}|[0-9]{{0,9}}\.[0-9]{{1,18}}|[0-9]{{1,9}}\s*/\s*[0-9]{{1,9}}){_SPACE}$"
_NO_FRACTION: Final = rf"^{_SPACE}(0+|0*\.0+|0+\s*/.*|.*/\s*0+){_SPACE}$"
_ABOVE_ONE: Final = rf"^{_SPACE}0*([2-9]|[1-9][0-9]+|1\.0*[1-9])[0-9.]*{_SPACE}$"
_NUMBER: Final = "^[0-9]{1,9}$"
_ZERO: Final = "^0+$"
#: The API server has seen to it that quantities are whole, not negative, and written in one way.
_UP_TO_100: Final = "^([1-9]?[0-9]|100)$"
_SHARE_OF_A_GPU: Final = "^[1-9][0-9]?$"
_SHARE_OR_WHOLE_GPUS: Final = "^[0-9]{1,2}$|00$|[a-zA-Z]"


def may_ask(settings: Settings) -> str:
    """Whether anything in the pod could be a request."""
    named = f"n == {quote(settings.whole_resource)}"
    sign = _any([*(f"n.startsWith({quote(prefix)})" for prefix in registry.RESOURCE_PREFIXES), named])
    parts = _any(f"has(c.resources.{part}) && c.resources.{part}.exists(n, {sign})" for part in ("limits", "requests"))
    annotated = _any(_annotated(name) for name in registry.ANNOTATIONS)
    return _any([annotated, f"{_CONTAINERS}.exists(c, has(c.resources) && {parts})"])


def malformed(settings: Settings) -> str:
    """Whether the pod asks in a way that has no meaning, whoever it belongs to."""
    whole = settings.whole_resource
    return _any(
        [
            _in_a_container(_malformed_resources(whole)),
            _all(
                [
                    _annotated(settings.castslice_optimize),
                    f'{_annotation(settings.castslice_optimize)} == "true"',
                    _bad_number(settings.castslice_ratio),
                    _in_a_container([_asked(whole)]),
                ]
            ),
            # Annotations stay on the pod that was served. They are not read again, so they are not looked at again.
            _all([f"!{_annotated(marks.DIALECT)}", _any(_malformed_annotations())]),
        ]
    )


def quote(text: str) -> str:
    """A text as CEL writes it."""
    return json.dumps(text)


def _malformed_resources(whole: str) -> list[str]:
    mig = (
        f"{_LIMITS}.exists(n, n.startsWith({quote(instaslice.PREFIX)}) && {_LIMITS}[n] != {quote('0')}"
        f" && !(n in {_list(map(instaslice.resource_of, known_mig_profiles()))}))"
    )
    core = quote(vcuda.CORE)
    amount = f"{_LIMITS}[{core}]"
    alone = _all([_matches(amount, _SHARE_OF_A_GPU), f"!{_asked(vcuda.MEMORY)}"])
    return [
        mig,
        _all([_asked(vcuda.MEMORY), f"!{_asked(vcuda.CORE)}"]),
        _all([f"{core} in {_LIMITS}", _any([alone, f"!{_matches(amount, _SHARE_OR_WHOLE_GPUS)}"])]),
        *(_above_100(name) for name in (native.CORES, hami.MEMORY_PERCENTAGE, hami.CORES)),
        _all([_asked(hami.MEMORY), _asked(hami.MEMORY_PERCENTAGE)]),
        *_two_ways(whole),
    ]


def _two_ways(whole: str) -> list[str]:
    """One container, two dialects; or a dialect beside a whole GPU or a claim."""
    profiles = f"{_LIMITS}.exists(n, n.startsWith({quote(instaslice.PREFIX)}) && {_LIMITS}[n] != {quote('0')})"
    others = [
        profiles,
        _any(map(_asked, (vcuda.CORE, vcuda.MEMORY))),
        _any(map(_asked, (native.MEMORY, native.CORES))),
    ]
    shares = _any(map(_asked, (hami.MEMORY, hami.MEMORY_PERCENTAGE, hami.CORES)))
    return [
        f"[{', '.join([*others, shares])}].filter(spoken, spoken).size() > 1",
        _all([_asked(whole), _any(others)]),
        _all(["has(c.resources.claims)", "c.resources.claims.size() > 0", _any([*others, shares])]),
    ]


def _malformed_annotations() -> list[str]:
    fraction, memory, devices = map(_annotated, (kai.FRACTION, kai.MEMORY, kai.DEVICES))
    return [
        *(_bad_fraction(name) for name in (native.FRACTION, kai.FRACTION)),
        *(_bad_number(name) for name in (kai.MEMORY, kai.DEVICES)),
        _all([fraction, memory]),
        _all([devices, f"!{fraction}", f"!{memory}"]),
    ]


def _in_a_container(clauses: Iterable[str]) -> str:
    return f"{_CONTAINERS}.exists(c, has(c.resources) && has({_LIMITS}) && {_any(clauses)})"


def _asked(resource: str) -> str:
    """Zero asks for nothing."""
    name = quote(resource)
    return f"({name} in {_LIMITS} && {_LIMITS}[{name}] != {quote('0')})"


def _above_100(resource: str) -> str:
    name = quote(resource)
    return f"{name} in {_LIMITS} && !{_matches(f'{_LIMITS}[{name}]', _UP_TO_100)}"


def _bad_number(annotation: str) -> str:
    text = _annotation(annotation)
    return _all([_annotated(annotation), _any([f"!{_matches(text, _NUMBER)}", _matches(text, _ZERO)])])


def _bad_fraction(annotation: str) -> str:
    text = _annotation(annotation)
    bad = _any([f"!{_matches(text, _FRACTION)}", *(_matches(text, each) for each in (_NO_FRACTION, _ABOVE_ONE))])
    return _all([_annotated(annotation), bad])


def _matches(text: str, pattern: str) -> str:
    return f"{text}.matches({quote(pattern)})"


def _annotated(name: str) -> str:
    return f"(has({_ANNOTATIONS}) && {quote(name)} in {_ANNOTATIONS})"


def _annotation(name: str) -> str:
    return f"{_ANNOTATIONS}[{quote(name)}]"


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(quote, texts))}]"


def _any(clauses: Iterable[str]) -> str:
    return f"({' || '.join(clauses)})"


def _all(clauses: Iterable[str]) -> str:
    return f"({' && '.join(clauses)})"
