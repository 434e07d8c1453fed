"""Writes deploy/crds: the definitions that `gpuslice manifests` prints, in files that other tools find.

`python -m tools.crds` writes the files; a test compares them with what this would write.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from gpuslice.accounting.budgets import schema as budgets
from gpuslice.cli.manifests import documents
from gpuslice.installing import definitions
from gpuslice.policies import schema

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "deploy" / "crds"
#: Of SlicePolicy.
TARGET: Final = FOLDER / f"{schema.GROUP}_{schema.PLURAL}.yaml"


def texts() -> dict[Path, str]:
    """What the files should hold."""
    head = "# Made by `python -m tools.crds` from the structs in src/gpuslice/{}/schema.py.\n"
    found = {}
    for definition in definitions.all_definitions():
        plural = definition["spec"]["names"]["plural"]
        room = {schema.PLURAL: "policies", budgets.PLURAL: "accounting/budgets"}.get(plural, "quotas")
        found[FOLDER / f"{schema.GROUP}_{plural}.yaml"] = head.format(room) + documents.write(definition)
    return found


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in texts().items():
        path.write_text(text)
        print(f"==> Wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
