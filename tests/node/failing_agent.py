"""`gpuslice agent`, with parts that fail for as long as a test wants it.

    failing_agent.py FOLDER PART=MODULE:CLASS.METHOD... -- ARGUMENTS OF gpuslice

While the file PART is in the folder, the method raises an exception that nothing expects.
"""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

from gpuslice.cli.main import main


def make_fail(gate: Path, where: str) -> None:
    module, _, name = where.partition(":")
    owner: Any = importlib.import_module(module)
    *path, method = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    original = getattr(owner, method)

    @functools.wraps(original)
    def failing(*arguments: object, **named: object) -> Any:  # noqa: ANN401 - what the method returns
        if gate.exists():
            raise LookupError("injected")
        return original(*arguments, **named)

    setattr(owner, method, failing)


if __name__ == "__main__":
    end = sys.argv.index("--")
    folder = Path(sys.argv[1])
    for argument in sys.argv[2:end]:
        part, _, where = argument.partition("=")
        make_fail(folder / part.replace("/", "_"), where)
    sys.argv[1:] = sys.argv[end + 1 :]
    main()
