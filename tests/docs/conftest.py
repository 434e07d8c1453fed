"""Where a document is followed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.following import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def folder() -> Iterator[Path]:
    """A copy of what the documents use, with a short path: a socket's has at most 107 characters."""
    made = Path(tempfile.mkdtemp(prefix="gpuslice-docs-"))
    for name in ("examples", "deploy"):
        (made / name).symlink_to(ROOT / name)
    yield made
    shutil.rmtree(made)
