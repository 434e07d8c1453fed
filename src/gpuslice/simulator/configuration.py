"""What a simulated machine is made of, from one small TOML file or from `2xA100-40GB,1xT4`.

    name = "lab"

    [[gpus]]
    model = "A100-40GB"            # a preset: see `gpuslice sim presets`
    count = 2
    context_memory = "300MiB"      # what a process's first context takes

    [[gpus]]
    model = "Prototype"            # no preset: say at least memory and multiprocessors
    memory = "24GiB"
    multiprocessors = 60
    uuid = "GPU-5a3c1d0e-0000-4000-8000-000000000001"

    [kernels]
    base = "2us"                   # the least that a kernel takes
    wave = "1us"                   # and for each time its threads fill the GPU

    [driver]
    version = "535.54.03"          # what it says of itself
    process_record = 32            # bytes for each process in NVML's newest lists: more than declared
    missing = ["nvmlDeviceGetComputeRunningProcesses_v3"]  # functions that an older driver does not have

`multiprocessors` and every other number of gpuslice.model.gpus.GpuModel can be set by its name. `mig_profiles` is a
list of a preset's profile names to keep, or of tables with the fields of gpuslice.model.mig.MigProfile.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpuslice.model.errors import GpusliceError
from gpuslice.model.gpus import GpuModel, model_named
from gpuslice.model.mig import MediaExtension, MigPlacement, MigProfile
from gpuslice.model.values.quantities import parse_bytes, parse_nanoseconds
from gpuslice.simulator.layout import MAX_GPUS, MAX_PLACEMENTS, MAX_PROFILES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_T = TypeVar("_T")

DEFAULT_NAME: Final = "default"
DEFAULT_GPUS: Final = "1xA100-40GB"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}", re.ASCII)
_COUNTED: Final = re.compile(r"(?:(\d+)\s*[x*])?\s*([A-Za-z][\w.+-]*)", re.ASCII)
_VERSION: Final = re.compile(r"\d{1,4}(?:\.\d{1,4}){1,2}", re.ASCII)
_FUNCTION: Final = re.compile(r"(?:cu|nvml)[A-Z]\w{2,100}", re.ASCII)
_GPU_UUID: Final = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_UUID_NAMESPACE: Final = uuid.UUID("6f2f2c1e-3f0b-5b0e-9a39-6d9b0f5b8a11")
_NUMBERS: Final = frozenset(
    field.name for field in dataclasses.fields(GpuModel) if field.type == "int" and field.name != "memory_bytes"
)
# What a hand-made GPU has where its owner does not say.
_HAND_MADE_BASE: Final = "A100-40GB"


class ConfigurationError(GpusliceError):
    """Raised when a simulated machine is described in a way that cannot be built."""


@dataclass(frozen=True)
class SimulatedGpu:
    """One GPU of the machine: a model, and what tells it from its neighbours."""

    model: GpuModel
    uuid: str
    context_bytes: int = 0


@dataclass(frozen=True)
class Driver:
    """What tells one version of the driver from another."""

    version: str = "610.43.02"
    #: Bytes for each process in NVML's newest lists. R535.54 wrote 32 where its header says 24.
    process_record: int = 24
    #: Functions of either library that it does not have.
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if _VERSION.fullmatch(self.version) is None:
            raise ConfigurationError(f"[driver]: version is {self.version!r}: write numbers with dots, as 535.54.03")
        if self.process_record not in (24, 32):
            raise ConfigurationError(f"[driver]: process_record is {self.process_record}: it must be 24 or 32")
        for name in self.missing:
            if _FUNCTION.fullmatch(name) is None:
                raise ConfigurationError(f"[driver]: missing names {name!r}: write names of functions, as cuInit")


@dataclass(frozen=True)
class Configuration:
    """Everything that `gpuslice sim up` writes into the machine file."""

    name: str
    gpus: tuple[SimulatedGpu, ...]
    kernel_ns: int = 2000
    wave_ns: int = 1000
    driver: Driver = Driver()

    def __post_init__(self) -> None:
        check_name(self.name)
        if not 1 <= len(self.gpus) <= MAX_GPUS:
            raise ConfigurationError(f"a simulated machine has 1 to {MAX_GPUS} GPUs, not {len(self.gpus)}")
        uuids = [gpu.uuid for gpu in self.gpus]
        for identifier in uuids:
            if uuids.count(identifier) > 1:
                raise ConfigurationError(f"two GPUs have the UUID {identifier}: give each its own")


def check_name(name: str) -> str:
    """The name itself, if it can name a machine (it becomes part of a folder's name)."""
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name!r} cannot name a machine: use up to 48 letters, digits, '.', '_' and '-', a letter or digit first"
        )
    return name


def derived_uuid(machine: str, index: int) -> str:
    """The same machine name gives the same UUIDs every time, so that what refers to them outlives a restart."""
    return f"GPU-{uuid.uuid5(_UUID_NAMESPACE, f'{machine}/{index}')}"


def from_text(text: str, *, name: str = DEFAULT_NAME) -> Configuration:
    """The command line's form: `2xA100-40GB,1xT4`; the count may be left out."""
    models: list[GpuModel] = []
    for part in text.split(","):
        match = _COUNTED.fullmatch(part.strip())
        if match is None:
            raise ConfigurationError(f"{part.strip()!r} in {text!r} names no GPUs: write for example 2xA100-40GB,1xT4")
        count = int(match[1] or 1)
        if not 1 <= count <= MAX_GPUS:
            raise ConfigurationError(f"{part.strip()!r} asks for {count} GPUs: a machine has 1 to {MAX_GPUS}")
        models += [_preset(match[2])] * count
    gpus = tuple(SimulatedGpu(model, derived_uuid(name, index)) for index, model in enumerate(models))
    return Configuration(name, gpus)


def from_file(path: Path, *, name: str | None = None) -> Configuration:
    """The file's form; `name` wins over the file's own."""
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path}: is not TOML: {error}") from error
    try:
        return from_table(table, name=name)
    except (ConfigurationError, ValueError) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def from_table(table: Mapping[str, Any], *, name: str | None = None) -> Configuration:
    """The file's form, once it is read."""
    _only(table, {"name", "gpus", "kernels", "driver"}, "the file")
    machine = name if name is not None else _typed(table, "name", str, "the file", DEFAULT_NAME)
    check_name(machine)
    kernels = _typed(table, "kernels", dict, "the file", {})
    _only(kernels, {"base", "wave"}, "[kernels]")
    gpus: list[SimulatedGpu] = []
    for number, entry in enumerate(_typed(table, "gpus", list, "the file", []), start=1):
        where = f"GPU entry {number}"
        if not isinstance(entry, dict):
            raise ConfigurationError(f"{where} is not a table: start it with [[gpus]]")
        gpus += _gpus(entry, where, machine, first_index=len(gpus))
    if not gpus:
        raise ConfigurationError('it has no GPUs: add for example [[gpus]] and model = "A100-40GB"')
    return Configuration(
        machine,
        tuple(gpus),
        kernel_ns=parse_nanoseconds(_typed(kernels, "base", str, "[kernels]", "2us")),
        wave_ns=parse_nanoseconds(_typed(kernels, "wave", str, "[kernels]", "1us")),
        driver=_driver(_typed(table, "driver", dict, "the file", {})),
    )


def _driver(table: dict[str, Any]) -> Driver:
    where = "[driver]"
    _only(table, {"version", "process_record", "missing"}, where)
    usual = Driver()
    missing = _typed(table, "missing", list, where, [])
    if not all(isinstance(name, str) for name in missing):
        raise ConfigurationError(f"{where}: missing is {missing!r}: it must be a list of names of functions")
    return Driver(
        version=_typed(table, "version", str, where, usual.version),
        process_record=_typed(table, "process_record", int, where, usual.process_record),
        missing=tuple(missing),
    )


def _gpus(entry: dict[str, Any], where: str, machine: str, *, first_index: int) -> Iterator[SimulatedGpu]:
    _only(entry, {"model", "product", "count", "uuid", "memory", "context_memory", "mig_profiles", *_NUMBERS}, where)
    count = _typed(entry, "count", int, where, 1)
    if not 1 <= count <= MAX_GPUS:
        raise ConfigurationError(f"{where}: count is {count}: a machine has 1 to {MAX_GPUS} GPUs")
    if "uuid" in entry and count > 1:
        raise ConfigurationError(f"{where}: one uuid cannot be that of {count} GPUs: write one entry for each")
    model = _model(entry, where)
    context_bytes = _bytes(entry, "context_memory", where, 0)
    for index in range(first_index, first_index + count):
        identifier = _typed(entry, "uuid", str, where, derived_uuid(machine, index))
        if _GPU_UUID.fullmatch(identifier) is None:
            raise ConfigurationError(
                f"{where}: {identifier!r} is not a GPU's UUID: write GPU- and a lower-case UUID, or leave it out"
            )
        yield SimulatedGpu(model, identifier, context_bytes)


def _model(entry: dict[str, Any], where: str) -> GpuModel:
    named = _typed(entry, "model", str, where, "")
    by_hand = {"memory", "multiprocessors"} <= entry.keys()
    try:
        base = _preset(named)
    except ConfigurationError:
        if not by_hand:
            raise ConfigurationError(
                f"{where}: {named!r} is no preset (see `gpuslice sim presets`), and a GPU made by hand needs"
                " memory and multiprocessors"
            ) from None
        name = named or "Custom"
        base = dataclasses.replace(
            model_named(_HAND_MADE_BASE), name=name, product=f"Simulated {name}", mig_profiles=()
        )
    changes: dict[str, Any] = {key: _number(entry, key, where) for key in entry.keys() & _NUMBERS}
    if "product" in entry:
        changes["product"] = _typed(entry, "product", str, where, "")
    if "memory" in entry:
        changes["memory_bytes"] = _bytes(entry, "memory", where, 0)
    if "mig_profiles" in entry:
        changes["mig_profiles"] = _profiles(_typed(entry, "mig_profiles", list, where, []), base, where)
    return dataclasses.replace(base, **changes)


def _profiles(wanted: list[Any], base: GpuModel, where: str) -> tuple[MigProfile, ...]:
    if len(wanted) > MAX_PROFILES:
        raise ConfigurationError(f"{where}: {len(wanted)} mig_profiles: a GPU has at most {MAX_PROFILES}")
    known = {profile.name: profile for profile in base.mig_profiles}
    profiles = []
    for item in wanted:
        if isinstance(item, str) and item in known:
            profiles.append(known[item])
        elif isinstance(item, dict):
            profiles.append(_profile(item, where))
        else:
            names = ", ".join(known) or "none: write a table"
            raise ConfigurationError(f"{where}: {base.name} has no MIG profile {item!r}; it has {names}")
    return tuple(profiles)


def _profile(item: dict[str, Any], where: str) -> MigProfile:
    where = f"{where}: MIG profile {item.get('name', '')!r}"
    numbers = {field.name for field in dataclasses.fields(MigProfile) if field.type == "int"} - {"memory_bytes"}
    _only(item, {*numbers, "name", "memory", "placements"}, where)
    for key in ("name", "memory", "multiprocessors", "compute_slices", "memory_slices", "placements"):
        if key not in item:
            raise ConfigurationError(f"{where} has no {key}")
    placements = _typed(item, "placements", list, where, [])
    if not 1 <= len(placements) <= MAX_PLACEMENTS:
        raise ConfigurationError(f"{where} has {len(placements)} placements: say 1 to {MAX_PLACEMENTS}")
    for placement in placements:
        if not isinstance(placement, dict) or placement.keys() != {"start", "size"}:
            raise ConfigurationError(f"{where}: {placement!r} is no placement: write {{ start = 0, size = 1 }}")
    return MigProfile(
        name=_typed(item, "name", str, where, ""),
        memory_bytes=_bytes(item, "memory", where, 0),
        media=MediaExtension.NONE,
        placements=tuple(
            MigPlacement(_number(placement, "start", where), _number(placement, "size", where))
            for placement in placements
        ),
        **{key: _number(item, key, where) for key in numbers},
    )


def _preset(name: str) -> GpuModel:
    try:
        return model_named(name)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _only(table: Mapping[str, Any], allowed: set[str], where: str) -> None:
    for key in table:
        if key not in allowed:
            raise ConfigurationError(f"{where} has an unknown key {key!r}: known are {', '.join(sorted(allowed))}")


def _typed(table: Mapping[str, Any], key: str, kind: type[_T], where: str, default: _T) -> _T:
    value = table.get(key, default)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise ConfigurationError(f"{where}: {key} is {value!r}: it must be of type {kind.__name__}")
    return value


def _number(table: Mapping[str, Any], key: str, where: str) -> int:
    value = _typed(table, key, int, where, 0)
    if not 0 <= value < 2**32:
        raise ConfigurationError(f"{where}: {key} is {value}: it must be at least 0 and below 2^32")
    return value


def _bytes(table: Mapping[str, Any], key: str, where: str, default: int) -> int:
    value = table.get(key, default)
    if not isinstance(value, int | str):
        raise ConfigurationError(f'{where}: {key} is {value!r}: write for example {key} = "4GiB"')
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {key}: {error}") from error
