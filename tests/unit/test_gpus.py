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
    "H100-NVL": """
        1g.12gb    19 7 10.75  16 1 0 1 1 0
        1g.12gb+me 20 1 10.75  16 1 0 1 1 1
        1g.24gb    15 4 21.62  26 1 0 1 1 0
        2g.24gb    14 3 21.62  32 2 0 2 2 0
        3g.47gb     9 2 46.38  60 3 0 3 3 0
        4g.47gb     5 1 46.38  64 4 0 4 4 0
        7g.94gb     0 1 93.12 132 7 0 8 7 1
    """,
    "A30": """
        1g.6gb     14 4  5.81  14 1 0 1 0 0
        1g.6gb+me  21 1  5.81  14 1 0 1 1 1
        2g.12gb     5 2 11.69  28 2 0 2 0 0
        2g.12gb+me  6 1 11.69  28 2 0 2 1 1
        4g.24gb     0 1 23.44  56 4 0 4 1 1
    """,
    "RTX-PRO-6000": """
        1g.24gb        14 4 23.62  46 1 1 1 1 0
        1g.24gb+me     21 1 23.62  46 1 1 1 1 1
        1g.24gb+gfx    47 4 23.62  46 1 1 1 1 0
        1g.24gb+me.all 65 1 23.62  46 4 4 1 4 1
        1g.24gb-me     67 4 23.62  46 0 0 1 0 0
        2g.48gb         5 2 47.38  94 2 2 2 2 0
        2g.48gb+gfx    35 2 47.38  94 2 2 2 2 0
        2g.48gb+me.all 64 1 47.38  94 4 4 2 4 1
        2g.48gb-me     66 2 47.38  94 0 0 2 0 0
        4g.96gb         0 1 95.00 188 4 4 4 4 1
        4g.96gb+gfx    32 1 95.00 188 4 4 4 4 1
    """,
}

# Of those for which no whole output is published: the profiles of the user guide, and how many there can be.
GUIDE = {
    "GH200": "1g.12gb 7, 1g.12gb+me 1, 1g.24gb 4, 2g.24gb 3, 3g.48gb 2, 4g.48gb 1, 7g.96gb 1",
    "H20": "1g.12gb 7, 1g.12gb+me 1, 1g.24gb 4, 2g.24gb 3, 3g.48gb 2, 4g.48gb 1, 7g.96gb 1",
    "H200": "1g.18gb 7, 1g.18gb+me 1, 1g.35gb 4, 2g.35gb 3, 3g.71gb 2, 4g.71gb 1, 7g.141gb 1",
    "B200": "1g.23gb 7, 1g.23gb+me 1, 1g.45gb 4, 2g.45gb 3, 3g.90gb 2, 4g.90gb 1, 7g.180gb 1",
    "GB200": "1g.23gb 7, 1g.23gb+me 1, 1g.47gb 4, 2g.47gb 3, 3g.93gb 2, 4g.93gb 1, 7g.186gb 1",
}

# What `nvidia-smi mig -lgipp` prints, the same on all that have seven compute slices, and on those that have four.
LGIPP = {
    19: "{0,1,2,3,4,5,6}:1",
    20: "{0,1,2,3,4,5,6}:1",
    15: "{0,2,4,6}:2",
    14: "{0,2,4}:2",
    9: "{0,4}:4",
    5: "{0}:4",
    0: "{0}:8",
}
LGIPP_OF_FOUR = (
    dict.fromkeys((14, 21, 47, 65, 67), "{0,1,2,3}:1")
    | dict.fromkeys((5, 6, 35, 64, 66), "{0,2}:2")
    | dict.fromkeys((0, 32), "{0}:4")
)

ENGINES = ("compute_slices", "multiprocessors", "copy_engines", "decoders", "jpegs", "ofas", "memory_bytes")


def as_nvidia_smi_prints(profile: MigProfile) -> str:
    gib = f"{profile.memory_bytes / 2**30:.2f}"
    engines = (profile.decoders, profile.encoders, profile.copy_engines, profile.jpegs, profile.ofas)
    numbers = (profile.id, profile.max_instances, gib, profile.multiprocessors, *engines)
    return " ".join(map(str, (profile.name, *numbers)))


def test_mig_profiles_are_those_of_the_user_guide() -> None:
    assert {*GUIDE, *LGIP} == {model.name for model in MIG_MODELS}
    for name, documented in GUIDE.items():
        shapes = [f"{profile.name} {profile.max_instances}" for profile in PRESETS[name].mig_profiles]
        assert ", ".join(shapes) == documented


@pytest.mark.parametrize("model", [PRESETS[name] for name in LGIP], ids=lambda model: model.name)
def test_mig_profiles_are_those_that_nvidia_documents(model: GpuModel) -> None:
    documented = [" ".join(line.split()) for line in LGIP[model.name].strip().splitlines()]
    assert [as_nvidia_smi_prints(profile) for profile in model.mig_profiles] == documented


@pytest.mark.parametrize("model", MIG_MODELS, ids=lambda model: model.name)
def test_mig_placements_are_those_that_nvidia_documents(model: GpuModel) -> None:
    seven = max(profile.compute_slices for profile in model.mig_profiles) == 7
    for profile in model.mig_profiles:
        starts = ",".join(str(placement.start) for placement in profile.placements)
        assert f"{{{starts}}}:{profile.memory_slices}" == (LGIPP if seven else LGIPP_OF_FOUR)[profile.id]
        assert {placement.size for placement in profile.placements} == {profile.memory_slices}


@pytest.mark.parametrize("name", ["A100-40GB", "A100-80GB", "H100-80GB", "H100-NVL", "GH200", "H20", "H200"])
def test_no_mig_layout_needs_more_engines_than_the_gpu_has(name: str) -> None:
    model = PRESETS[name]
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
            assert (profile.media == MediaExtension.MEDIA_ENGINES) == ("+me" in profile.name)
            assert (profile.media == MediaExtension.NO_MEDIA) == profile.name.endswith("-me")
            assert (profile.media == MediaExtension.GRAPHICS) == profile.name.endswith("+gfx")


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
