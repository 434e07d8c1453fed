"""gpuslice.io/gpu-model and gpuslice.io/sharing hold beside every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuslice.admission.context import Context
from gpuslice.admission.registration import match_conditions
from gpuslice.model import gpus
from gpuslice.model.policies import Backend
from gpuslice.model.settings import DEFAULT_SETTINGS
from gpuslice.policies.expressions import Expression
from tests.unit.admission.making import admit, admitted, container, denied, pod, read, under
from tests.unit.dialects.test_reading import WAYS

MALFORMED = Expression(match_conditions.malformed(DEFAULT_SETTINGS))
DRA = Context(backend=Backend.DRA)
EVERY_DIALECT = pytest.mark.parametrize("dialect", WAYS)


def asking(dialect: str, **said: str) -> dict[str, Any]:
    limits, annotations = WAYS[dialect]
    more = {f"gpuslice.io/{name.replace('_', '-')}": text for name, text in said.items()}
    return pod(container(limits=limits), annotations=annotations | more)


@EVERY_DIALECT
def test_the_model_is_a_selector_of_the_claim(dialect: str) -> None:
    (template,) = admit(asking(dialect, gpu_model="A100-40GB"), DRA).decision.templates
    assert 'device.attributes["gpu.gpuslice.io"].model == "A100-40GB"' in json.dumps(json.loads(template.spec)).replace(
        '\\"', '"'
    )


@EVERY_DIALECT
def test_what_makes_no_sense_is_refused_with_and_without_us(dialect: str) -> None:
    for name, text in (("gpu_model", "?"), ("sharing", "everybody")):
        asked = asking(dialect, **{name: text})
        assert f"metadata.annotations[gpuslice.io/{name.replace('_', '-')}]: {text!r} is not" in denied(asked)
        assert MALFORMED.holds({"object": asked})


def test_a_pod_that_asks_for_no_gpu_may_say_what_it_likes() -> None:
    asked = pod(container(), annotations={"gpuslice.io/sharing": "everybody", "gpuslice.io/gpu-model": "?"})
    assert admitted(asked) == asked
    assert not MALFORMED.holds({"object": asked})


@pytest.mark.parametrize("dialect", [dialect for dialect, (limits, _) in WAYS.items() if limits])
def test_containers_that_ask_for_the_same_hold_one_slice_together(dialect: str) -> None:
    limits, annotations = WAYS[dialect]
    both = pod(
        container(limits=limits),
        container("other", limits),
        annotations=annotations | {"gpuslice.io/sharing": "pod"},
    )
    made = admitted(both, DRA)
    assert len(made["spec"]["resourceClaims"]) == 1
    assert admitted(made, DRA) == made


@EVERY_DIALECT
def test_slots_are_neither_of_a_model_nor_shared(dialect: str) -> None:
    context = under({"backend": "extended"})
    assert "not of a T4; use the backend dra" in denied(asking(dialect, gpu_model="T4"), context)
    assert "slots cannot be shared by containers" in denied(asking(dialect, sharing="pod"), context)
    assert admitted(asking(dialect, sharing="container"), context)


def test_gpu_manager_chooses_neither() -> None:
    context = under({"backend": "gpu-manager"})
    for said in ({"gpu_model": "T4"}, {"sharing": "pod"}):
        assert "gpu-manager serves these pods, and chooses neither" in denied(asking("vcuda", **said), context)


@pytest.mark.parametrize(
    ("written", "model"),
    [
        ("a100-40gb", "A100-40GB"),
        ("NVIDIA-A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA-A100-SXM4-40GB-SHARED", "A100-40GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("Tesla-T4", "T4"),
        ("NVIDIA-A100-PCIE-40GB", "A100-PCIE-40GB"),
        ("MI300X", "MI300X"),
    ],
)
def test_a_model_is_known_by_the_label_of_its_nodes(written: str, model: str) -> None:
    (reading,) = read(asking("hami", gpu_model=written))
    assert reading.asked.requests[0].gpu_model == model


@pytest.mark.parametrize(
    "product", [*(model.product for model in gpus.PRESETS.values()), "NVIDIA A30", "NVIDIA RTX PRO 6000 Blackwell"]
)
def test_what_a_node_calls_its_gpu_is_what_its_label_means(product: str) -> None:
    assert gpus.name_of_model(product.replace(" ", "-")) == gpus.short_name(product)
