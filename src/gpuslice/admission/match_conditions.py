"""Which pods the API server asks the webhook about at all, as CEL made from the dialects' own names.

Two questions. May the pod ask for a GPU? That is `registry.may_ask`, word for word, so that no other pod ever leaves
the API server. And is its request malformed, as far as can be told without policies? Whatever this calls malformed,
the core refuses under every policy that reads the pod; what it does not notice is found by the core alone.

The API server gives conditions a budget, and takes one that exceeds it for a failure: the pod would pass unseen. So a
pod with an absurd number of containers or resources is sent without a further look.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from gpuslice.admission import marks
from gpuslice.dialects import hami, instaslice, kai, native, registry, vcuda

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuslice.model.settings import Settings

_CONTAINERS: Final = "(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))"
_ANNOTATIONS: Final = "object.metadata.annotations"
#: Of containers of each kind, and of resources in one: at most so many are looked at.
_MOST: Final = 64
#: Of a text that has a meaning however long it is. Longer ones would take the API server seconds, and are left to us.
_LONGEST: Final = 1024
_HAS_ANNOTATIONS: Final = f"has({_ANNOTATIONS})"
_LIMITS: Final = "c.resources.limits"

#: A superset of what Python takes for white space, for RE2.
_SPACE: Final = r"[\s\p{Z}\x{85}\x0b\x1c-\x1f]*"
_FRACTION: Final = (
    rf"^{_SPACE}([0-9]{{1,9}}|[0-9]{{0,9}}\.[0-9]{{1,18}}|[0-9]{{1,9}}[\s\x0b]*/[\s\x0b]*[0-9]{{1,9}}){_SPACE}$"
)
_NO_FRACTION: Final = rf"^{_SPACE}(0+|0*\.0+|0+\s*/.*|.*/\s*0+){_SPACE}$"
_ABOVE_ONE: Final = rf"^{_SPACE}0*([2-9]|[1-9][0-9]+|1\.0*[1-9])[0-9.]*{_SPACE}$"
_ONE: Final = rf"^{_SPACE}0*1(\.0+)?{_SPACE}$"
#: Without the separators that Python trims and CEL does not.
_RATIO: Final = r"^[\s\p{Z}\x{85}\x0b]*[0-9]{1,9}[\s\x0b]*/[\s\x0b]*[0-9]{1,9}[\s\p{Z}\x{85}\x0b]*$"
_NAMES: Final = r"^[^\x1c-\x1f]*$"
_MODEL: Final = rf"^{_SPACE}{native.MODEL}{_SPACE}$"
_NUMBER: Final = "^[0-9]{1,9}$"
_ZERO: Final = "^0+$"
#: The API server has seen to it that quantities are whole and not negative, and writes most in one way, and 0 always.
#: But it keeps 050, +50, 50. and 50e0.
_START: Final = "^[+]?0*"
_END: Final = "[.]?([eE][+-]?0+)?$"
_UP_TO_100: Final = f"{_START}([1-9]?[0-9]|100){_END}"
_SHARE_OF_A_GPU: Final = f"{_START}[1-9][0-9]?{_END}"
#: Up to 99, or a multiple of 100: thousands always are, powers of 1024 if there are 25 of them.
_SHARE_OR_WHOLE_GPUS: Final = (
    f"{_START}[0-9]{{1,2}}{_END}|00[.]?$|[kMGTPE]$|[eE][+-]?[0-9]+$|(00|25|50|75)[.]?[KMGTPE]i$"
)


def may_ask(settings: Settings) -> str:
    """Whether anything in the pod could be a request, or there is so much in it that only we can tell."""
    return _any([_TOO_MUCH, _may_ask(settings)])


def _may_ask(settings: Settings) -> str:
    named = [f"n == {quote(name)}" for name in (settings.whole_resource, settings.shared_resource)]
    sign = _any([*(f"n.startsWith({quote(prefix)})" for prefix in registry.RESOURCE_PREFIXES), *named])
    parts = _any(f"has(c.resources.{part}) && c.resources.{part}.exists(n, {sign})" for part in ("limits", "requests"))
    annotated = _any(map(_annotated, registry.ANNOTATIONS))
    return _any(
        [_all([_HAS_ANNOTATIONS, annotated]), _CLAIMS_OF_OURS, f"{_CONTAINERS}.exists(c, has(c.resources) && {parts})"]
    )


def malformed(settings: Settings) -> str:
    """Whether the pod asks in a way that has no meaning, whoever it belongs to."""
    # What annotations asked for stays on the pod that was served. It is not read again.
    annotations = _all(
        [
            f"!{_annotated(marks.DIALECT)}",
            f"!{_TOO_LONG}",
            _any(_malformed_annotations(settings.whole_resource)),
        ]
    )
    return _all(
        [
            # First, because most pods end here.
            _may_ask(settings),
            f"!{_TOO_MUCH}",
            _any(
                [
                    _in_a_container(_malformed_resources(settings.whole_resource)),
                    _all([_HAS_ANNOTATIONS, _any([_malformed_castslice(settings), annotations])]),
                ]
            ),
        ]
    )


def quote(text: str) -> str:
    """A text as CEL writes it."""
    return json.dumps(text)


def _malformed_resources(whole: str) -> list[str]:
    mig = (
        f"{_LIMITS}.exists(n, n.startsWith({quote(instaslice.PREFIX)}) && {_LIMITS}[n] != {quote('0')}"
        f" && !{_matches('n', f'^{instaslice.PREFIX}{instaslice.FORM}$')})"
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
    others = [_MIG, _VCUDA, _NATIVE]
    return [
        f"[{', '.join([*others, _HAMI])}].filter(spoken, spoken).size() > 1",
        _all([_asked(whole), _any(others)]),
        _all([_CLAIMED, _any([*others, _HAMI])]),
    ]


def _malformed_castslice(settings: Settings) -> str:
    whole = _asked(settings.whole_resource)
    optimized = f'{_annotation(settings.castslice_optimize)} == "true"'
    beside = _in_a_container([_all([whole, _any([_HAMI, _CLAIMED])])])
    bad_ratio = _all([_bad_number(settings.castslice_ratio), _in_a_container([whole])])
    return _all([_annotated(settings.castslice_optimize), optimized, _any([beside, bad_ratio])])


def _malformed_annotations(whole: str) -> list[str]:
    """What a pod says in annotations: wrongly, of no container, or of one that asks otherwise, too."""
    fraction, memory, devices = map(_annotated, (kai.FRACTION, kai.MEMORY, kai.DEVICES))
    asks_kai, asks_fraction = _any([fraction, memory, devices]), _annotated(native.FRACTION)
    asks_native = _any([asks_fraction, _in_a_container([_NATIVE])])
    resources = [_asked(whole), _MIG, _VCUDA, _HAMI]
    beside_kai = _any([_in_limits([*resources, _NATIVE]), _CLAIMED])
    beside_fraction = _any([_in_limits([*resources, _asked(native.MEMORY)]), _CLAIMED])
    return [
        *(_bad_fraction(name) for name in (native.FRACTION, kai.FRACTION)),
        _all([fraction, _is_one(_annotation(kai.FRACTION))]),
        *(_bad_number(name) for name in (kai.MEMORY, kai.DEVICES)),
        _all([fraction, memory]),
        _all([devices, f"!{fraction}", f"!{memory}"]),
        _all([asks_kai, _annotated(kai.CONTAINER), f"!{_CONTAINERS}.exists(c, {_KAI_TARGET})"]),
        _all([asks_kai, f"{_CONTAINERS}.exists(c, {_KAI_TARGET} && has(c.resources) && {beside_kai})"]),
        _all([asks_native, _annotated(native.CONTAINERS), _names_a_missing_container()]),
        _all([asks_fraction, f"{_CONTAINERS}.exists(c, {_FRACTION_TARGET} && has(c.resources) && {beside_fraction})"]),
        _all([asks_kai, asks_fraction, f"{_CONTAINERS}.exists(c, {_KAI_TARGET} && {_FRACTION_TARGET})"]),
        _all([asks_native, _annotated(native.SHARING), f"!({_annotation(native.SHARING)} in {_list(native.WAYS)})"]),
        _all([asks_native, _annotated(native.GPU_MODEL), f"!{_matches(_annotation(native.GPU_MODEL), _MODEL)}"]),
    ]


def _names_a_missing_container() -> str:
    text = _annotation(native.CONTAINERS)
    missing = f"{text}.split(',').exists(n, !{_CONTAINERS}.exists(c, c.name == n.trim()))"
    return _all([_matches(text, _NAMES), missing])


def _in_a_container(clauses: Iterable[str]) -> str:
    return f"{_CONTAINERS}.exists(c, has(c.resources) && {_in_limits(clauses)})"


def _in_limits(clauses: Iterable[str]) -> str:
    return f"(has({_LIMITS}) && {_any(clauses)})"


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
    bad = [f"!{_matches(text, _FRACTION)}", *(_matches(text, each) for each in (_NO_FRACTION, _ABOVE_ONE))]
    return _all([_annotated(annotation), _any([*bad, _ratio(text, ">")])])


def _is_one(text: str) -> str:
    return _any([_matches(text, _ONE), _ratio(text, "==")])


def _ratio(text: str, comparison: str) -> str:
    numerator, denominator = (f"int({text}.split('/')[{index}].trim())" for index in range(2))
    return _all([_matches(text, _RATIO), f"{numerator} {comparison} {denominator}"])


def _matches(text: str, pattern: str) -> str:
    return f"{text}.matches({quote(pattern)})"


def _annotated(name: str) -> str:
    """Where the pod has annotations."""
    return f"({quote(name)} in {_ANNOTATIONS})"


def _annotation(name: str) -> str:
    return f"{_ANNOTATIONS}[{quote(name)}]"


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(quote, texts))}]"


def _any(clauses: Iterable[str]) -> str:
    return f"({' || '.join(clauses)})"


def _all(clauses: Iterable[str]) -> str:
    return f"({' && '.join(clauses)})"


#: A container `c` speaks the dialect by its resources, has claims, or is whom the pod's annotation is for.
_MIG: Final = f"{_LIMITS}.exists(n, n.startsWith({quote(instaslice.PREFIX)}) && {_LIMITS}[n] != {quote('0')})"
_VCUDA: Final = _any(map(_asked, (vcuda.CORE, vcuda.MEMORY)))
_NATIVE: Final = _any(map(_asked, (native.MEMORY, native.CORES)))
_HAMI: Final = _any(map(_asked, (hami.MEMORY, hami.MEMORY_PERCENTAGE, hami.CORES)))
_CLAIMED: Final = "(has(c.resources.claims) && c.resources.claims.size() > 0)"
_FIRST: Final = "c.name == object.spec.containers[0].name"
_KAI_TARGET: Final = f"({_annotated(kai.CONTAINER)} ? c.name == {_annotation(kai.CONTAINER)} : {_FIRST})"
_FRACTION_TARGET: Final = (
    f"({_annotated(native.CONTAINERS)} ? {_annotation(native.CONTAINERS)}.split(',').exists(n, n.trim() == c.name)"
    f" : {_FIRST})"
)

#: The pod names a template as admission does.
_CLAIMS_OF_OURS: Final = (
    "(has(object.spec.resourceClaims) && object.spec.resourceClaims.exists(r, has(r.resourceClaimTemplateName)"
    f" && r.resourceClaimTemplateName.startsWith({quote(marks.PREFIX)})))"
)
_TOO_MUCH: Final = _any(
    [
        f"has(object.spec.resourceClaims) && object.spec.resourceClaims.size() > {_MOST}",
        f"object.spec.containers.size() > {_MOST}",
        f"has(object.spec.initContainers) && object.spec.initContainers.size() > {_MOST}",
        f"{_CONTAINERS}.exists(c, has(c.resources) && "
        + _any(f"has(c.resources.{part}) && c.resources.{part}.size() > {_MOST}" for part in ("limits", "requests"))
        + ")",
    ]
)
_TOO_LONG: Final = _any(
    f"{_annotated(name)} && {_annotation(name)}.size() > {_LONGEST}"
    for name in (native.FRACTION, native.CONTAINERS, native.GPU_MODEL, kai.FRACTION)
)
