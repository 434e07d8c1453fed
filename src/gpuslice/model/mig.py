"""MIG: the shapes a GPU can be partitioned into, and where each of them fits.

The tables are NVIDIA's: what `nvidia-smi mig -lgip` and `nvidia-smi mig -lgipp` show on the product, and where no such
output is published (H20, B200, GB200), the profiles of its MIG user guide and mig-parted, with so many parts of the
product's memory and multiprocessors. Outputs differ with the driver by some hundred MiB, and the guide has no decoder
for the A30's 1g.6gb, of which drivers show one. A node's agent asks its own driver; these tables are for admission and
for simulated GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    """What a shape has in common on all GPUs that are cut alike: into seven compute and eight memory slices, or into
    four of each (`_OF_FOUR`).
    """

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

_1G_OF_FOUR: Final = _Shape(0, 14, 1, 1, 4, (0, 1, 2, 3))
_1G_ME_OF_FOUR: Final = _Shape(7, 21, 1, 1, 1, (0, 1, 2, 3), MediaExtension.MEDIA_ENGINES)
_1G_GFX_OF_FOUR: Final = _Shape(10, 47, 1, 1, 4, (0, 1, 2, 3), MediaExtension.GRAPHICS)
_1G_ALL_ME_OF_FOUR: Final = _Shape(15, 65, 1, 1, 1, (0, 1, 2, 3), MediaExtension.MEDIA_ENGINES)
_1G_NO_ME_OF_FOUR: Final = _Shape(13, 67, 1, 1, 4, (0, 1, 2, 3), MediaExtension.NO_MEDIA)
_2G_OF_FOUR: Final = _Shape(1, 5, 2, 2, 2, (0, 2))
_2G_ME_OF_FOUR: Final = _Shape(8, 6, 2, 2, 1, (0, 2), MediaExtension.MEDIA_ENGINES)
_2G_GFX_OF_FOUR: Final = _Shape(11, 35, 2, 2, 2, (0, 2), MediaExtension.GRAPHICS)
_2G_ALL_ME_OF_FOUR: Final = _Shape(16, 64, 2, 2, 1, (0, 2), MediaExtension.MEDIA_ENGINES)
_2G_NO_ME_OF_FOUR: Final = _Shape(14, 66, 2, 2, 2, (0, 2), MediaExtension.NO_MEDIA)
_4G_OF_FOUR: Final = _Shape(3, 0, 4, 4, 1, (0,))
_4G_GFX_OF_FOUR: Final = _Shape(12, 32, 4, 4, 1, (0,), MediaExtension.GRAPHICS)


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
        encoders=0,  # only graphics GPUs have them
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


def _hopper(
    names: tuple[str, ...], memory_mib: tuple[int, ...], multiprocessors: tuple[int, ...]
) -> tuple[MigProfile, ...]:
    """The seven shapes, with the engines of the H100."""
    shapes = (_1G, _1G_ME, _1G_DOUBLE_MEMORY, _2G, _3G, _4G, _7G)
    engines = ((1, 1, 0), (1, 1, 1), (1, 1, 0), (2, 2, 0), (3, 3, 0), (4, 4, 0), (8, 7, 1))
    return tuple(
        _profile(shape, name, mib, multiprocessors=sms, copy_engines=copies, decoders=media, jpegs=media, ofas=ofas)
        for shape, name, mib, sms, (copies, media, ofas) in zip(
            shapes, names, memory_mib, multiprocessors, engines, strict=True
        )
    )


def _blackwell(names: tuple[str, ...], memory_mib: tuple[int, ...]) -> tuple[MigProfile, ...]:
    """The seven shapes on 148 multiprocessors. One decoder and one JPEG engine are in each."""
    shapes = (_1G, _1G_ME, _1G_DOUBLE_MEMORY, _2G, _3G, _4G, _7G)
    numbers = ((18, 2, 0), (18, 2, 1), (18, 2, 0), (36, 3, 0), (66, 6, 0), (72, 8, 0), (148, 16, 1))
    return tuple(
        _profile(shape, name, mib, multiprocessors=sms, copy_engines=copies, decoders=1, jpegs=1, ofas=ofas)
        for shape, name, mib, (sms, copies, ofas) in zip(shapes, names, memory_mib, numbers, strict=True)
    )


_OF_132: Final = (16, 16, 26, 32, 60, 64, 132)
_OF_94GB: Final = ("1g.12gb", "1g.12gb+me", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb")
_OF_96GB: Final = ("1g.12gb", "1g.12gb+me", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb")
_OF_141GB: Final = ("1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb")
_OF_180GB: Final = ("1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb")
_OF_186GB: Final = ("1g.23gb", "1g.23gb+me", "1g.47gb", "2g.47gb", "3g.93gb", "4g.93gb", "7g.186gb")

H100_NVL: Final = _hopper(_OF_94GB, (11008, 11008, 22144, 22144, 47488, 47488, 95360), _OF_132)
GH200_96GB: Final = _hopper(_OF_96GB, (11264, 11264, 23552, 23552, 47616, 47616, 95232), _OF_132)
H20: Final = _hopper(_OF_96GB, (11264, 11264, 23552, 23552, 47616, 47616, 95232), (8, 8, 16, 16, 34, 36, 78))
H200: Final = _hopper(_OF_141GB, (16384, 16384, 33280, 33280, 71424, 71424, 143360), _OF_132)
B200: Final = _blackwell(_OF_180GB, (22528, 22528, 45312, 45312, 91136, 91136, 182784))
GB200: Final = _blackwell(_OF_186GB, (23296, 23296, 46848, 46848, 94208, 94208, 188928))

A30: Final = (
    _profile(_1G_OF_FOUR, "1g.6gb", 5952, multiprocessors=14, copy_engines=1, decoders=1),
    _profile(_1G_ME_OF_FOUR, "1g.6gb+me", 5952, multiprocessors=14, copy_engines=1, decoders=1, jpegs=1, ofas=1),
    _profile(_2G_OF_FOUR, "2g.12gb", 11968, multiprocessors=28, copy_engines=2, decoders=2),
    _profile(_2G_ME_OF_FOUR, "2g.12gb+me", 11968, multiprocessors=28, copy_engines=2, decoders=2, jpegs=1, ofas=1),
    _profile(_4G_OF_FOUR, "4g.24gb", 24000, multiprocessors=56, copy_engines=4, decoders=4, jpegs=1, ofas=1),
)


def _rtx_pro(shape: _Shape, name: str, media: int, ofas: int) -> MigProfile:
    memory, multiprocessors = {1: (24192, 46), 2: (48512, 94), 4: (97280, 188)}[shape.compute_slices]
    made = _profile(
        shape,
        name,
        memory,
        multiprocessors=multiprocessors,
        copy_engines=shape.compute_slices,
        decoders=media,
        jpegs=media,
        ofas=ofas,
    )
    return replace(made, encoders=media)


RTX_PRO_6000: Final = (
    _rtx_pro(_1G_OF_FOUR, "1g.24gb", 1, 0),
    _rtx_pro(_1G_ME_OF_FOUR, "1g.24gb+me", 1, 1),
    _rtx_pro(_1G_GFX_OF_FOUR, "1g.24gb+gfx", 1, 0),
    _rtx_pro(_1G_ALL_ME_OF_FOUR, "1g.24gb+me.all", 4, 1),
    _rtx_pro(_1G_NO_ME_OF_FOUR, "1g.24gb-me", 0, 0),
    _rtx_pro(_2G_OF_FOUR, "2g.48gb", 2, 0),
    _rtx_pro(_2G_GFX_OF_FOUR, "2g.48gb+gfx", 2, 0),
    _rtx_pro(_2G_ALL_ME_OF_FOUR, "2g.48gb+me.all", 4, 1),
    _rtx_pro(_2G_NO_ME_OF_FOUR, "2g.48gb-me", 0, 0),
    _rtx_pro(_4G_OF_FOUR, "4g.96gb", 4, 1),
    _rtx_pro(_4G_GFX_OF_FOUR, "4g.96gb+gfx", 4, 1),
)
