"""A template is that of the slice it was asked for, and is found again from its recipe and from nothing else."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.admission.claims import claim_amounts, claim_recipes
from gpuslice.admission.claims.claim_templates import template_for, templates_in, write_recipes
from gpuslice.model import choices, slices
from gpuslice.model.choices import GpuChoice
from gpuslice.model.slices import Slice

if TYPE_CHECKING:
    from gpuslice.admission.claims.claim_templates import Template

_GIB = 1024**3
_SIZES = (24 * _GIB, 40 * _GIB, 80 * _GIB)


def _asked(template: Template) -> dict[str, str]:
    (request,) = msgspec.json.decode(template.spec)["devices"]["requests"]
    asked: dict[str, str] = request["exactly"]["capacity"]["requests"]
    return asked


def test_one_byte_is_not_all_of_the_memory_though_the_two_numbers_are_equal() -> None:
    """Where a template of the one were given for the other, a byte would pass a policy's maximum and be a whole GPU."""
    everything = template_for(Slice(memory=Fraction(1), cores=1), None)
    one_byte = template_for(Slice(memory=1, cores=1), None)
    assert _asked(everything) == {"cores": "1"}
    assert _asked(one_byte) == {"cores": "1", "memory": "1Mi"}
    assert everything.name != one_byte.name


# ---- recipes ----

_types = st.lists(st.from_regex(choices.TYPE, fullmatch=True), max_size=8).map(tuple)
_uuids = st.lists(st.from_regex(choices.UUID, fullmatch=True), max_size=8).map(tuple)
_flags = st.booleans()
_made = st.one_of(
    st.builds(
        Slice,
        memory=st.one_of(st.integers(1, 10**12), st.fractions(Fraction(1, 1000), 1, max_denominator=10**18)),
        cores=st.integers(0, 100),
        devices=st.integers(1, 32),
        gpu_model=st.sampled_from([None, "A100-40GB", "H100 (SXM)"]),
        choice=st.none()
        | st.builds(
            GpuChoice, types=_types, excluded_types=_types, uuids=_uuids, excluded_uuids=_uuids, one_numa_node=_flags
        ),
        shared_in_pod=st.booleans(),
    ),
    st.builds(Slice, mig_profile=st.sampled_from(slices.known_mig_profiles()), devices=st.integers(1, 8)),
)


@given(st.lists(st.tuples(_made, st.sampled_from([None, _SIZES[:1], _SIZES])), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_a_template_is_found_again_from_its_recipe(
    ingredients: list[tuple[Slice, tuple[int, ...] | None]],
) -> None:
    templates = [template_for(*each) for each in ingredients]
    found = templates_in(write_recipes(templates, "", ()))
    assert {name: template.spec for name, template in found.items()} == {each.name: each.spec for each in templates}


def test_a_recipe_has_every_field_of_a_slice_that_its_claim_depends_on() -> None:
    """A field that is missing would change the template in the webhook and not in the controller: pods would wait."""
    told = {*claim_recipes._Recipe.__struct_fields__} - {"fraction", "sizes"}
    assert told == {*Slice.__struct_fields__} - {"slots", "shared_in_pod"}


def test_the_recipes_of_an_earlier_call_stay_for_as_long_as_the_pod_names_their_templates() -> None:
    first, second, third = (template_for(Slice(memory=number * _GIB), None) for number in (1, 2, 3))
    earlier = write_recipes([first, second], "", ())
    needed = [first.name, "gpuslice-other", third.name, first.name]
    assert set(templates_in(write_recipes([third], earlier, needed))) == {first.name, third.name}


@pytest.mark.parametrize(
    ("given_", "sizes", "name"),
    [
        (Slice(memory=4 * _GIB, cores=30), None, "gpuslice-1x4096mi-30c-2127bbcffe72e6a05aee16001f635e61"),
        (Slice(memory=Fraction(1, 4)), _SIZES, "gpuslice-1x20480mi-0c-319be9df0fd6172fdae487982ffffd09"),
        (Slice(mig_profile="1g.5gb"), None, "gpuslice-1x4864mi-14c-4dcaa2e9f7fbbf442a707be32b2c0f86"),
        (
            Slice(cores=100, devices=2, gpu_model="A100-40GB"),
            None,
            "gpuslice-2xall-100c-2f5bc990146f7694c589eb8b5983dd71",
        ),
    ],
)
def test_names_stay_from_one_version_to_the_next(given_: Slice, sizes: tuple[int, ...] | None, name: str) -> None:
    """A controller makes no template that a webhook of another version has given another name: while both run, pods
    would wait. If a name must change, pods that the older webhook admits need an answer.
    """
    assert template_for(given_, sizes).name == name


_OURS = template_for(Slice(memory=_GIB), None)


@pytest.mark.parametrize(
    "annotation",
    [
        "",
        "null",
        "{}",
        '["1Gi"]',
        '[{"memory":"1Gi"}]',
        '[{"memory":0}]',
        '[{"memory":-1}]',
        '[{"memory":1e9}]',
        '[{"memory":99999999999999999999}]',
        '[{"fraction":"2/1"}]',
        '[{"fraction":"1/0"}]',
        '[{"fraction":"1"}]',
        '[{"cores":101}]',
        '[{"cores":-1}]',
        '[{"devices":0}]',
        '[{"devices":33}]',
        '[{"sizes":[]}]',
        '[{"sizes":[1,2,3,4,5,6,7,8,9]}]',
        '[{"migProfile":"huge"}]',
        '[{"migProfile":""}]',
        f'[{{"gpuModel":"{"x" * 65}"}}]',
        '[{"memory":1,"adminAccess":true}]',
        '[{"memory":1,"deviceClassName":"gpu.example.com"}]',
        '[{"devices":[{"exactly":{"adminAccess":true}}]}]',
        "[" * 5000 + "]" * 5000,
        '{"a":' * 5000 + "1" + "}" * 5000,
        "[" + ",".join('{"memory":1}' for _ in range(claim_recipes.MOST + 1)) + "]",
        "[" + " " * (16 * 1024) + "]",
        "\ud800",
    ],
    ids=lambda text: text[:40],
)
def test_what_is_no_recipe_makes_nothing(annotation: str) -> None:
    assert dict(templates_in(annotation)) == {}


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
@settings(max_examples=300, deadline=None)
def test_nothing_that_an_author_writes_raises(annotation: str) -> None:
    templates_in(annotation)


@given(_made, st.sampled_from([None, _SIZES[:1], _SIZES]))
@settings(max_examples=300, deadline=None)
def test_whatever_a_recipe_says_the_template_gives_no_more_than_its_name(
    given_: Slice, sizes: tuple[int, ...] | None
) -> None:
    template = template_for(given_, sizes)
    amounts = claim_amounts.read(template.name)
    assert amounts is not None
    (request,) = msgspec.json.decode(template.spec)["devices"]["requests"]
    for exact in request.get("firstAvailable") or [request["exactly"]]:
        assert exact["count"] <= amounts.devices
        if given_.mig_profile is not None:
            assert exact["deviceClassName"] == "mig.gpuslice.io"
            continue
        assert exact["deviceClassName"] == "gpu.gpuslice.io"
        asked = exact.get("capacity", {}).get("requests", {})
        assert int(asked.get("cores", 0)) == amounts.cores
        if amounts.memory is not None and "memory" in asked:
            assert _bytes(asked["memory"]) <= amounts.memory
        elif amounts.memory is not None:  # all of a GPU, of a size that the claim names
            (size,) = re.findall(r'quantity\("([0-9]+[KMGT]i)"\)', exact["selectors"][-1]["cel"]["expression"])
            assert _bytes(size) <= amounts.memory


def _bytes(quantity: str) -> int:
    for unit, factor in (("Ki", 1024), ("Mi", 1024**2), ("Gi", 1024**3), ("Ti", 1024**4)):
        if quantity.endswith(unit):
            return int(quantity.removesuffix(unit)) * factor
    return int(quantity)


def test_the_longest_recipes_of_a_pod_are_read() -> None:
    words, numbers = ("W" * 48,) * 8, ("GPU-00000000-0000-0000-0000-000000000000",) * 8
    chosen = GpuChoice(types=words, excluded_types=words, uuids=numbers, excluded_uuids=numbers, one_numa_node=True)
    given = Slice(memory=Fraction(10**18 - 1, 10**18), cores=100, devices=32, gpu_model="M" * 64, choice=chosen)
    recipe = claim_recipes.write(given, (2**63 - 1,) * 8)
    assert len(claim_recipes.read(claim_recipes.join([recipe] * claim_recipes.MOST))) == claim_recipes.MOST


@pytest.mark.parametrize(
    "choice",
    [
        {"types": ['x"])']},
        {"types": ["A100"] * 9},
        {"uuids": ["GPU-1"]},
        {"excludedUuids": ["GPU-00000000-0000-0000-0000-000000000000"] * 9},
        {"others": True},
    ],
)
def test_a_recipe_says_no_choice_that_a_pod_could_not(choice: dict[str, object]) -> None:
    assert claim_recipes.read(json.dumps([{"memory": 2**30, "choice": choice}])) == []
