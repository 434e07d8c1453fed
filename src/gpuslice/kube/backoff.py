"""The backoff of `gpuslice.system.backoff`, under the name that the users of watches import."""

from gpuslice.system.backoff import Backoff

__all__ = ["Backoff"]
