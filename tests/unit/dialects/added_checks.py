"""What must hold of the toy dialect, of which no module of gpuslice has heard. Run by test_adding_a_dialect.py."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner

from gpuslice.admission.context import Context
from gpuslice.admission.registration import match_conditions, mutating_policy
from gpuslice.admission.webhook.metrics import Metrics
from gpuslice.cli.commands.admit import command as admit_command
from gpuslice.configuration.problems import ConfigurationError
from gpuslice.dialects import registry
from gpuslice.installing import definitions
from gpuslice.model.requests import Request
from gpuslice.model.settings import DEFAULT_SETTINGS
from gpuslice.policies.expressions import Expression
from tests.unit.admission.making import admit, admitted, container, denied, pod, read, under
from tests.unit.configuration.documents import parsed

if TYPE_CHECKING:
    from pathlib import Path

HALF = {"toy.example/percent": "50"}
Object = dict[str, Any]


def labelled(asked: Object, **labels: str) -> Object:
    asked["metadata"]["labels"] = {name.replace("_", "-"): text for name, text in labels.items()}
    return asked


def test_it_is_read() -> None:
    (reading,) = read(pod(container(limits=HALF)))
    assert (reading.dialect, reading.asked.requests) == ("toy", (Request(memory_fraction=Fraction(1, 2)),))
    (reading,) = read(pod(container(limits={"toy.example/size-2gb": "1"})))
    assert reading.asked.requests == (Request(memory_bytes=2 * 2**30),)


def test_a_label_asks() -> None:
    asked = labelled(pod(container(), container("other"), annotations={"toy.example/for": "other"}), toy_share="1/4")
    (reading,) = read(asked)
    assert (reading.place.name, reading.signs) == ("other", ("metadata.labels[toy-share]",))
    once = admitted(asked)
    assert admitted(once) == once


def test_pods_that_differ_in_a_label_get_different_answers() -> None:
    context = Context()
    first, second = (labelled(pod(container()), toy_share=share) for share in ("1/4", "1/2"))
    assert [
        admitted(asked, context)["metadata"]["annotations"]["gpuslice.io/slice"] for asked in (first, second, first)
    ] == ["main: 1/4 of the memory", "main: 1/2 of the memory", "main: 1/4 of the memory"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (pod(container(limits={"toy.example/percent": "101"})), "above 100 percent"),
        (pod(container(limits=HALF | {"toy.example/gigabytes": "1"})), "keep one of them"),
        (pod(container(limits={"toy.example/cores": "10"})), "not how much memory"),
        (pod(container(limits={"toy.example/size-0gb": "1"})), "'0gb' is not a size; the known ones are 1gb, 2gb"),
        (pod(container(limits=HALF), annotations={"toy.example/speed": "warp"}), "is not a speed"),
        (pod(container(limits=HALF | {"nvidia.com/gpumem": "1"})), "in two ways: hami here, and toy by"),
        (pod(container(limits=HALF | {"nvidia.com/gpu": "1"})), "in two ways"),
        (labelled(pod(container()), toy_share="1"), "metadata.labels[toy-share]: is a whole GPU"),
        (labelled(pod(container(limits=HALF)), toy_share="1/2"), "keep one of them"),
        (labelled(pod(container(), annotations={"toy.example/for": "nobody"}), toy_share="1/2"), "no container"),
        (labelled(pod(container(), annotations={"gpu-fraction": "0.5"}), toy_share="1/2"), "in two ways"),
    ],
)
def test_what_is_malformed_is_refused_by_the_core_and_seen_by_the_api_server(asked: Object, message: str) -> None:
    assert message in denied(asked)
    for condition in (match_conditions.may_ask, match_conditions.malformed):
        assert Expression(condition(DEFAULT_SETTINGS)).holds({"object": asked})


def test_the_api_server_knows_its_names() -> None:
    text = match_conditions.may_ask(DEFAULT_SETTINGS)
    assert 'n.startsWith("toy.example/")' in text
    assert '"toy-share" in object.metadata.labels' in text
    policy = json.dumps(mutating_policy.documents())
    assert "toy.example/gigabytes" in policy
    assert "toy-share" in policy


def test_policies_know_it() -> None:
    assert admit(pod(container(limits=HALF)), under({"dialects": ["toy"]})).decision.denial is None
    assert "toy is not allowed here" in denied(pod(container(limits=HALF)), under({"dialects": ["hami"]}))
    assert '"toy"' in json.dumps(definitions.slice_policies())


def test_its_settings_are_in_the_configuration() -> None:
    found = parsed("dialects: {toy: {unit: 3, labels: {speed: example.com/speed}}}").settings
    (reading,) = read(pod(container(limits={"toy.example/size-2gb": "1"})), found)
    assert reading.asked.requests == (Request(memory_bytes=6 * 2**30),)
    with pytest.raises(ConfigurationError, match=r"dialects.toy.unit: 0 is not a number of slots"):
        parsed("dialects: {toy: {unit: 0}}")
    with pytest.raises(ConfigurationError, match=r"'toy-share' has a meaning in a dialect"):
        parsed("dialects: {castslice: {annotations: {optimize: toy-share}}}")
    with pytest.raises(ConfigurationError, match=r"'toy.example/percent' has a meaning in a dialect"):
        parsed("gpus: {wholeResource: toy.example/percent}")


def test_it_is_explained(tmp_path: Path) -> None:
    asked = tmp_path / "pod.yaml"
    asked.write_text(yaml.safe_dump(pod(container(limits=HALF))))
    said = CliRunner().invoke(admit_command, ["-f", str(asked), "--explain"])
    assert "container main asks in toy" in said.output
    assert "by spec.containers[0].resources.limits[toy.example/percent]" in said.output


def test_it_is_counted() -> None:
    metrics = Metrics()
    metrics.mutated(admit(pod(container(limits=HALF))).decision, 0.001)
    assert 'gpuslice_admission_seconds_count{dialect="toy",outcome="rewritten"} 1.0' in metrics.text().decode()


def test_all_others_are_still_there() -> None:
    assert {*registry.NAMES} >= {"castslice", "hami", "instaslice", "kai", "native", "vcuda", "toy"}
