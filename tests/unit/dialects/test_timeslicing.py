"""Replicas of NVIDIA's time-slicing and MPS."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpuslice.dialects.known import timeslicing
from gpuslice.model.requests import Request, RequestError
from gpuslice.model.settings import DEFAULT_SETTINGS
from tests.unit.admission.making import admitted, container, denied, pod, read, under

MIB = 2**20


def test_a_replica_is_an_even_part_of_the_memory() -> None:
    (reading,) = read(pod(container(limits={"nvidia.com/gpu.shared": 1})))
    assert (reading.dialect, reading.asked.requests) == ("timeslicing", (Request(memory_fraction=Fraction(1, 10)),))
    assert reading.asked.resources == ("nvidia.com/gpu.shared",)


def test_how_many_there_are_is_the_installers() -> None:
    settings = DEFAULT_SETTINGS.having(timeslicing.REPLICAS_PER_GPU, 4)
    (reading,) = read(pod(container(limits={"nvidia.com/gpu.shared": "2"})), settings)
    assert reading.asked.requests == (Request(memory_fraction=Fraction(1, 4), devices=2),)


def test_a_replica_of_a_partition_is_an_even_part_of_what_it_has() -> None:
    (reading,) = read(pod(container(limits={"nvidia.com/mig-1g.5gb.shared": 1})))
    # Half of an A100's smallest partition, which has 4864 MiB and a seventh of the compute.
    assert reading.asked.requests == (Request(memory_bytes=2432 * MIB, cores=7),)
    settings = DEFAULT_SETTINGS.having(timeslicing.REPLICAS_PER_PARTITION, 4)
    (reading,) = read(pod(container(limits={"nvidia.com/mig-1g.5gb.shared": 1})), settings)
    assert reading.asked.requests == (Request(memory_bytes=1216 * MIB, cores=3),)


def test_partitions_with_media_engines_have_replicas_too() -> None:
    (reading,) = read(pod(container(limits={"nvidia.com/mig-1g.5gb.me.shared": 1})))
    assert (reading.dialect, len(reading.asked.requests)) == ("timeslicing", 1)


def test_a_name_that_is_no_profile_is_refused() -> None:
    with pytest.raises(RequestError, match=r"'9g.1gb.shared' is not a replica of a MIG profile"):
        read(pod(container(limits={"nvidia.com/mig-9g.1gb.shared": 1})))


def test_a_partition_beside_a_replica_is_refused() -> None:
    with pytest.raises(RequestError, match="in two ways: instaslice here, and timeslicing by"):
        read(pod(container(limits={"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-1g.5gb.shared": 1})))


def test_replicas_count_as_devices() -> None:
    asked = pod(container(limits={"nvidia.com/gpu.shared": 8}))
    assert "asks for 8 devices; at most 1 are allowed" in denied(asked, under({"maximum": {"devices": 1}}))


def test_on_slots_a_replica_is_as_many_slots_as_it_is_of_a_gpu() -> None:
    made = admitted(pod(container(limits={"nvidia.com/gpu.shared": 1})), under({"backend": "extended"}))
    assert made["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu-shared": "1"}
