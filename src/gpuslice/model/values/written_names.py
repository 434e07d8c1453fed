"""The annotations and the label that admission writes on a pod: they ask for nothing."""

from __future__ import annotations

from typing import Final

SLICE: Final = "gpuslice.io/slice"
DIALECT: Final = "gpuslice.io/dialect"
POLICY: Final = "gpuslice.io/policy"
BACKEND: Final = "gpuslice.io/backend"
RECIPES: Final = "gpuslice.io/claim-templates"
ASKED: Final = "gpuslice.io/asked"
ANNOTATIONS: Final = (SLICE, DIALECT, POLICY, BACKEND, RECIPES, ASKED)
#: A label.
SLICED: Final = "gpuslice.io/sliced"
ALL: Final = frozenset((*ANNOTATIONS, SLICED))
