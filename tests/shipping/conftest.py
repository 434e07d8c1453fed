"""What is shipped, made once for all tests that look at it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def shipped_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with wheel and source distribution."""
    folder = tmp_path_factory.mktemp("packages")
    subprocess.run([sys.executable, "-m", "tools.packages", str(folder)], cwd=ROOT, check=True, timeout=300)
    return folder
