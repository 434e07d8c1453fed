"""Makes the packages that pip installs: a wheel for every Linux with glibc 2.17 or later, and a source distribution.

python -m tools.packages [FOLDER]     into dist/ if no folder is given
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_BIN: Final = Path(sys.executable).parent
#: The oldest C library that the native libraries load with; auditwheel refuses a wheel that needs a newer one.
_PLATFORM: Final = f"manylinux2014_{platform.machine()}"
#: So that the same sources make the same files: the beginning of what a zip archive can say.
_ENVIRONMENT: Final = os.environ | {"SOURCE_DATE_EPOCH": "315532800", "PATH": f"{_BIN}:{os.environ['PATH']}"}


def build(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpuslice-packages-") as scratch:
        _run(_BIN / "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir", scratch, ROOT)
        (made,) = Path(scratch).glob("*.whl")
        _run(_BIN / "auditwheel", "repair", "--plat", _PLATFORM, "--wheel-dir", folder, made)
    _run(_BIN / "python", "-c", _SOURCES, folder)


#: As pip asks a project for it.
_SOURCES: Final = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"


def _run(*command: str | Path) -> None:
    result = subprocess.run(command, cwd=ROOT, env=_ENVIRONMENT, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"error: {' '.join(map(str, command))}\n{result.stdout}{result.stderr}")


def main(arguments: list[str]) -> int:
    folder = Path(*arguments) if arguments else ROOT / "dist"
    build(folder)
    for path in sorted(folder.glob("gpuslice-*")):
        if path.suffix in {".whl", ".gz"}:
            print(f"==> Wrote {path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
