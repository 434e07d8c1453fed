"""What gpuslice raises when something outside it is not as it should be."""

from __future__ import annotations


class GpusliceError(Exception):
    """Raised for what a user can put right. The text is one line: what is wrong, where, and what to do."""
