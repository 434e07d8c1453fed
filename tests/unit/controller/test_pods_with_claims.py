"""What the controller keeps of a pod: the templates that it names, and the recipes that make them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuslice.admission.claims import claim_recipes
from gpuslice.admission.claims.claim_templates import template_for, write_recipes
from gpuslice.controller.reconcilers.pods_with_claims import NeededTemplates, PodWithClaims, needed_templates
from gpuslice.model.slices import Slice

_GIB = 1024**3
_SMALL, _LARGE = (template_for(Slice(memory=number * _GIB), None) for number in (1, 40))


def _needs(*names: str, recipes: str = "", status: str = "Pending", **metadata: Any) -> NeededTemplates | None:  # noqa: ANN401 - fields of the API
    annotations = {"gpuslice.io/claim-templates": recipes} if recipes else None
    pod = {
        "metadata": {"name": "pod", "uid": "1", "annotations": annotations, **metadata},
        "spec": {"resourceClaims": [{"name": f"c{number}"} for number in range(2)]},
        "status": {"phase": status},
    }
    pod["spec"]["resourceClaims"] += [{"name": name, "resourceClaimTemplateName": name} for name in names]
    return needed_templates(msgspec.convert(pod, PodWithClaims))


def test_templates_have_the_recipes_that_make_them() -> None:
    recipes = write_recipes([_SMALL, _LARGE], "", ())
    found = _needs(_SMALL.name, "fpga", _LARGE.name, _SMALL.name, recipes=recipes)
    assert found == NeededTemplates("1", ((_SMALL.name, _SMALL.recipe), (_LARGE.name, _LARGE.recipe)))
    assert (found.recipe(_SMALL.name), found.recipe("gpuslice-other")) == (_SMALL.recipe, "")


@pytest.mark.parametrize(
    "recipes",
    [
        "",
        "[]",
        f"[{_LARGE.recipe}]",
        f'{{"{_SMALL.name}":{_LARGE.recipe}}}',
        f"[{_SMALL.recipe}," + _LARGE.recipe.replace("}", ',"adminAccess":true}') + "]",
    ],
)
def test_a_recipe_that_makes_another_template_is_none(recipes: str) -> None:
    assert _needs(_SMALL.name, recipes=recipes) == NeededTemplates("1", ((_SMALL.name, ""),))


def test_a_name_that_says_less_than_the_recipe_gives_is_not_served() -> None:
    """The hash is right, and the amounts in the name are a lie."""
    lie = _LARGE.name.replace("1x40960mi", "1x1mi")
    assert lie != _LARGE.name
    assert _needs(lie, recipes=f"[{_LARGE.recipe}]") == NeededTemplates("1", ((lie, ""),))


def test_a_pod_that_makes_no_more_claims_needs_nothing() -> None:
    assert _needs(_SMALL.name, status="Running") is not None
    for status in ("Succeeded", "Failed"):
        assert _needs(_SMALL.name, status=status) is None
    assert _needs(_SMALL.name, deletionTimestamp="2026-01-01T00:00:00Z") is None
    assert _needs("fpga") is None


def test_no_more_is_kept_than_admission_lets_a_pod_have() -> None:
    found = _needs(*(f"gpuslice-{number}" for number in range(1000)))
    assert found is not None
    assert len(found.recipes) == claim_recipes.MOST
