"""Configurations for tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice.configuration import effective, reading
from gpuslice.configuration.effective import Layer
from gpuslice.configuration.schema import API_VERSION, KIND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.configuration.effective import Effective, Override

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "deploy" / "configuration.yaml"
HEADER = f"apiVersion: {API_VERSION}\nkind: {KIND}\n"


def parsed(text: str, overrides: Sequence[Override] = ()) -> Effective:
    """Of a file that begins as it must."""
    return effective.load([Layer("file", reading.parse(HEADER + text, "file"))], overrides)
