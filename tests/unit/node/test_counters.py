"""The counters allow what the hardware can place, and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.model.gpus import PRESETS, MigPlacement, MigProfile
from gpuslice.node.gpus import counters

MIG_MODELS = [name for name, model in PRESETS.items() if model.mig_profiles]
SEVEN_SLICES = [name for name in MIG_MODELS if PRESETS[name].mig_profiles[-1].compute_slices == 7]


@dataclass(frozen=True)
class Hardware:
    """The rule as the driver has it: free memory slices, enough compute slices, no more of a profile than allowed."""

    profiles: tuple[MigProfile, ...]

    def places(self, held: list[tuple[MigProfile, MigPlacement]], profile: MigProfile, place: MigPlacement) -> bool:
        compute = max(each.compute_slices for each in self.profiles)
        used = sum(each.compute_slices for each, _ in held)
        same = sum(each is profile for each, _ in held)
        return (
            not any(place.overlaps(other) for _, other in held)
            and used + profile.compute_slices <= compute
            and same < profile.max_instances
        )


def partitions(model: str) -> list[tuple[MigProfile, MigPlacement]]:
    return [(profile, place) for profile in PRESETS[model].mig_profiles for place in profile.placements]


@pytest.mark.parametrize("published", [False, True], ids=["all counters", "those that are published"])
@pytest.mark.parametrize("model", SEVEN_SLICES)
def test_every_way_to_fill_a_gpu_is_allowed_if_and_only_if_the_hardware_can_place_it(
    model: str, *, published: bool
) -> None:
    profiles = PRESETS[model].mig_profiles
    hardware, choices = Hardware(profiles), partitions(model)
    minded = counters.decisive(profiles) if published else frozenset(counters.whole(profiles))
    seen = 0

    def fill(held: list[tuple[MigProfile, MigPlacement]], left: Counter[str], first: int) -> None:
        nonlocal seen
        seen += 1
        for index in range(len(choices)):
            profile, place = choices[index]
            wanted = Counter({name: value for name, value in counters.taken(profile, place).items() if name in minded})
            allowed = counters.fits(wanted, left)
            assert allowed == hardware.places(held, profile, place), (held, profile.name, place)
            if allowed and index >= first:  # each set of partitions once, whatever the order
                fill([*held, (profile, place)], left - wanted, index + 1)

    fill([], counters.whole(profiles), 0)
    assert seen > 300


@pytest.mark.parametrize("model", SEVEN_SLICES)
def test_counters_that_cannot_run_out_first_are_not_published(model: str) -> None:
    decisive = counters.decisive(PRESETS[model].mig_profiles)
    assert "copy-engines" in counters.whole(PRESETS[model].mig_profiles)
    assert {name.rstrip("0123456789") for name in decisive if not name.endswith("-instances")} == {"memory-slice-"}


def test_engines_that_only_one_partition_can_have_are_counted_where_several_shapes_have_them() -> None:
    """The media engines of an A30 are in 1g.6gb+me and in 2g.12gb+me, and there is one of each."""
    profiles = PRESETS["A30"].mig_profiles
    named = {profile.name: profile for profile in profiles}
    small, large = named["1g.6gb+me"], named["2g.12gb+me"]
    left = counters.whole(profiles) - counters.taken(small, small.placements[0])
    assert not counters.fits(counters.taken(large, large.placements[1]), left)
    assert counters.fits(counters.taken(named["2g.12gb"], large.placements[1]), left)
    assert {"ofa-engines", "jpeg-engines"} <= counters.decisive(profiles)


def test_a_gpu_of_which_no_partition_shows_all_engines_can_be_filled() -> None:
    profiles = PRESETS["B200"].mig_profiles
    smallest, left = profiles[0], counters.whole(profiles)
    for place in smallest.placements:
        wanted = counters.taken(smallest, place)
        assert counters.fits(wanted, left)
        left -= wanted


def test_a_counter_that_can_run_out_first_is_published() -> None:
    """A GPU with fewer engines than partitions want of them."""
    scarce = tuple(
        replace(profile, copy_engines=5 if profile.name == "4g.20gb" else profile.copy_engines)
        for profile in PRESETS["A100-40GB"].mig_profiles
    )
    assert "copy-engines" in counters.decisive(scarce)
    assert "compute-slices" not in counters.decisive(scarce)


@given(st.sampled_from(MIG_MODELS), st.data())
def test_a_shared_gpu_and_its_partitions_exclude_each_other(model: str, data: st.DataObject) -> None:
    profiles = PRESETS[model].mig_profiles
    profile, place = data.draw(st.sampled_from(partitions(model)))
    left, shared = counters.whole(profiles), counters.shared(profiles)
    assert counters.fits(shared, left)
    assert not counters.fits(counters.taken(profile, place), left - shared)
    assert not counters.fits(shared, left - counters.taken(profile, place))


def test_the_places_to_try_first_leave_most_room_for_others() -> None:
    profiles = PRESETS["A100-40GB"].mig_profiles
    order = {
        profile.name: [place.start for place in counters.in_order_of_preference(profile, profiles)]
        for profile in profiles
    }
    assert order["1g.5gb"][0] == 6  # the seventh memory slice is of no use to anything larger than 1g.10gb
    assert order["2g.10gb"][0] == 4
    assert order["3g.20gb"] == [4, 0]


def test_profiles_that_differ_in_a_sign_have_labels_that_differ() -> None:
    names = ["1g.5gb", "1g.5gb+me", "1g.5gb-me", "1g.24gb+me.all", "1g.24gb+gfx"]
    labels = [counters.label(name) for name in names]
    assert len(set(labels)) == len(names)
    assert labels[1:3] == ["1g-5gb-me", "1g-5gb-no-me"]
