"""KAI Scheduler's annotations, and Run:ai's labels."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from gpuslice.model.requests import Request, RequestError
from tests.unit.admission.making import admitted, container, pod, read


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
        ({"gpu-fraction": "1.5"}, "gpu-fraction", "not a part of a GPU above 0 and below 1"),
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


def labelled(labels: dict[str, str], annotations: dict[str, str] | None = None) -> dict[str, Any]:
    asked = pod(container(), container("other"), annotations=annotations)
    asked["metadata"]["labels"] = {"runai/queue": "team", "project": "team"} | labels
    return asked


@pytest.mark.parametrize(
    ("asked", "request_"),
    [
        (labelled({"gpu-fraction": "0.5"}), Request(memory_fraction=Fraction(1, 2))),
        (labelled({"gpu-memory": "2000"}), Request(memory_bytes=2000 * 2**20)),
        (labelled({}, {"gpu-fraction": "0.5"}), Request(memory_fraction=Fraction(1, 2))),
        (
            labelled({"gpu-fraction": "0.5"}, {"gpu-fraction-num-devices": "2"}),
            Request(memory_fraction=Fraction(1, 2), devices=2),
        ),
    ],
)
def test_run_ais_labels_say_the_same_and_ask_once(asked: dict[str, Any], request_: Request) -> None:
    (reading,) = read(asked)
    assert (reading.dialect, reading.place.name, reading.asked.requests) == ("kai", "main", (request_,))


def test_a_pod_that_a_label_asked_for_is_not_given_it_twice() -> None:
    once = admitted(labelled({"gpu-fraction": "0.5"}))
    assert admitted(once) == once
    assert len(once["spec"]["resourceClaims"]) == 1


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (labelled({"gpu-fraction": "2"}), r"metadata.labels\[gpu-fraction\]: '2' is not a part of a GPU"),
        (labelled({"gpu-memory": "2Gi"}), r"metadata.labels\[gpu-memory\]: '2Gi' is not a positive whole number"),
        (
            labelled({"gpu-fraction": "0.5"}, {"gpu-fraction": "0.5"}),
            r"metadata.annotations\[gpu-fraction\]: asks for memory, and so does metadata.labels\[gpu-fraction\]",
        ),
        (labelled({"gpu-fraction": "0.5"}, {"gpu-memory": "100"}), "keep one of them"),
        (labelled({"gpu-fraction": "0.5", "gpu-memory": "100"}), "keep one of them"),
    ],
)
def test_labels_that_make_no_sense_are_refused(asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        read(asked)
