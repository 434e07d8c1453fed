"""KAI Scheduler's annotations."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpuslice.model.requests import Request, RequestError
from tests.unit.admission.making import container, pod, read


@pytest.mark.parametrize(
    ("annotations", "request_"),
    [
        ({"gpu-fraction": "0.5"}, Request(memory_fraction=Fraction(1, 2))),
        ({"gpu-memory": "2000"}, Request(memory_bytes=2000 * 2**20)),
        (
            {"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"},
            Request(memory_fraction=Fraction(1, 4), devices=2),
        ),
        ({"gpu-memory": "1", "gpu-fraction-num-devices": "3"}, Request(memory_bytes=2**20, devices=3)),
    ],
)
def test_the_pod_says_how_much(annotations: dict[str, str], request_: Request) -> None:
    (reading,) = read(pod(container(), container("other"), annotations=annotations))
    assert (reading.dialect, reading.place.name, reading.asked.requests) == ("kai", "main", (request_,))


def test_another_container_can_be_named_init_containers_too() -> None:
    annotations = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "prepare"}
    (reading,) = read(pod(container(), init=(container("prepare"),), annotations=annotations))
    assert reading.place.field == "spec.initContainers[0]"


@pytest.mark.parametrize(
    ("annotations", "field", "reason"),
    [
        ({"gpu-fraction": "1.0"}, "gpu-fraction", "whole GPU"),
        ({"gpu-fraction": "0"}, "gpu-fraction", "not a part"),
        ({"gpu-fraction": "1.5"}, "gpu-fraction", "not a part"),
        (
            {"gpu-memory": "2Gi"},
            "gpu-memory",
            'not a positive whole number; it is in MiB.* for example "2048" for 2 GiB',
        ),
        ({"gpu-memory": "-1"}, "gpu-memory", "not a positive whole number"),
        ({"gpu-fraction": "0.5", "gpu-memory": "1"}, "gpu-fraction", "keep one of them"),
        ({"gpu-fraction-num-devices": "2"}, "gpu-fraction-num-devices", "not how much of each"),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "0"}, "gpu-fraction-num-devices", "not a positive"),
        ({"gpu-fraction": "0.5", "gpu-fraction-container-name": "x"}, "gpu-fraction-container-name", "no container"),
    ],
)
def test_what_makes_no_sense_is_refused(annotations: dict[str, str], field: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        read(pod(container(), annotations=annotations))
    assert caught.value.field == f"metadata.annotations[{field}]"
