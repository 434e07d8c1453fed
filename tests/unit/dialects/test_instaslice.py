"""MIG profiles as resources."""

from __future__ import annotations

import pytest

from gpuslice.model.requests import Request, RequestError
from gpuslice.model.slices import known_mig_profiles
from tests.unit.admission.making import admitted, container, denied, pod, read, under

PROFILES = known_mig_profiles()


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_is_known_by_its_resource(profile: str) -> None:
    (reading,) = read(pod(container(limits={f"nvidia.com/mig-{profile.replace('+', '.')}": "3"})))
    assert reading.dialect == "instaslice"
    assert reading.asked.requests == (Request(mig_profile=profile, devices=3),)


def test_profiles_with_media_engines_are_among_them() -> None:
    assert {"1g.5gb+me", "1g.24gb-me", "2g.48gb+gfx", "1g.24gb+me.all"} <= {*PROFILES}


def test_a_container_can_have_partitions_of_several_profiles() -> None:
    (reading,) = read(pod(container(limits={"nvidia.com/mig-2g.10gb": 1, "nvidia.com/mig-1g.5gb": 2})))
    assert reading.asked.requests == (
        Request(mig_profile="1g.5gb", devices=2),
        Request(mig_profile="2g.10gb", devices=1),
    )


@pytest.mark.parametrize(
    ("resource", "profile"),
    [
        ("1g.34gb", "1g.34gb"),
        ("1g.35gb.me", "1g.35gb+me"),
        ("2g.24gb-me", "2g.24gb-me"),
        ("1g.12gb.gfx", "1g.12gb+gfx"),
    ],
)
def test_a_profile_of_a_gpu_without_a_table_is_taken_with_a_warning(resource: str, profile: str) -> None:
    (reading,) = read(pod(container(limits={f"nvidia.com/mig-{resource}": "2"})))
    assert reading.asked.requests == (Request(mig_profile=profile, devices=2),)
    (warning,) = reading.asked.warnings
    assert f"no GPU that gpuslice knows has the MIG profile {profile}" in warning


@pytest.mark.parametrize("maximum", [{"memory": "8Gi"}, {"cores": 50}])
def test_its_name_says_how_large_it_is(maximum: dict[str, object]) -> None:
    context = under({"maximum": maximum})
    assert admitted(pod(container(limits={"nvidia.com/mig-1g.6gb": "1"})), context)
    assert "at most" in denied(pod(container(limits={"nvidia.com/mig-4g.24gb": "1"})), context)


def test_what_cannot_be_a_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match=r"'9g.99gb' is not a MIG profile; the known ones are .*1g\.5gb") as caught:
        read(pod(container("a"), container("b", {"nvidia.com/mig-9g.99gb": 1})))
    assert caught.value.field == "spec.containers[1].resources.limits[nvidia.com/mig-9g.99gb]"
