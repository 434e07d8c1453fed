"""What a node's owner can say about GPUs, and how a mistake is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuslice.node.gpus.policies import GpuPolicies, GpuPolicyError, Mode, Placement, TaintEffect, from_file, from_table
from tests.unit.node.making import gpu

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_says_it_all(tmp_path: Path) -> None:
    file = tmp_path / "gpus.toml"
    file.write_text(
        'default = "mig"\nplacement = "spread"\nunhealthy = "NoExecute"\n[gpus]\n1 = "reserve"\n"L4" = "whole"\n'
    )
    found = from_file(file)
    assert (found.default, found.placement, found.unhealthy) == (Mode.MIG, Placement.SPREAD, TaintEffect.NO_EXECUTE)
    assert [found.mode(gpu(0)), found.mode(gpu(1)), found.mode(gpu(2, "L4"))] == [Mode.MIG, Mode.RESERVE, Mode.WHOLE]


def test_an_option_says_more_than_the_file_and_a_uuid_more_than_an_index() -> None:
    found = from_table({"gpus": {"0": "mig"}}, "file").with_options(["0=whole", f"{gpu(0).uuid}=reserve"])
    assert found.mode(gpu(0)) is Mode.RESERVE
    assert found.mode(gpu(1)) is Mode.SHARE
    assert GpuPolicies().with_options(["0=whole"]).mode(gpu(0)) is Mode.WHOLE


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"defualt": "mig"}, "file has an unknown key 'defualt': known are default, gpus, mig-mode"),
        ({"default": "split"}, "file: default: 'split' is none of share, mig, whole, reserve"),
        ({"gpus": {"0": 7}}, "file: gpus.0: 7 is none of share"),
        ({"gpus": ["mig"]}, "file: gpus is not a table"),
        ({"placement": True}, "file: placement: True is none of pack, spread"),
    ],
)
def test_a_mistake_is_told_with_its_place(table: dict[str, object], message: str) -> None:
    with pytest.raises(GpuPolicyError) as error:
        from_table(table, "file")
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("option", ["mig", "=mig", "0=", "0=split"])
def test_a_bad_option_is_refused(option: str) -> None:
    with pytest.raises(GpuPolicyError, match="--gpu-policy"):
        GpuPolicies().with_options([option])


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    file = tmp_path / "gpus.toml"
    file.write_text("default = ")
    with pytest.raises(GpuPolicyError, match=r"gpus\.toml is not TOML"):
        from_file(file)
    with pytest.raises(GpuPolicyError, match="cannot be read"):
        from_file(tmp_path / "absent")
