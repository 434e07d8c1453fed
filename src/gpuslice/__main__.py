"""`python -m gpuslice`, for where the command itself is not on the path."""

from __future__ import annotations

from gpuslice.cli.main import main

if __name__ == "__main__":
    main()
