"""Writes C and linker scripts for libraries that have glibc 2.17's names and versions, for the linker alone.

    glibc.py OUT_DIR SYMBOLS MACHINE      MACHINE as CMake calls it: x86_64, aarch64

Run by the build (native/CMakeLists.txt): `libc.c` and `libc.map` make what `libc.so.6` is for the linker, and so on.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

_ONLY_VERSION = {"aarch64": "GLIBC_2.17"}


def read(symbols: str, machine: str) -> dict[str, dict[str, list[str]]]:
    """By library and version, the names."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in symbols.splitlines():
        if line.strip() and not line.startswith("#"):
            library, version, *names = line.split()
            found[library][_ONLY_VERSION.get(machine, version)] += names
    return found


def definitions(names: list[str]) -> str:
    """In assembler, because the compiler knows many of these functions and wants their true types."""
    lines = "".join(f'    ".globl {name}\\n.type {name}, %function\\n{name}:\\n"\n' for name in sorted(names))
    return f'__asm__(".text\\n"\n{lines});\n'


def version_script(versions: dict[str, list[str]]) -> str:
    return "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};\n"
        for version, names in versions.items()
    )


def main(arguments: list[str]) -> int:
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    out, symbols, machine = Path(arguments[0]), Path(arguments[1]), arguments[2]
    out.mkdir(parents=True, exist_ok=True)
    for library, versions in read(symbols.read_text(), machine).items():
        stem = library.partition(".")[0]
        (out / f"{stem}.c").write_text(definitions([name for names in versions.values() for name in names]))
        (out / f"{stem}.map").write_text(version_script(versions))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
