"""Writes deploy/install.yaml: what `gpuslice manifests` prints, for those who have no gpuslice at hand yet.

`python -m tools.install_manifest` writes the file; a test compares it with what this would write.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from gpuslice.cli.commands import manifests
from gpuslice.installing import parts
from gpuslice.installing.options import Options

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "deploy" / "install.yaml"


def text() -> str:
    return "# Made by `python -m tools.install_manifest`.\n" + manifests.text(parts.objects(Options()))


def main() -> int:
    TARGET.write_text(text())
    print(f"==> Wrote {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
