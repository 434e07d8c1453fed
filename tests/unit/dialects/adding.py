"""A plugin of pytest: the folder `added` is one more place where dialects are found."""

from __future__ import annotations

from pathlib import Path

from gpuslice.dialects import known

known.__path__.append(str(Path(__file__).with_name("added")))
