"""What goes wrong between us and the API server."""

from __future__ import annotations

from gpuslice.model.errors import GpusliceError


class CredentialsError(GpusliceError):
    """Raised when there is no way to reach a cluster: no file, no service account, or one that makes no sense."""


class UnreachableError(GpusliceError):
    """Raised when a call got no answer. Whether it had an effect is not known."""


class AnswerTooLongError(UnreachableError):
    """Raised when an answer is longer than it may be: the rest of it was not read."""


class LeadershipLostError(GpusliceError):
    """Raised when the lease could not be renewed in time: another process may be leader now."""


class ApiError(GpusliceError):
    """Raised when the API server answered, and the answer is no. `reason` is its own word for it, as `NotFound`."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message or f"the API server answered with {code} {reason}")
        self.code = code
        self.reason = reason

    @property
    def not_found(self) -> bool:
        return self.code == 404

    @property
    def conflict(self) -> bool:
        """The object is there already, or is not what the precondition says."""
        return self.code == 409

    @property
    def expired(self) -> bool:
        """What was asked to go on from is too old for the server to know."""
        return self.code == 410

    @property
    def passing(self) -> bool:
        """The server is busy, starting or stopping: the same call may work a little later."""
        return self.code in (429, 502, 503)
