"""Recipes: what the claim templates of a pod are made of, as an annotation of the pod.

The webhook writes them, and the controller makes the templates of pods that are stored. In between the annotation is
the pod's author's: he can write another one, or none. So a recipe is not the content of a template but a slice, from
which `claim_templates` makes content and name; nothing but slices can be said in it. A pod names its templates in its
spec, which admission has seen and which cannot change. A recipe whose template has another name is for nothing.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from gpuslice.model import choices
from gpuslice.model.choices import GpuChoice
from gpuslice.model.devices import MAX_DEVICES_PER_CLAIM
from gpuslice.model.slices import Slice

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Of one pod. Each is a template that is made, and no pod has slices of so many kinds.
MOST: Final = 16
#: More than the longest sixteen recipes are.
_LONGEST: Final = 36 * 1024
#: The most that a quantity of Kubernetes can be.
_MOST_BYTES: Final = (1 << 63) - 1
_FRACTION: Final = "^[1-9][0-9]{0,18}/[1-9][0-9]{0,18}$"

_Bytes = Annotated[int, Meta(ge=1, le=_MOST_BYTES)]

_Types = Annotated[
    tuple[Annotated[str, Meta(pattern=f"^{choices.TYPE}$")], ...], Meta(max_length=choices.MOST_ALTERNATIVES)
]
_Uuids = Annotated[
    tuple[Annotated[str, Meta(pattern=f"^{choices.UUID}$")], ...], Meta(max_length=choices.MOST_ALTERNATIVES)
]

#: A slice, and the sizes of GPU that it may be on.
Ingredients = tuple[Slice, tuple[int, ...] | None]


class _Choice(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, rename="camel"):
    """As GpuChoice, and no more than can be said there."""

    types: _Types = ()
    excluded_types: _Types = ()
    uuids: _Uuids = ()
    excluded_uuids: _Uuids = ()
    one_numa_node: bool = False


class _Recipe(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, rename="camel"):
    """The fields of a slice that its claim depends on. Neither bytes nor a fraction: all of the memory."""

    memory: _Bytes | None = None
    fraction: Annotated[str, Meta(pattern=_FRACTION)] | None = None
    cores: Annotated[int, Meta(ge=0, le=100)] = 0
    devices: Annotated[int, Meta(ge=1, le=MAX_DEVICES_PER_CLAIM)] = 1
    mig_profile: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    gpu_model: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    choice: _Choice | None = None
    sizes: Annotated[tuple[_Bytes, ...], Meta(min_length=1, max_length=8)] | None = None


def write(given: Slice, sizes: tuple[int, ...] | None) -> str:
    """One recipe. `join` makes the annotation of several."""
    memory = given.memory
    recipe = _Recipe(
        memory=memory if isinstance(memory, int) else None,
        fraction=None if isinstance(memory, int) or memory == 1 else f"{memory.numerator}/{memory.denominator}",
        cores=given.cores,
        devices=given.devices,
        mig_profile=given.mig_profile,
        gpu_model=given.gpu_model,
        choice=None if given.choice is None else _Choice(*msgspec.structs.astuple(given.choice)),
        sizes=sizes,
    )
    return msgspec.json.encode(recipe).decode()


def join(recipes: Sequence[str]) -> str:
    return f"[{','.join(recipes)}]"


def read(annotation: str) -> list[Ingredients]:
    """What the recipes say; nothing if this is not how the webhook writes them."""
    if len(annotation) > _LONGEST:
        return []
    try:
        return [_ingredients(recipe) for recipe in _decode(annotation)]
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return []


def _ingredients(recipe: _Recipe) -> Ingredients:
    memory: int | Fraction = Fraction(1)
    if recipe.memory is not None:
        memory = recipe.memory
    elif recipe.fraction is not None:
        memory = Fraction(recipe.fraction)
        if memory > 1:
            raise ValueError("more than a GPU has")
    given = Slice(
        memory=memory,
        cores=recipe.cores,
        devices=recipe.devices,
        mig_profile=recipe.mig_profile,
        gpu_model=recipe.gpu_model,
        choice=None if recipe.choice is None else GpuChoice(**msgspec.structs.asdict(recipe.choice)),
    )
    return given, recipe.sizes


_decode: Final = msgspec.json.Decoder(Annotated[list[_Recipe], Meta(max_length=MOST)]).decode
