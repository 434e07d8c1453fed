"""The reserve protocol in every order of its steps: native/model/reserve.pml, searched by Spin."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.native.building import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MODEL = ROOT / "native" / "model" / "reserve.pml"


def search(folder: Path, *defines: str, liveness: bool = False) -> str:
    """What Spin's search over all states reports."""
    if shutil.which("spin") is None:
        pytest.fail("spin is not installed: run `tools/debian-packages test`", pytrace=False)
    macros = [f"-D{define}" for define in defines]
    done = subprocess.run(["spin", *macros, "-a", MODEL], cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    kind = ["-DNFAIR=4"] if liveness else ["-DSAFETY", "-DNOCLAIM", "-DCOLLAPSE"]
    subprocess.run(["cc", "-O2", "-w", *kind, "-DMEMLIM=2048", "-o", "pan", "pan.c"], cwd=folder, check=True)
    arguments = ["-a", "-f"] if liveness else []
    searched = subprocess.run(
        ["./pan", "-m1000000", *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    assert "max search depth too small" not in searched.stdout
    return searched.stdout


def holds(report: str) -> bool:
    found = re.search(r"errors: (\d+)", report)
    assert found is not None, report
    complete = "Search not completed" not in report and "out of memory" not in report
    assert complete or found[1] != "0", report
    return found[1] == "0"


@pytest.mark.parametrize(
    "defines",
    [
        ("TENANTS=2", "KILLS=2"),
        ("TENANTS=2", "KILLS=2", "KEPT=3"),
        ("TENANTS=3", "KILLS=0", "LOOKS=1", "ATTEMPTS=1"),
        ("TENANTS=3", "KILLS=1", "LOOKS=1", "ATTEMPTS=1", "ONCE"),
        ("TENANTS=3", "KILLS=1", "LOOKS=1", "ATTEMPTS=1", "ONCE", "KEPT=2"),
    ],
    ids=" ".join,
)
def test_never_over_the_limit_exact_after_kills_and_never_stuck(defines: tuple[str, ...], tmp_path: Path) -> None:
    assert holds(search(tmp_path, *defines))


LOWERED = ("KILLS=0", "LIMIT=4", "LOWERED=2")


@pytest.mark.parametrize("defines", [LOWERED, ("KILLS=0", "LOWERED=2", "KEPT=3")], ids=" ".join)
def test_a_lowered_limit_holds_for_every_request_after_it(defines: tuple[str, ...], tmp_path: Path) -> None:
    assert holds(search(tmp_path, *defines))


def test_what_fits_is_granted_though_another_keeps_all_of_it(tmp_path: Path) -> None:
    assert holds(search(tmp_path, "FITS", "KILLS=0", "KEPT=3"))


KEPT = pytest.mark.parametrize("kept", ["KEPT=0", "KEPT=3"])


@KEPT
def test_of_two_that_fit_alone_not_both_are_refused_for_want_of_room(kept: str, tmp_path: Path) -> None:
    assert holds(search(tmp_path, "CONTEST", "KILLS=0", kept))


@KEPT
def test_of_two_that_fit_alone_one_is_granted_when_they_do_not_wait_equally_long(kept: str, tmp_path: Path) -> None:
    assert holds(search(tmp_path, "CONTEST", "PAUSES", "KILLS=0", kept, liveness=True))


def test_only_the_unequal_pauses_keep_two_from_withdrawing_for_ever(tmp_path: Path) -> None:
    """What the model says is not proven: two in step. The search must find them."""
    assert not holds(search(tmp_path, "CONTEST", "KILLS=0", liveness=True))


def test_the_sum_before_the_units_would_hand_out_too_much(tmp_path: Path) -> None:
    """So the search can fail."""
    report = search(tmp_path, "TENANTS=2", "KILLS=0", "SUM_FIRST")
    assert not holds(report)
    assert "assertion violated (total<=3)" in report


@pytest.mark.parametrize("mistake", ["ANY_EPOCH", "NO_RECHECK"])
def test_without_the_epoch_a_lowered_limit_would_not_hold(mistake: str, tmp_path: Path) -> None:
    report = search(tmp_path, *LOWERED, mistake)
    assert not holds(report)
    assert "||(total<=2)" in report
