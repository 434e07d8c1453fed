"""What an installation can say about names and presets, and how a mistake is reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuslice.dialects.known import castslice
from gpuslice.dialects.settings_file import NO_FILE, SettingsError, parse
from gpuslice.model.settings import DEFAULT_SETTINGS, Settings

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "settings.toml"


def test_the_example_says_it_all() -> None:
    found = parse(EXAMPLE.read_text(), str(EXAMPLE))

    assert found.text == EXAMPLE.read_text()
    assert found.settings == Settings(
        whole_resource="nvidia.com/gpu",
        shared_resource="example.com/gpu-slot",
        slots_per_gpu=4,
        dialects={
            "castslice.presets": {"training": 4, "inference": 2, "notebook": 1},
            "castslice.annotations.optimize": "example.com/share-gpu",
            "castslice.annotations.slice-ratio": "example.com/gpu-slots",
            "castslice.annotations.workload-type": "example.com/workload",
        },
    )
    assert found.settings.get(castslice.DEFAULT_SLOTS) == 1


def test_the_document_shows_the_example() -> None:
    (shown,) = re.findall(r"^```toml\n(.*?)^```", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE | re.DOTALL)

    assert parse(shown, "shown").settings == parse(EXAMPLE.read_text(), "example").settings


def test_what_a_file_does_not_say_is_as_it_is_without_one() -> None:
    assert parse("# nothing\n", "file").settings == NO_FILE.settings == DEFAULT_SETTINGS
    assert parse("slots-per-gpu = 4\n", "file").settings.get(castslice.PRESETS) == DEFAULT_SETTINGS.get(
        castslice.PRESETS
    )


def test_a_file_that_names_any_preset_names_them_all() -> None:
    assert parse("[castslice.presets]\nbig = 8\n", "file").settings.get(castslice.PRESETS) == {"big": 8}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slots-per-gpu = ", "file: is not TOML: "),
        ("slots = 4", "file: slots: is not known; write one of castslice, shared-resource, slots-per-gpu, whole-res"),
        ("[castslice]\nslots = 4", "file: castslice.slots: is not known; write one of annotations, default-slots, pre"),
        (
            '[castslice.annotations]\noptimise = "a"',
            "file: castslice.annotations.optimise: is not known; write one of optimize, slice-ratio, workload-type",
        ),
        ('slots-per-gpu = "4"', "file: slots-per-gpu: is of type str; write a whole number, as 4"),
        ("slots-per-gpu = true", "file: slots-per-gpu: is of type bool; write a whole number"),
        ("slots-per-gpu = 2026-11-16", "file: slots-per-gpu: is of type date; write a whole number"),
        ("shared-resource = 4", 'file: shared-resource: is of type int; write a text, as "..."'),
        ("castslice = 4", "file: castslice: is of type int; write a table, as [castslice]"),
        ("[castslice]\npresets = []", "file: castslice.presets: is of type array; write a table"),
        ("slots-per-gpu = 0", "file: slots-per-gpu: 0 is not a number of slots; write 1 to 1000"),
        ("slots-per-gpu = 1001", "file: slots-per-gpu: 1001 is not a number of slots; write 1 to 1000"),
        ("[castslice]\ndefault-slots = -1", "file: castslice.default-slots: -1 is not a number of slots; write 1 to"),
        ('[castslice.presets]\n"" = 1', "file: castslice.presets: '' cannot be a workload type; write up to 63"),
        ("[castslice.presets]\nbig = 0", "file: castslice.presets.big: 0 is not a number of slots; write 1 to 1000000"),
        ('[castslice.presets]\nbig = "8"', "file: castslice.presets.big: '8' is not a number of slots; write 1 to"),
        ("[castslice.presets]\nbig = true", "file: castslice.presets.big: True is not a number of slots; write 1 to"),
        (
            "[castslice.presets]\n" + "\n".join(f"p{number} = 1" for number in range(65)),
            "file: castslice.presets: has 65; keep at most 64",
        ),
        (
            'shared-resource = "nvidia.com/gpu"',
            "file: shared-resource: 'nvidia.com/gpu' is also whole-resource; choose another name for one of them",
        ),
        (
            '[castslice.annotations]\noptimize = "example.com/a"\nworkload-type = "example.com/a"',
            "file: castslice.annotations.workload-type: 'example.com/a' is also castslice.annotations.optimize; choose",
        ),
        ('[castslice.annotations]\noptimize = "a b"', "file: castslice.annotations.optimize: 'a b' is not the name of"),
    ],
)
def test_a_mistake_is_told_with_the_file_the_field_and_the_remedy(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(text, "file")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gpu",
        "/gpu",
        "example.com/",
        "example.com/a/b",
        "Example.com/gpu",
        "example..com/gpu",
        "kubernetes.io/gpu",
        "node.kubernetes.io/gpu",
        "requests.example.com/gpu",
        f"{'a.' * 122}a/gpu",
        f"example.com/{'a' * 64}",
        'example.com/"',
        "example.com/gpu\n",
    ],
)
def test_a_name_that_kubernetes_does_not_take_for_an_extended_resource_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=r"file: whole-resource: .* is not the name of an extended resource; write"):
        parse(f"whole-resource = {_quoted(name)}", "file")


@pytest.mark.parametrize("key", ["whole-resource", "shared-resource"])
@pytest.mark.parametrize(
    "name", ["gpuslice.io/memory", "nvidia.com/gpumem", "nvidia.com/mig-1g.5gb", "tencent.com/vcuda-core"]
)
def test_a_resource_of_another_dialect_is_refused(key: str, name: str) -> None:
    with pytest.raises(SettingsError, match=f"file: {key}: '{name}' has a meaning in a dialect; choose another"):
        parse(f"{key} = {_quoted(name)}", "file")


@pytest.mark.parametrize("name", ["gpu-fraction", "gpuslice.io/fraction", "gpuslice.io/slice", "gpu-memory"])
def test_an_annotation_of_another_dialect_or_of_our_own_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"optimize: '{name}' has a meaning in a dialect; choose another"):
        parse(f"[castslice.annotations]\noptimize = {_quoted(name)}", "file")


def _quoted(text: str) -> str:
    escaped = text.replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
