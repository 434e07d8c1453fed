"""Prints where NVIDIA's wheels put their headers: CUDA 13, CUDA 12, NVML 13 and NVML 12, as a CMake list.

The wheels share the namespace package `nvidia`, and its folders moved between CUDA 12 and 13, so each header is looked
for where each generation keeps it.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_WANTED = (
    ("cu13/include/cuda.h", "nvidia-cuda-runtime"),
    ("cuda_runtime/include/cuda.h", "nvidia-cuda-runtime-cu12"),
    ("cu13/include/nvml.h", "nvidia-nvml-dev"),
    ("nvml_dev/include/nvml.h", "nvidia-nvml-dev-cu12"),
)


def main() -> int:
    package = importlib.util.find_spec("nvidia")
    roots = [Path(folder) for folder in (package.submodule_search_locations or ())] if package else []
    found = []
    for header, wheel in _WANTED:
        folder = next((root / header for root in roots if (root / header).is_file()), None)
        if folder is None:
            print(f"{header} is in no folder of the package 'nvidia': install the wheel {wheel}", file=sys.stderr)
            return 1
        found.append(str(folder.parent))
    print(";".join(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
