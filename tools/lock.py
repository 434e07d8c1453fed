"""Resolves every dependency anew and writes the locks: exact versions, hashes, and no address of where they came from.

Run by `make lock`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_UV: Final = Path(sys.executable).parent / "uv"


def compile_lock(source: Path, lock: Path) -> None:
    print(f"==> Locking {lock.relative_to(ROOT)}", flush=True)
    subprocess.run(
        [
            _UV,
            *("pip", "compile", "--quiet", "--upgrade", "--universal", "--python-version", "3.11"),
            *("--generate-hashes", "--no-header", "--no-emit-index-url", "--no-emit-find-links"),
            *(source.relative_to(ROOT), "--output-file", lock.relative_to(ROOT)),
        ],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def main() -> int:
    requirements = ROOT / "requirements"
    # In this order: development is constrained by the other two, so that all three install together.
    compile_lock(ROOT / "pyproject.toml", requirements / "runtime.txt")
    compile_lock(requirements / "build.in", requirements / "build.txt")
    compile_lock(requirements / "dev.in", requirements / "dev.txt")
    for source in sorted((ROOT / "tests" / "clients" / "environments").glob("*.in")):
        compile_lock(source, source.with_suffix(".txt"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
