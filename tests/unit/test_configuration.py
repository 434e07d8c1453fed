"""How a simulated machine is described."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gpuslice.model.gpus import model_named
from gpuslice.simulator.configuration import Configuration, ConfigurationError, from_file, from_text

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "machine.toml"


def read(tmp_path: Path, text: str, name: str | None = None) -> Configuration:
    path = tmp_path / "machine.toml"
    path.write_text(textwrap.dedent(text))
    return from_file(path, name=name)


def test_the_command_line_counts_presets() -> None:
    configuration = from_text("2xA100-40GB, T4")
    assert [gpu.model.name for gpu in configuration.gpus] == ["A100-40GB", "A100-40GB", "T4"]


def test_uuids_differ_within_and_between_machines_and_stay_the_same() -> None:
    one, other, again = (from_text("2xT4", name=name) for name in ("one", "other", "one"))
    assert one == again
    assert len({gpu.uuid for gpu in (*one.gpus, *other.gpus)}) == 4


@pytest.mark.parametrize("text", ["", "2x", "0xT4", "17xT4", "9xT4,8xT4", "A100-40GB x 2", "-1xT4", "B999"])
def test_a_list_of_gpus_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        from_text(text)


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 49, "sp ace"])
def test_a_name_that_cannot_be_a_folder_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot name a machine"):
        from_text("T4", name=name)


def test_a_file_describes_presets_and_kernels(tmp_path: Path) -> None:
    configuration = read(
        tmp_path,
        """
        name = "lab"
        [[gpus]]
        model = "A100-40GB"
        count = 2
        context_memory = "300MiB"
        [kernels]
        base = "5us"
        """,
    )
    assert configuration.name == "lab"
    assert [gpu.context_bytes for gpu in configuration.gpus] == [300 * 2**20] * 2
    assert (configuration.kernel_ns, configuration.wave_ns) == (5000, 1000)


def test_a_gpu_can_be_made_by_hand(tmp_path: Path) -> None:
    uuid = "GPU-5a3c1d0e-0000-4000-8000-000000000001"
    (gpu,) = read(
        tmp_path,
        f"""
        [[gpus]]
        model = "Prototype"
        memory = "24GiB"
        multiprocessors = 60
        uuid = "{uuid}"
        [[gpus.mig_profiles]]
        name = "1g.12gb"
        memory = "12GiB"
        multiprocessors = 30
        compute_slices = 1
        memory_slices = 1
        max_instances = 2
        placements = [{{ start = 0, size = 1 }}, {{ start = 1, size = 1 }}]
        """,
    ).gpus
    assert gpu.uuid == uuid
    assert (gpu.model.name, gpu.model.memory_bytes, gpu.model.multiprocessors) == ("Prototype", 24 * 2**30, 60)
    assert [profile.name for profile in gpu.model.mig_profiles] == ["1g.12gb"]


def test_a_preset_can_be_changed(tmp_path: Path) -> None:
    (gpu,) = read(
        tmp_path,
        """
        [[gpus]]
        model = "A100-40GB"
        memory = "1GiB"
        clock_khz = 1000000
        mig_profiles = ["1g.5gb"]
        """,
    ).gpus
    assert (gpu.model.memory_bytes, gpu.model.clock_khz) == (2**30, 1_000_000)
    assert gpu.model.multiprocessors == model_named("A100-40GB").multiprocessors
    assert [profile.name for profile in gpu.model.mig_profiles] == ["1g.5gb"]


def test_the_name_given_wins_over_the_files(tmp_path: Path) -> None:
    assert read(tmp_path, 'name = "lab"\n[[gpus]]\nmodel = "T4"', name="mine").name == "mine"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it has no GPUs"),
        ("gpus = 1", "gpus is 1: it must be of type list"),
        ("gpus = [1]", r"start it with \[\[gpus\]\]"),
        ("[[gpus]]", "needs memory and multiprocessors"),
        ('[[gpus]]\nmodel = "B999"', "'B999' is no preset"),
        ('[[gpus]]\nmodel = "T4"\ncuont = 2', "unknown key 'cuont'"),
        ('[[gpus]]\nmodel = "T4"\ncount = true', "it must be of type int"),
        ('[[gpus]]\nmodel = "T4"\ncount = 99', "a machine has 1 to 16 GPUs"),
        ('[[gpus]]\nmodel = "T4"\nmemory = "lots"', "does not start with a number"),
        ('[[gpus]]\nmodel = "T4"\nmemory = 1.5', 'write for example memory = "4GiB"'),
        ('[[gpus]]\nmodel = "T4"\nmultiprocessors = -1', "at least 0"),
        ('[[gpus]]\nmodel = "T4"\nuuid = "1234"', "is not a GPU's UUID"),
        ('[[gpus]]\nmodel = "T4"\ncount = 2\nuuid = "GPU-x"', "one uuid cannot be that of 2 GPUs"),
        ('[[gpus]]\nmodel = "T4"\nmig_profiles = ["1g.5gb"]', "T4 has no MIG profile '1g.5gb'"),
        ('[[gpus]]\nmodel = "T4"\nmig_profiles = [{ name = "1g" }]', "'1g' has no memory"),
        ('[[gpus]]\nmodel = "T4"\n[kernels]\nbase = "2"', "the unit is missing"),
        ("[[gpus", "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_its_path_and_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        read(tmp_path, text)
    assert str(tmp_path / "machine.toml") in str(caught.value)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        from_file(tmp_path / "absent.toml")


def test_two_gpus_cannot_have_one_uuid(tmp_path: Path) -> None:
    entry = '[[gpus]]\nmodel = "T4"\nuuid = "GPU-5a3c1d0e-0000-4000-8000-000000000001"\n'
    with pytest.raises(ConfigurationError, match="two GPUs have the UUID"):
        read(tmp_path, entry * 2)


def test_the_example_is_a_machine() -> None:
    assert len(from_file(EXAMPLE).gpus) > 1
