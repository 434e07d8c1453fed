"""The description at the head of a machine file, as native/simulator/machine.h declares it.

tests/native/test_layout.py compares every field with the C compiler's word. The state behind the description is the
libraries' own; Python knows its size and nothing else of it.
"""

from __future__ import annotations

import ctypes
from typing import Final

MAGIC: Final = 0x314D495345435047
VERSION: Final = 2
MAX_GPUS: Final = 16
MAX_PROFILES: Final = 16
MAX_PLACEMENTS: Final = 8
NO_NUMA_NODE: Final = 2**32 - 1

#: sizeof(struct sim_machine). The file is sparse: what was never used takes no memory.
MACHINE_BYTES: Final = 205_803_520


class Placement(ctypes.Structure):
    """struct sim_placement."""

    _fields_ = (("start", ctypes.c_uint32), ("size", ctypes.c_uint32))


class Profile(ctypes.Structure):
    """struct sim_profile."""

    _fields_ = (
        ("number", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("compute_slices", ctypes.c_uint32),
        ("memory_slices", ctypes.c_uint32),
        ("multiprocessors", ctypes.c_uint32),
        ("max_instances", ctypes.c_uint32),
        ("copy_engines", ctypes.c_uint32),
        ("decoders", ctypes.c_uint32),
        ("encoders", ctypes.c_uint32),
        ("jpegs", ctypes.c_uint32),
        ("ofas", ctypes.c_uint32),
        ("media", ctypes.c_uint32),
        ("memory_bytes", ctypes.c_uint64),
        ("placement_count", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("placements", Placement * MAX_PLACEMENTS),
        ("name", ctypes.c_char * 32),
    )


class GpuSpec(ctypes.Structure):
    """struct sim_gpu_spec."""

    _fields_ = (
        ("name", ctypes.c_char * 96),
        ("uuid", ctypes.c_char * 48),
        ("serial", ctypes.c_char * 32),
        ("model", ctypes.c_char * 32),
        ("memory_bytes", ctypes.c_uint64),
        ("context_bytes", ctypes.c_uint64),
        ("multiprocessors", ctypes.c_uint32),
        ("threads_per_multiprocessor", ctypes.c_uint32),
        ("compute_major", ctypes.c_uint32),
        ("compute_minor", ctypes.c_uint32),
        ("architecture", ctypes.c_uint32),
        ("brand", ctypes.c_uint32),
        ("pci_domain", ctypes.c_uint32),
        ("pci_bus", ctypes.c_uint32),
        ("pci_device", ctypes.c_uint32),
        ("pci_device_id", ctypes.c_uint32),
        ("pci_subsystem_id", ctypes.c_uint32),
        ("clock_khz", ctypes.c_uint32),
        ("memory_clock_khz", ctypes.c_uint32),
        ("memory_bus_bits", ctypes.c_uint32),
        ("l2_bytes", ctypes.c_uint32),
        ("shared_memory_per_multiprocessor", ctypes.c_uint32),
        ("shared_memory_per_block_optin", ctypes.c_uint32),
        ("power_limit_milliwatts", ctypes.c_uint32),
        ("numa_node", ctypes.c_uint32),
        ("mig_capable", ctypes.c_uint32),
        ("profile_count", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("profiles", Profile * MAX_PROFILES),
    )


class Description(ctypes.Structure):
    """struct sim_description."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("version", ctypes.c_uint32),
        ("gpu_count", ctypes.c_uint32),
        ("file_bytes", ctypes.c_uint64),
        ("kernel_ns", ctypes.c_uint64),
        ("wave_ns", ctypes.c_uint64),
        ("cuda_version", ctypes.c_uint32),
        ("process_record_bytes", ctypes.c_uint32),
        ("driver_version", ctypes.c_char * 32),
        ("nvml_version", ctypes.c_char * 32),
        ("machine_name", ctypes.c_char * 64),
        ("gpus", GpuSpec * MAX_GPUS),
    )
