"""MIG: the shapes a GPU can be partitioned into, and where each of them fits.

The tables are NVIDIA's: what `nvidia-smi mig -lgip` and `nvidia-smi mig -lgipp` show on the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import Final

_MIB: Final = 1024**2


class MediaExtension(IntFlag):
    """What sets a profile apart from its plain sibling, as in struct sim_profile."""

    NONE = 0
    MEDIA_ENGINES = 1  # "+me"
    GRAPHICS = 2  # "+gfx"
    NO_MEDIA = 4  # "-me"


@dataclass(frozen=True, slots=True)
class MigPlacement:
    """Where a GPU instance may sit: the memory slices from `start` on."""

    start: int
    size: int

    def overlaps(self, other: MigPlacement) -> bool:
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A shape of GPU instance. `number` is NVML_GPU_INSTANCE_PROFILE_*; `id` is what nvidia-smi shows."""

    number: int
    id: int
    name: str
    compute_slices: int
    memory_slices: int
    multiprocessors: int
    max_instances: int
    copy_engines: int
    decoders: int
    encoders: int
    jpegs: int
    ofas: int
    media: MediaExtension
    memory_bytes: int
    placements: tuple[MigPlacement, ...]


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a shape has in common on all GPUs that are cut into seven compute and eight memory slices."""

    number: int
    id: int
    compute_slices: int
    memory_slices: int
    max_instances: int
    starts: tuple[int, ...]
    media: MediaExtension = MediaExtension.NONE


_1G: Final = _Shape(0, 19, 1, 1, 7, (0, 1, 2, 3, 4, 5, 6))
_1G_ME: Final = _Shape(7, 20, 1, 1, 1, (0, 1, 2, 3, 4, 5, 6), MediaExtension.MEDIA_ENGINES)
_1G_DOUBLE_MEMORY: Final = _Shape(9, 15, 1, 2, 4, (0, 2, 4, 6))
_2G: Final = _Shape(1, 14, 2, 2, 3, (0, 2, 4))
_3G: Final = _Shape(2, 9, 3, 4, 2, (0, 4))
_4G: Final = _Shape(3, 5, 4, 4, 1, (0,))
_7G: Final = _Shape(4, 0, 7, 8, 1, (0,))


def _profile(
    shape: _Shape,
    name: str,
    memory_mib: int,
    *,
    multiprocessors: int,
    copy_engines: int,
    decoders: int = 0,
    jpegs: int = 0,
    ofas: int = 0,
) -> MigProfile:
    return MigProfile(
        number=shape.number,
        id=shape.id,
        name=name,
        compute_slices=shape.compute_slices,
        memory_slices=shape.memory_slices,
        multiprocessors=multiprocessors,
        max_instances=shape.max_instances,
        copy_engines=copy_engines,
        decoders=decoders,
        encoders=0,  # no GPU with MIG and these shapes has an encoder
        jpegs=jpegs,
        ofas=ofas,
        media=shape.media,
        memory_bytes=memory_mib * _MIB,
        placements=tuple(MigPlacement(start, shape.memory_slices) for start in shape.starts),
    )


A100_40GB: Final = (
    _profile(_1G, "1g.5gb", 4864, multiprocessors=14, copy_engines=1),
    _profile(_1G_ME, "1g.5gb+me", 4864, multiprocessors=14, copy_engines=1, decoders=1, jpegs=1, ofas=1),
    _profile(_1G_DOUBLE_MEMORY, "1g.10gb", 9856, multiprocessors=14, copy_engines=1, decoders=1),
    _profile(_2G, "2g.10gb", 9856, multiprocessors=28, copy_engines=2, decoders=1),
    _profile(_3G, "3g.20gb", 19968, multiprocessors=42, copy_engines=3, decoders=2),
    _profile(_4G, "4g.20gb", 19968, multiprocessors=56, copy_engines=4, decoders=2),
    _profile(_7G, "7g.40gb", 40192, multiprocessors=98, copy_engines=7, decoders=5, jpegs=1, ofas=1),
)

A100_80GB: Final = (
    _profile(_1G, "1g.10gb", 9728, multiprocessors=14, copy_engines=1),
    _profile(_1G_ME, "1g.10gb+me", 9728, multiprocessors=14, copy_engines=1, decoders=1, jpegs=1, ofas=1),
    _profile(_1G_DOUBLE_MEMORY, "1g.20gb", 19968, multiprocessors=14, copy_engines=1, decoders=1),
    _profile(_2G, "2g.20gb", 19968, multiprocessors=28, copy_engines=2, decoders=1),
    _profile(_3G, "3g.40gb", 40192, multiprocessors=42, copy_engines=3, decoders=2),
    _profile(_4G, "4g.40gb", 40192, multiprocessors=56, copy_engines=4, decoders=2),
    _profile(_7G, "7g.80gb", 80896, multiprocessors=98, copy_engines=7, decoders=5, jpegs=1, ofas=1),
)

H100_80GB: Final = (
    _profile(_1G, "1g.10gb", 9984, multiprocessors=16, copy_engines=1, decoders=1, jpegs=1),
    _profile(_1G_ME, "1g.10gb+me", 9984, multiprocessors=16, copy_engines=1, decoders=1, jpegs=1, ofas=1),
    _profile(_1G_DOUBLE_MEMORY, "1g.20gb", 20096, multiprocessors=26, copy_engines=1, decoders=1, jpegs=1),
    _profile(_2G, "2g.20gb", 20096, multiprocessors=32, copy_engines=2, decoders=2, jpegs=2),
    _profile(_3G, "3g.40gb", 40448, multiprocessors=60, copy_engines=3, decoders=3, jpegs=3),
    _profile(_4G, "4g.40gb", 40448, multiprocessors=64, copy_engines=4, decoders=4, jpegs=4),
    _profile(_7G, "7g.80gb", 81152, multiprocessors=132, copy_engines=8, decoders=7, jpegs=7, ofas=1),
)
