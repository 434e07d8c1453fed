"""docs/run.md, tried by following it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.docs.following import ROOT, follow, free_port, steps

if TYPE_CHECKING:
    from pathlib import Path


def test_following_the_guide_gives_what_it_shows(gpuslice_command: Path, machine_name: str, folder: Path) -> None:
    guide = steps(ROOT / "docs" / "run.md")
    assert len(guide) > 20
    follow(guide, gpuslice_command, folder, {"run-guide": machine_name, "9500": str(free_port())})
