"""What can go wrong with images."""

from __future__ import annotations

from gpuslice.model.errors import GpusliceError


class ImageError(GpusliceError):
    """Raised when something that an image is made of is missing, or an image cannot be loaded."""
