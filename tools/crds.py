"""Writes deploy/crds: the definitions that `gpuslice manifests` prints, in files that other tools find.

`python -m tools.crds` writes the file; a test compares it with what this would write.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from gpuslice.cli.manifests import documents
from gpuslice.installing import definitions
from gpuslice.policies import schema

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "deploy" / "crds" / f"{schema.GROUP}_{schema.PLURAL}.yaml"


def text() -> str:
    head = "# Made by `python -m tools.crds` from src/gpuslice/admission/slicepolicies.py.\n"
    return head + documents.write(definitions.slice_policies())


def main() -> int:
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text())
    print(f"==> Wrote {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
