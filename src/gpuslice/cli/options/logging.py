"""The log of a command, as its configuration has it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuslice.configuration.schema import Logging


def configure(logging: Logging) -> None:
    from gpuslice.system import logs

    form = logging.form
    if form == "auto":
        form = "console" if sys.stderr.isatty() else "json"
    logs.configure(form, debug=logging.debug or os.environ.get("GPUSLICE_DEBUG", "") not in ("", "0"))
