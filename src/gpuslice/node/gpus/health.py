"""Which GPUs are not fit for work: those that reported an error of their own (an XID), and those off the bus.

What is known of a GPU's health is a file named after it, so that it outlives the agent and a person can set it right:
remove the file when the GPU has been reset. A reboot removes all of them with the state folder.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import pynvml

from gpuslice.node.gpus.nvml import NvmlUnavailableError
from gpuslice.system.files import write_durably

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from gpuslice.node.gpus.hardware import Gpu
    from gpuslice.node.gpus.mig import Handle

#: Errors that a program makes and that leave the GPU as good as before: 13 a bad instruction or address, 31 a page
#: fault, 43 a channel that was reset, 45 a process that was cleaned up, 68 a video decoder's, 109 a slow switch.
APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
XID_OFF_THE_BUS: Final = 79


class Illness(msgspec.Struct, frozen=True):
    """What is wrong with a GPU. `xid` is None for one that NVML lost without saying why."""

    xid: int | None = None

    def describe(self) -> str:
        if self.xid is None:
            return "fell off the bus"
        return f"reported XID {self.xid}" + (", fell off the bus" if self.xid == XID_OFF_THE_BUS else "")


class Health:
    """The illnesses on record. `ignored` are XIDs that say nothing about the GPU."""

    def __init__(self, folder: Path, *, ignored: frozenset[int] = APPLICATION_XIDS) -> None:
        self._folder = folder
        self._ignored = ignored

    def illnesses(self) -> dict[str, Illness]:
        """By GPU. A record that cannot be read is of an ill GPU all the same."""
        found = {}
        for path in sorted(self._folder.glob("GPU-*")):
            try:
                found[path.name] = msgspec.json.decode(path.read_bytes(), type=Illness)
            except FileNotFoundError:
                continue
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
                found[path.name] = Illness()
        return found

    def report(self, gpu_uuid: str, illness: Illness) -> bool:
        """Puts it on record. False if it says nothing new, or nothing about the GPU."""
        if illness.xid in self._ignored or gpu_uuid in self.illnesses():
            return False
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self._folder / gpu_uuid, msgspec.json.encode(illness) + b"\n")
        return True

    def compare(self, known: Mapping[str, Gpu], answering: Iterable[Gpu]) -> list[str]:
        """Puts on record that GPUs of which we knew do not answer any more. Returns those that this is news of."""
        there = {gpu.uuid for gpu in answering}
        return [uuid for uuid in known if uuid not in there and self.report(uuid, Illness())]


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An error that a GPU reported."""

    gpu_uuid: str
    xid: int


class XidEvents:
    """NVML's events of this node's GPUs. `wait` blocks, so it has a thread of its own."""

    def __init__(self, gpus: Iterable[Gpu]) -> None:
        try:
            pynvml.nvmlInit()
            self._set = pynvml.nvmlEventSetCreate()
            self._uuids: dict[str, str] = {}
            for gpu in gpus:
                self._register(gpu)
        except pynvml.NVMLError as error:
            raise NvmlUnavailableError(str(error)) from None

    def _register(self, gpu: Gpu) -> None:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_NotFound):
            return  # an old GPU has no events, and a lost one is found by asking
        # Once it is off the bus NVML does not tell its UUID any more, so handles are told apart by what they hold.
        self._uuids[_key(handle)] = gpu.uuid

    def wait(self, milliseconds: int) -> XidEvent | None:
        """The next error, or None after that time."""
        try:
            event = pynvml.nvmlEventSetWait_v2(self._set, milliseconds)
        except pynvml.NVMLError_Timeout:
            return None
        except pynvml.NVMLError as error:
            raise NvmlUnavailableError(str(error)) from None
        uuid = self._uuids.get(_key(event.device))
        return None if uuid is None else XidEvent(uuid, int(event.eventData))

    def close(self) -> None:
        pynvml.nvmlEventSetFree(self._set)
        pynvml.nvmlShutdown()


def _key(handle: Handle) -> str:
    return str(ctypes.cast(handle, ctypes.c_void_p).value)
