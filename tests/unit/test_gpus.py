"""The table of GPU models."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from gpuslice.model.gpus import PRESETS, GpuModel, model_named, with_article
from gpuslice.model.mig import MediaExtension, MigPlacement, MigProfile

if TYPE_CHECKING:
    from collections.abc import Iterator

MIG_MODELS = [model for model in PRESETS.values() if model.mig_profiles]

# What `nvidia-smi mig -lgip` prints: name, ID, instances, GiB; then SM, DEC, ENC, CE, JPEG, OFA.
LGIP = {
    "A100-40GB": """
        1g.5gb     19 7  4.75  14 0 0 1 0 0
        1g.5gb+me  20 1  4.75  14 1 0 1 1 1
        1g.10gb    15 4  9.62  14 1 0 1 0 0
        2g.10gb    14 3  9.62  28 1 0 2 0 0
        3g.20gb     9 2 19.50  42 2 0 3 0 0
        4g.20gb     5 1 19.50  56 2 0 4 0 0
        7g.40gb     0 1 39.25  98 5 0 7 1 1
    """,
    "A100-80GB": """
        1g.10gb    19 7  9.50  14 0 0 1 0 0
        1g.10gb+me 20 1  9.50  14 1 0 1 1 1
        1g.20gb    15 4 19.50  14 1 0 1 0 0
        2g.20gb    14 3 19.50  28 1 0 2 0 0
        3g.40gb     9 2 39.25  42 2 0 3 0 0
        4g.40gb     5 1 39.25  56 2 0 4 0 0
        7g.80gb     0 1 79.00  98 5 0 7 1 1
    """,
    "H100-80GB": """
        1g.10gb    19 7  9.75  16 1 0 1 1 0
        1g.10gb+me 20 1  9.75  16 1 0 1 1 1
        1g.20gb    15 4 19.62  26 1 0 1 1 0
        2g.20gb    14 3 19.62  32 2 0 2 2 0
        3g.40gb     9 2 39.50  60 3 0 3 3 0
        4g.40gb     5 1 39.50  64 4 0 4 4 0
        7g.80gb     0 1 79.25 132 7 0 8 7 1
    """,
}

# What `nvidia-smi mig -lgipp` prints, the same on all three.
LGIPP = {
    19: "{0,1,2,3,4,5,6}:1",
    20: "{0,1,2,3,4,5,6}:1",
    15: "{0,2,4,6}:2",
    14: "{0,2,4}:2",
    9: "{0,4}:4",
    5: "{0}:4",
    0: "{0}:8",
}


ENGINES = ("compute_slices", "multiprocessors", "copy_engines", "decoders", "jpegs", "ofas", "memory_bytes")


def as_nvidia_smi_prints(profile: MigProfile) -> str:
    gib = f"{int(profile.memory_bytes / 2**30 * 100) / 100:.2f}"  # it cuts, and does not round
    engines = (profile.decoders, profile.encoders, profile.copy_engines, profile.jpegs, profile.ofas)
    numbers = (profile.id, profile.max_instances, gib, profile.multiprocessors, *engines)
    return " ".join(map(str, (profile.name, *numbers)))


@pytest.mark.parametrize("model", MIG_MODELS, ids=lambda model: model.name)
def test_mig_profiles_are_those_that_nvidia_documents(model: GpuModel) -> None:
    documented = [" ".join(line.split()) for line in LGIP[model.name].strip().splitlines()]
    assert [as_nvidia_smi_prints(profile) for profile in model.mig_profiles] == documented


@pytest.mark.parametrize("model", MIG_MODELS, ids=lambda model: model.name)
def test_mig_placements_are_those_that_nvidia_documents(model: GpuModel) -> None:
    for profile in model.mig_profiles:
        starts = ",".join(str(placement.start) for placement in profile.placements)
        assert f"{{{starts}}}:{profile.memory_slices}" == LGIPP[profile.id]
        assert {placement.size for placement in profile.placements} == {profile.memory_slices}


@pytest.mark.parametrize("model", MIG_MODELS, ids=lambda model: model.name)
def test_no_mig_layout_needs_more_engines_than_the_gpu_has(model: GpuModel) -> None:
    whole = next(profile for profile in model.mig_profiles if profile.compute_slices == 7)
    for layout in layouts(model.mig_profiles):
        for engine in ENGINES:
            assert sum(getattr(profile, engine) for profile in layout) <= getattr(whole, engine), (engine, layout)


def layouts(profiles: tuple[MigProfile, ...]) -> Iterator[list[MigProfile]]:
    """Every set of instances that the placements and the limits of the profiles allow."""
    places = [(profile, placement) for profile in profiles for placement in profile.placements]

    def extend(
        chosen: list[MigProfile], taken: list[MigPlacement], rest: list[tuple[MigProfile, MigPlacement]]
    ) -> Iterator[list[MigProfile]]:
        yield chosen
        for index, (profile, placement) in enumerate(rest):
            if chosen.count(profile) < profile.max_instances and not any(map(placement.overlaps, taken)):
                yield from extend([*chosen, profile], [*taken, placement], rest[index + 1 :])

    return extend([], [], places)


def test_a_media_extension_is_told_by_the_name() -> None:
    for model in MIG_MODELS:
        for profile in model.mig_profiles:
            assert (profile.media == MediaExtension.MEDIA_ENGINES) == profile.name.endswith("+me")


@pytest.mark.parametrize("name", ["H100-80GB", "h100-80gb", " H100-80gb "])
def test_a_model_is_found_however_it_is_capitalized(name: str) -> None:
    assert model_named(name) is PRESETS["H100-80GB"]


def test_an_unknown_model_is_refused_with_the_names_that_are_known() -> None:
    with pytest.raises(ValueError, match="no GPU model is named 'H1000'; the known ones are A100-40GB, A100-80GB"):
        model_named("H1000")


@pytest.mark.parametrize("model", PRESETS.values(), ids=lambda model: model.name)
def test_every_number_of_a_model_is_there(model: GpuModel) -> None:
    for field in dataclasses.fields(model):
        if field.name not in ("compute_minor", "mig_profiles"):
            assert getattr(model, field.name), field.name


def test_presets_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        PRESETS["A100-40GB"] = PRESETS["T4"]  # type: ignore[index]


def test_a_model_has_the_article_with_which_it_is_spoken() -> None:
    spoken = [
        with_article(name) for name in ("A100-40GB", "H100-80GB", "L4", "RTX-4090", "T4", "B200", "Quadro", "Ada")
    ]
    assert spoken == ["an A100-40GB", "an H100-80GB", "an L4", "an RTX-4090", "a T4", "a B200", "a Quadro", "an Ada"]
