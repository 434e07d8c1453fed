"""From a request to a slice: what policy adds to it, and what it does not allow."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from gpuslice.admission.restrictions import memory_range
from gpuslice.dialects import registry
from gpuslice.model import gpus, slices
from gpuslice.model.devices import MAX_DEVICES_PER_CLAIM
from gpuslice.model.errors import GpusliceError
from gpuslice.model.policies import Backend
from gpuslice.model.slices import Slice
from gpuslice.model.values import kubernetes_quantities

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuslice.admission.context import Context
    from gpuslice.dialects.recognizing import Reading
    from gpuslice.model.policies import Rule
    from gpuslice.model.requests import Request

#: A claim can name so many alternatives.
MAX_ALTERNATIVES: Final = 8


class NotAllowedError(GpusliceError):
    """Raised when a request is well-formed, but policy or the backend does not let the container have it."""


class Grant(Struct, frozen=True, gc=False, kw_only=True):
    """What one request of a container comes to."""

    reading: Reading
    slice: Slice
    backend: Backend
    #: The GPU sizes that it may be on, smallest first; None is any.
    sizes: tuple[int, ...] | None = None
    #: What policy added, and what the user should know.
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def grant(reading: Reading, request: Request, rule: Rule, context: Context) -> Grant:
    """The slice for one request under one rule."""
    if rule.dialects is not None and reading.dialect not in rule.dialects:
        raise _not_allowed(
            reading, rule, f"{reading.dialect} is not allowed here; ask in {' or '.join(sorted(rule.dialects))}"
        )
    backend = choose_backend(reading, rule, context)
    given, notes = _complete(reading, request, rule)
    if given.slots is not None:
        check_slots(reading.signs[0], given.slots * given.devices, rule)
    if backend is Backend.DRA and given.slots is not None:
        given = _without_slots(reading, given, rule, context.settings.slots_per_gpu)
    if backend is Backend.DRA and given.devices > MAX_DEVICES_PER_CLAIM:
        raise _not_allowed(
            reading, rule, f"asks for {given.devices} devices; a claim can hold at most {MAX_DEVICES_PER_CLAIM}"
        )
    _check_share(reading, given, rule)
    _check(reading, given, rule)
    if complaint := memory_range.complaint(reading, given, context):
        raise NotAllowedError(complaint)
    warnings: list[str] = []
    sizes = _sizes(reading, given, rule, context, backend, warnings)
    if isinstance(given.memory, Fraction) and given.memory == 1 and given.cores and not given.whole:
        warnings.append(
            f"{reading.signs[0]}: the slice has a part of the GPU's compute and all of its memory: "
            "no other slice fits beside it"
        )
    return Grant(
        reading=reading, slice=given, backend=backend, sizes=sizes, notes=tuple(notes), warnings=tuple(warnings)
    )


def check_together(grants: Iterable[Grant], rule: Rule) -> None:
    """A container can have several MIG partitions, and all of them can be of one GPU."""
    most = rule.maximum
    if (most.devices, most.memory, most.cores) == (None, None, None):
        return
    devices: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    cores: Counter[str] = Counter()
    for given in grants:
        place, count = given.reading.place.field, given.slice.devices
        devices[place] += count
        if most.devices is not None and devices[place] > most.devices:
            raise _too_many_devices(given.reading, rule, devices[place])
        if given.slice.mig_profile is None:
            continue
        percent, size = slices.mig_size(given.slice.mig_profile)
        memory[place] += count * size
        cores[place] += count * percent
        if most.memory is not None and memory[place] > most.memory:
            raise _too_much_memory(given.reading, rule, memory[place], most.memory)
        if most.cores is not None and cores[place] > most.cores:
            raise _too_many_cores(given.reading, rule, cores[place], most.cores)


def check_slots(field: str, slots: int, rule: Rule) -> None:
    most = rule.maximum.slots
    if most is not None and slots > most:
        raise not_allowed(field, rule, f"asks for {slots} slots; at most {most} are allowed")


def choose_backend(reading: Reading, rule: Rule, context: Context) -> Backend:
    """What was ordered, else what nodes offer: if both, or it is not known, what is usual for the dialect."""
    ordered = context.backend or rule.backend
    dialect = registry.BY_NAME[reading.dialect]
    if ordered is Backend.GPU_MANAGER and dialect.also_read_by is not ordered:
        raise _not_allowed(
            reading, rule, f"gpu-manager serves these pods, and it does not understand {reading.dialect}"
        )
    if ordered is Backend.DRA and not context.serves_dra:
        raise _not_allowed(
            reading,
            rule,
            "the backend is dra, but this cluster does not serve resource.k8s.io/v1 for parts of a device, as "
            "Kubernetes does from 1.36 on",
        )
    if ordered is not None:
        return ordered
    if not context.serves_dra:
        return Backend.EXTENDED
    usual = dialect.default_backend or Backend.DRA
    # A rule that names a resource means that resource, whatever else there is.
    if rule.target_resource is not None or usual in context.node_backends:
        return usual
    return next(iter(context.node_backends), context.settings.node_backend or usual)


def _complete(reading: Reading, request: Request, rule: Rule) -> tuple[Slice, list[str]]:
    """What was asked, and in its gaps what policy says."""
    notes = []
    model = request.gpu_model
    if rule.gpu_model is not None:
        if model is not None and model != rule.gpu_model:
            raise _not_allowed(
                reading,
                rule,
                f"asks for {gpus.with_article(model)}, but these pods get {gpus.with_article(rule.gpu_model)}",
            )
        if model is None:
            notes.append(f"the GPU model is {rule.gpu_model}, by policy")
        model = rule.gpu_model
    common = {
        "devices": request.devices,
        "gpu_model": model,
        "choice": request.choice,
        "shared_in_pod": request.shared_in_pod,
    }
    if request.mig_profile is not None:
        return Slice(mig_profile=request.mig_profile, **common), notes  # type: ignore[arg-type]  # as named
    if request.slots is not None:
        return Slice(slots=request.slots, **common), notes  # type: ignore[arg-type]  # as named
    memory: int | Fraction
    if request.memory_bytes is not None:
        memory = request.memory_bytes
    elif request.memory_fraction is not None:
        memory = request.memory_fraction
    elif rule.defaults.memory is not None:
        memory = rule.defaults.memory
        notes.append(f"the memory is {kubernetes_quantities.describe_bytes(memory)}, by default of the policy")
    else:
        memory = Fraction(1)
    cores = request.cores
    if cores is None and rule.defaults.cores is not None:
        cores = rule.defaults.cores
        notes.append(f"the cores are {cores}%, by default of the policy")
    return Slice(memory=memory, cores=cores or 0, **common), notes  # type: ignore[arg-type]  # as named


def _without_slots(reading: Reading, given: Slice, rule: Rule, slots_per_gpu: int) -> Slice:
    """Slots are a count of the extended resource; as a claim they are that part of a GPU, or whole GPUs."""
    assert given.slots is not None
    whole, part = divmod(given.slots, slots_per_gpu)
    if whole and part:
        raise _not_allowed(
            reading,
            rule,
            f"{given.slots} slots are more than a GPU and no whole number of them (a GPU has {slots_per_gpu})",
        )
    if whole > 1 and given.devices > 1:
        raise _not_allowed(
            reading,
            rule,
            f"asks for {given.devices} GPUs with {given.slots} slots of each, and a GPU has {slots_per_gpu}",
        )
    if whole:
        return structs.replace(given, slots=None, memory=Fraction(1), cores=100, devices=whole * given.devices)
    share = Fraction(part, slots_per_gpu)
    return structs.replace(given, slots=None, memory=share, cores=max(1, math.floor(100 * share)))


def _check_share(reading: Reading, given: Slice, rule: Rule) -> None:
    """A dialect that spreads amounts over several GPUs can come to more than each of them has."""
    percent, what = given.cores, "cores"
    if isinstance(given.memory, Fraction) and given.memory > 1:
        percent, what = math.ceil(100 * given.memory), "memory"
    if percent > 100:
        raise _not_allowed(
            reading, rule, f"comes to {percent}% of a GPU's {what}, which none has; ask for less, or for more GPUs"
        )


def _check(reading: Reading, given: Slice, rule: Rule) -> None:
    """What does not depend on the size of the GPU."""
    most = rule.maximum
    cores, memory = given.cores, given.memory
    if given.mig_profile is not None:
        cores, memory = slices.mig_size(given.mig_profile)
    if most.memory is not None and isinstance(memory, int) and memory > most.memory:
        raise _too_much_memory(reading, rule, memory, most.memory)
    if most.cores is not None and given.slots is None:
        if cores == 0:
            raise _not_allowed(
                reading,
                rule,
                f"asks for no cores, which would be unlimited; at most {most.cores}% are allowed, so "
                + (
                    "say how many"
                    if registry.BY_NAME[reading.dialect].says_cores
                    else f"ask in another dialect than {reading.dialect}, which cannot say them, or have the policy "
                    "say defaults.cores"
                ),
            )
        if cores > most.cores:
            raise _too_many_cores(reading, rule, cores, most.cores)
    if most.devices is not None and given.devices > most.devices:
        raise _too_many_devices(reading, rule, given.devices)


def _too_much_memory(reading: Reading, rule: Rule, memory: int, most: int) -> NotAllowedError:
    asked, allowed = map(kubernetes_quantities.describe_bytes, (memory, most))
    return _not_allowed(reading, rule, f"asks for {asked} of GPU memory; at most {allowed} is allowed")


def _too_many_cores(reading: Reading, rule: Rule, cores: int, most: int) -> NotAllowedError:
    return _not_allowed(reading, rule, f"asks for {cores}% of a GPU's cores; at most {most}% is allowed")


def _too_many_devices(reading: Reading, rule: Rule, count: int) -> NotAllowedError:
    return _not_allowed(reading, rule, f"asks for {count} devices; at most {rule.maximum.devices} are allowed")


def _sizes(
    reading: Reading, given: Slice, rule: Rule, context: Context, backend: Backend, warnings: list[str]
) -> tuple[int, ...] | None:
    """On GPUs of which sizes the slice may be, where that matters: a part of a GPU is more memory on a larger one."""
    if given.slots is not None or given.mig_profile is not None or isinstance(given.memory, int):
        return None
    most = rule.maximum.memory
    if given.memory == 1 and most is None and backend is Backend.DRA:
        return None
    sizes = memory_range.large_enough(_sizes_of_model(given.gpu_model) or context.gpu_sizes, given)
    if not sizes:
        raise NotAllowedError(memory_range.complaint_of_part(reading, given))
    fitting = [size for size in sizes if most is None or slices.memory_on(size, given.memory) <= most]
    if not fitting or (backend is not Backend.DRA and len(fitting) < len(sizes)):
        assert most is not None, "without a maximum every size fits"
        allowed = kubernetes_quantities.describe_bytes(most)
        raise _not_allowed(
            reading,
            rule,
            f"asks for {slices.describe_memory(given.memory)} memory; at most {allowed} is allowed",
        )
    if len(fitting) > MAX_ALTERNATIVES and context.knows_gpu_sizes:
        warnings.append(
            f"{reading.signs[0]}: the cluster has GPUs of {len(fitting)} sizes, and a claim can name "
            f"{MAX_ALTERNATIVES}: the slice will be on one of the most common"
        )
    return tuple(sorted(fitting[:MAX_ALTERNATIVES]))


def _sizes_of_model(name: str | None) -> tuple[int, ...]:
    model = gpus.PRESETS.get(name) if name else None
    return (model.memory_bytes,) if model else ()


def not_allowed(field: str, rule: Rule, reason: str) -> NotAllowedError:
    by = f" (policy {rule.label})" if rule.policy else ""
    return NotAllowedError(f"{field}: {reason}{by}")


def _not_allowed(reading: Reading, rule: Rule, reason: str) -> NotAllowedError:
    return not_allowed(reading.signs[0], rule, reason)
