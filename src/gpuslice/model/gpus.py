"""GPU models: what NVIDIA's driver reports of each product that gpuslice knows by name.

The simulator builds its GPUs from these; the numbers are the real products', so that programs see no difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuslice.model import mig
from gpuslice.model.mig import MigPlacement, MigProfile

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "PRESETS",
    "Architecture",
    "Brand",
    "GpuModel",
    "MigPlacement",
    "MigProfile",
    "model_named",
    "name_of_model",
    "short_name",
    "with_article",
]

_KIB: Final = 1024
_MIB: Final = 1024**2


class Architecture(IntEnum):
    """NVML_DEVICE_ARCH_*."""

    TURING = 6
    AMPERE = 7
    ADA = 8
    HOPPER = 9
    BLACKWELL = 10


class Brand(IntEnum):
    """NVML_BRAND_*."""

    GEFORCE = 5
    NVIDIA = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """A product. `name` is what a user writes ("A100-40GB"), `product` what NVML calls it."""

    name: str
    product: str
    memory_bytes: int
    multiprocessors: int
    threads_per_multiprocessor: int
    compute_major: int
    compute_minor: int
    architecture: Architecture
    brand: Brand
    pci_device_id: int
    pci_subsystem_id: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    l2_bytes: int
    shared_memory_per_multiprocessor: int
    shared_memory_per_block_optin: int
    power_limit_milliwatts: int
    mig_profiles: tuple[MigProfile, ...] = ()


_MODELS: Final = (
    GpuModel(
        name="A100-40GB",
        product="NVIDIA A100-SXM4-40GB",
        memory_bytes=40960 * _MIB,
        multiprocessors=108,
        threads_per_multiprocessor=2048,
        compute_major=8,
        compute_minor=0,
        architecture=Architecture.AMPERE,
        brand=Brand.NVIDIA,
        pci_device_id=0x20B010DE,
        pci_subsystem_id=0x134F10DE,
        clock_khz=1_410_000,
        memory_clock_khz=1_215_000,
        memory_bus_bits=5120,
        l2_bytes=40 * _MIB,
        shared_memory_per_multiprocessor=164 * _KIB,
        shared_memory_per_block_optin=163 * _KIB,
        power_limit_milliwatts=400_000,
        mig_profiles=mig.A100_40GB,
    ),
    GpuModel(
        name="A100-80GB",
        product="NVIDIA A100-SXM4-80GB",
        memory_bytes=81920 * _MIB,
        multiprocessors=108,
        threads_per_multiprocessor=2048,
        compute_major=8,
        compute_minor=0,
        architecture=Architecture.AMPERE,
        brand=Brand.NVIDIA,
        pci_device_id=0x20B210DE,
        pci_subsystem_id=0x147F10DE,
        clock_khz=1_410_000,
        memory_clock_khz=1_593_000,
        memory_bus_bits=5120,
        l2_bytes=40 * _MIB,
        shared_memory_per_multiprocessor=164 * _KIB,
        shared_memory_per_block_optin=163 * _KIB,
        power_limit_milliwatts=400_000,
        mig_profiles=mig.A100_80GB,
    ),
    GpuModel(
        name="H100-80GB",
        product="NVIDIA H100 80GB HBM3",
        memory_bytes=81559 * _MIB,
        multiprocessors=132,
        threads_per_multiprocessor=2048,
        compute_major=9,
        compute_minor=0,
        architecture=Architecture.HOPPER,
        brand=Brand.NVIDIA,
        pci_device_id=0x233010DE,
        pci_subsystem_id=0x16C110DE,
        clock_khz=1_980_000,
        memory_clock_khz=2_619_000,
        memory_bus_bits=5120,
        l2_bytes=50 * _MIB,
        shared_memory_per_multiprocessor=228 * _KIB,
        shared_memory_per_block_optin=227 * _KIB,
        power_limit_milliwatts=700_000,
        mig_profiles=mig.H100_80GB,
    ),
    GpuModel(
        name="L4",
        product="NVIDIA L4",
        memory_bytes=23034 * _MIB,
        multiprocessors=58,
        threads_per_multiprocessor=1536,
        compute_major=8,
        compute_minor=9,
        architecture=Architecture.ADA,
        brand=Brand.NVIDIA,
        pci_device_id=0x27B810DE,
        pci_subsystem_id=0x16CA10DE,
        clock_khz=2_040_000,
        memory_clock_khz=6_251_000,
        memory_bus_bits=192,
        l2_bytes=48 * _MIB,
        shared_memory_per_multiprocessor=100 * _KIB,
        shared_memory_per_block_optin=99 * _KIB,
        power_limit_milliwatts=72_000,
    ),
    GpuModel(
        name="T4",
        product="Tesla T4",
        memory_bytes=15360 * _MIB,
        multiprocessors=40,
        threads_per_multiprocessor=1024,
        compute_major=7,
        compute_minor=5,
        architecture=Architecture.TURING,
        brand=Brand.NVIDIA,
        pci_device_id=0x1EB810DE,
        pci_subsystem_id=0x12A210DE,
        clock_khz=1_590_000,
        memory_clock_khz=5_001_000,
        memory_bus_bits=256,
        l2_bytes=4 * _MIB,
        shared_memory_per_multiprocessor=64 * _KIB,
        shared_memory_per_block_optin=64 * _KIB,
        power_limit_milliwatts=70_000,
    ),
    GpuModel(
        name="RTX-4090",
        product="NVIDIA GeForce RTX 4090",
        memory_bytes=24564 * _MIB,
        multiprocessors=128,
        threads_per_multiprocessor=1536,
        compute_major=8,
        compute_minor=9,
        architecture=Architecture.ADA,
        brand=Brand.GEFORCE,
        pci_device_id=0x268410DE,
        pci_subsystem_id=0x889D1043,
        clock_khz=2_520_000,
        memory_clock_khz=10_501_000,
        memory_bus_bits=384,
        l2_bytes=72 * _MIB,
        shared_memory_per_multiprocessor=100 * _KIB,
        shared_memory_per_block_optin=99 * _KIB,
        power_limit_milliwatts=450_000,
    ),
    GpuModel(
        name="H200",
        product="NVIDIA H200",
        memory_bytes=143771 * _MIB,
        multiprocessors=132,
        threads_per_multiprocessor=2048,
        compute_major=9,
        compute_minor=0,
        architecture=Architecture.HOPPER,
        brand=Brand.NVIDIA,
        pci_device_id=0x233510DE,
        pci_subsystem_id=0x18BE10DE,
        clock_khz=1_980_000,
        memory_clock_khz=3_201_000,
        memory_bus_bits=6144,
        l2_bytes=50 * _MIB,
        shared_memory_per_multiprocessor=228 * _KIB,
        shared_memory_per_block_optin=227 * _KIB,
        power_limit_milliwatts=700_000,
        mig_profiles=mig.H200,
    ),
    GpuModel(
        name="B200",
        product="NVIDIA B200",
        memory_bytes=183359 * _MIB,
        multiprocessors=148,
        threads_per_multiprocessor=2048,
        compute_major=10,
        compute_minor=0,
        architecture=Architecture.BLACKWELL,
        brand=Brand.NVIDIA,
        pci_device_id=0x290110DE,
        pci_subsystem_id=0x199910DE,
        clock_khz=1_965_000,
        memory_clock_khz=3_996_000,
        memory_bus_bits=7680,
        l2_bytes=126 * _MIB,
        shared_memory_per_multiprocessor=228 * _KIB,
        shared_memory_per_block_optin=227 * _KIB,
        power_limit_milliwatts=1000_000,
        mig_profiles=mig.B200,
    ),
    GpuModel(
        name="A30",
        product="NVIDIA A30",
        memory_bytes=24576 * _MIB,
        multiprocessors=56,
        threads_per_multiprocessor=2048,
        compute_major=8,
        compute_minor=0,
        architecture=Architecture.AMPERE,
        brand=Brand.NVIDIA,
        pci_device_id=0x20B710DE,
        pci_subsystem_id=0x153210DE,
        clock_khz=1_440_000,
        memory_clock_khz=1_215_000,
        memory_bus_bits=3072,
        l2_bytes=24 * _MIB,
        shared_memory_per_multiprocessor=164 * _KIB,
        shared_memory_per_block_optin=163 * _KIB,
        power_limit_milliwatts=165_000,
        mig_profiles=mig.A30,
    ),
    GpuModel(
        name="H100-NVL",
        product="NVIDIA H100 NVL",
        memory_bytes=95830 * _MIB,
        multiprocessors=132,
        threads_per_multiprocessor=2048,
        compute_major=9,
        compute_minor=0,
        architecture=Architecture.HOPPER,
        brand=Brand.NVIDIA,
        pci_device_id=0x232110DE,
        pci_subsystem_id=0x183910DE,
        clock_khz=1_785_000,
        memory_clock_khz=2_619_000,
        memory_bus_bits=6016,
        l2_bytes=50 * _MIB,
        shared_memory_per_multiprocessor=228 * _KIB,
        shared_memory_per_block_optin=227 * _KIB,
        power_limit_milliwatts=400_000,
        mig_profiles=mig.H100_NVL,
    ),
    GpuModel(
        name="H20",
        product="NVIDIA H20",
        memory_bytes=97871 * _MIB,
        multiprocessors=78,
        threads_per_multiprocessor=2048,
        compute_major=9,
        compute_minor=0,
        architecture=Architecture.HOPPER,
        brand=Brand.NVIDIA,
        pci_device_id=0x232910DE,
        pci_subsystem_id=0x198B10DE,
        clock_khz=1_980_000,
        memory_clock_khz=2_619_000,
        memory_bus_bits=6144,
        l2_bytes=60 * _MIB,
        shared_memory_per_multiprocessor=228 * _KIB,
        shared_memory_per_block_optin=227 * _KIB,
        power_limit_milliwatts=500_000,
        mig_profiles=mig.H20,
    ),
    GpuModel(
        name="GH200",
        product="NVIDIA GH200 480GB",
        memory_bytes=97871 * _MIB,
        multiprocessors=132,
        threads_per_multiprocessor=2048,
        compute_major=9,
        compute_minor=0,
        architecture=Architecture.HOPPER,
        brand=Brand.NVIDIA,
        pci_device_id=0x234210DE,
        pci_subsystem_id=0x180910DE,
        clock_khz=1_980_000,
        memory_clock_khz=2_619_000,
        memory_bus_bits=6144,
        l2_bytes=50 * _MIB,
        shared_memory_per_multiprocessor=228 * _KIB,
        shared_memory_per_block_optin=227 * _KIB,
        power_limit_milliwatts=900_000,
        mig_profiles=mig.GH200_96GB,
    ),
    GpuModel(
        name="GB200",
        product="NVIDIA GB200",
        memory_bytes=189471 * _MIB,
        multiprocessors=148,
        threads_per_multiprocessor=2048,
        compute_major=10,
        compute_minor=0,
        architecture=Architecture.BLACKWELL,
        brand=Brand.NVIDIA,
        pci_device_id=0x294110DE,
        pci_subsystem_id=0x204610DE,
        clock_khz=2_062_000,
        memory_clock_khz=3_996_000,
        memory_bus_bits=7936,
        l2_bytes=126 * _MIB,
        shared_memory_per_multiprocessor=228 * _KIB,
        shared_memory_per_block_optin=227 * _KIB,
        power_limit_milliwatts=1200_000,
        mig_profiles=mig.GB200,
    ),
    GpuModel(
        name="RTX-PRO-6000",
        product="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        memory_bytes=97887 * _MIB,
        multiprocessors=188,
        threads_per_multiprocessor=1536,
        compute_major=12,
        compute_minor=0,
        architecture=Architecture.BLACKWELL,
        brand=Brand.NVIDIA,
        pci_device_id=0x2BB510DE,
        pci_subsystem_id=0x204E10DE,
        clock_khz=2_430_000,
        memory_clock_khz=12_481_000,
        memory_bus_bits=512,
        l2_bytes=128 * _MIB,
        shared_memory_per_multiprocessor=100 * _KIB,
        shared_memory_per_block_optin=99 * _KIB,
        power_limit_milliwatts=600_000,
        mig_profiles=mig.RTX_PRO_6000,
    ),
)

#: The models that a user can name, by the name as we write it.
PRESETS: Final[Mapping[str, GpuModel]] = MappingProxyType({model.name: model for model in _MODELS})
#: Letters that begin with a vowel when they are spoken alone, as in "an L4".
_SPOKEN_WITH_A_VOWEL: Final = frozenset("AEFHILMNORSX")
_VOWELS: Final = frozenset("AEIOU")
_BY_FOLDED_NAME: Final = {model.name.casefold(): model for model in _MODELS}
_BY_PRODUCT: Final = {model.product: model for model in _MODELS}


def _label(product: str) -> str:
    return product.replace(" ", "-").casefold()


_BY_LABEL: Final = {_label(model.product): model for model in _MODELS}


def model_named(name: str) -> GpuModel:
    """The preset of that name, however it is capitalized."""
    model = _BY_FOLDED_NAME.get(name.strip().casefold())
    if model is None:
        raise ValueError(f"no GPU model is named {name!r}; the known ones are {', '.join(PRESETS)}")
    return model


def name_of_model(text: str) -> str:
    """What nodes call the model that someone named: by its name, however it is capitalized, by its product's, or as the
    label nvidia.com/gpu.product, which has hyphens for spaces and says where NVIDIA's plugin shares the GPU.
    """
    wanted = text.strip().removesuffix("-SHARED")
    known = _BY_FOLDED_NAME.get(wanted.casefold()) or _BY_LABEL.get(_label(wanted))
    return known.name if known else short_name(wanted.replace("-", " "))


def with_article(name: str) -> str:
    """`an A100-40GB`, `a T4`: what does not go on in small letters is spoken letter by letter."""
    word = name[1:2].islower()
    return f"{'an' if name[:1].upper() in (_VOWELS if word else _SPOKEN_WITH_A_VOWEL) else 'a'} {name}"


def short_name(product: str) -> str:
    """How users call a product: the preset's name, else its maker's without the parts that say nothing."""
    known = _BY_PRODUCT.get(product)
    if known is not None:
        return known.name
    words = [word for word in product.split() if word not in {"NVIDIA", "Tesla", "GeForce"}]
    return "-".join(words) or product
