"""What the agent answers when it does not do what it was asked."""

from __future__ import annotations

from gpuslice.model.errors import GpusliceError


class AgentError(GpusliceError):
    """Raised for a request that is refused. `code` is for programs, `field` names what was wrong in the request."""

    def __init__(self, code: str, message: str, *, field: str = "", remedy: str = "") -> None:
        super().__init__(f"{message}: {remedy}" if remedy else message)
        self.code = code
        self.message = message
        self.field = field
        self.remedy = remedy


class BrokenSessionError(Exception):
    """Raised when a session's files are not what this agent wrote: the session is put aside."""


class AttachRefusedError(Exception):
    """Raised when a process gets no slot. `status` is one of GPUSLICE_ATTACH_*."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
