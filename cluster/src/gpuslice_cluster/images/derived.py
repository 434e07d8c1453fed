"""Files of a layer that are made of others when the layer is written: Python's compiled code, and programs without what
only a debugger reads. Both depend on content alone, so that two machines with the same sources make the same layer.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from gpuslice_cluster.binaries import installed
from gpuslice_cluster.images.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: What compiled code depends on beside its source.
COMPILER: Final = importlib.util.MAGIC_NUMBER.hex()

# In a process of its own: how code is marshalled depends on which of its strings others in the process hold. Code that
# is trusted by the hash of its source needs no time of its source.
_COMPILE: Final = """\
import importlib.util, json, marshal, sys

for source, shown, target in json.load(sys.stdin):
    with open(source, "rb") as file:
        data = file.read()
    code = compile(data, shown, "exec", dont_inherit=True, optimize=0)
    header = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + importlib.util.source_hash(data)
    with open(target, "wb") as file:
        file.write(header + marshal.dumps(code))
"""


def compile_modules(modules: Sequence[tuple[Path, str, Path]]) -> None:
    """Each source under the path that tracebacks show, into its target."""
    if not modules:
        return
    wanted = json.dumps([(str(source), shown, str(target)) for source, shown, target in modules])
    command = [sys.executable, "-I", "-W", "ignore", "-c", _COMPILE]
    result = subprocess.run(
        command, input=wanted, capture_output=True, text=True, check=False, env={"PYTHONHASHSEED": "0"}
    )
    if result.returncode:
        raise ImageError(f"Python's modules cannot be compiled: {result.stderr.strip()}")


def strip(source: Path, target: Path) -> None:
    """The program or library without its debugger's information."""
    command = [installed("strip"), "--strip-unneeded", "-o", str(target), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ImageError(f"{source}: cannot be stripped: {result.stderr.strip()}")
