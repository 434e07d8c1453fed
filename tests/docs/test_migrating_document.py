"""docs/migrating.md, tried by following it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.docs.following import ROOT, follow, steps

if TYPE_CHECKING:
    from pathlib import Path


def test_following_the_guide_gives_what_it_shows(gpuslice_command: Path, folder: Path) -> None:
    guide = steps(ROOT / "docs" / "migrating.md")
    for dialect in ("castslice", "instaslice", "hami", "kai", "volcano", "vcuda", "timeslicing"):
        assert any(f"/{dialect}" in step.command and step.expected for step in guide), dialect
    follow(guide, gpuslice_command, folder, {})
