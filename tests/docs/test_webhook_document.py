"""docs/webhook.md, tried by following it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.docs.following import ROOT, follow, free_port, steps

if TYPE_CHECKING:
    from pathlib import Path


def test_following_the_guide_gives_what_it_shows(gpuslice_command: Path, folder: Path) -> None:
    guide = steps(ROOT / "docs" / "webhook.md")
    assert any("/mutate" in step.command for step in guide)
    assert any("/validate" in step.command for step in guide)
    follow(guide, gpuslice_command, folder, {"8443": str(free_port()), "8080": str(free_port())})
