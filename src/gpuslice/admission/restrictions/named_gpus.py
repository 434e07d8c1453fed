"""What a container holds of GPUs by the names of resources: slots, whole GPUs, MIG partitions, and names that say no
more than that they are of GPUs (`nvidia.com/gpu.shared`).

Which name stands for what is known from the settings and from what the dialects declare. A name in a dialect's domain
that none of them reads can be anything that a device plugin calls so, hence it counts as a whole GPU, unless the
configuration says that it is none.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuslice.admission.claims.claim_amounts import Amounts
from gpuslice.dialects import fields, registry
from gpuslice.model import slices
from gpuslice.model.devices import MIG_RESOURCE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpuslice.admission.context import Context
    from gpuslice.admission.granting import Grant
    from gpuslice.admission.patching import PodEdit
    from gpuslice.dialects.recognizing import Reading
    from gpuslice.model.pods import Place

_PREFIXES: Final = tuple(prefix for dialect in registry.DIALECTS for prefix in dialect.prefixes)
#: Known to be no devices.
_UNREAD: Final = frozenset(name for dialect in registry.DIALECTS for name in dialect.unread)


class NamedGpus(NamedTuple):
    """What a container holds by one name, or by all names of slots together."""

    #: Where it is asked for.
    field: str
    #: For people: `3 slots`, `8 x nvidia.com/gpu.shared`.
    text: str
    #: At most this.
    amounts: Amounts
    #: So many of them in slots; None for what is never counted so.
    slots: int | None
    #: Whether it is slots that are asked for.
    in_slots: bool = False


class HeldNames:
    """Finds them in the containers of one pod, after its edit."""

    def __init__(self, edit: PodEdit, readings: Sequence[Reading], left: Iterable[Grant], context: Context) -> None:
        """`left` are grants that other software serves, by what the pod says already."""
        self._edit = edit
        self._context = context
        self._settings = context.settings
        self._slot_resources = {context.settings.shared_resource, *context.policies.target_resources}
        self._signs = {reading.place.pointer: reading.signs[0] for reading in readings}
        #: By container: what a dialect read, and so is counted as what was granted for it.
        self._read = {reading.place.pointer: reading.asked.resources for reading in readings}
        self._left: dict[str, list[Grant]] = {}
        for given in left:
            self._left.setdefault(given.reading.place.pointer, []).append(given)

    def of(self, place: Place) -> list[NamedGpus]:
        counts = dict(self._counts(place))
        slots = {name: count for name, count in counts.items() if name in self._slot_resources}
        held = [self._slots(place, slots)] if slots else []
        held += [self._by_name(place, name, count) for name, count in counts.items() if name not in slots]
        return held + [self._granted(given) for given in self._left.get(place.pointer, ())]

    def _counts(self, place: Place) -> Iterator[tuple[str, int]]:
        """The names of GPUs that the container leaves admission with, and how many of each."""
        change = self._edit.containers.get(place.pointer)
        given = change.added if change else {}
        yield from given.items()
        read = self._read.get(place.pointer, ())
        for name in self.names(place):
            if name not in given and name not in read:
                yield name, fields.read_resource(place, name)

    def names(self, place: Place) -> tuple[str, ...]:
        """The names of GPUs that the container came with."""
        names = {name: None for part in (place.limits, place.requests) for name in part if self._is_gpu(name)}
        return fields.asked(place, names)

    def _is_gpu(self, name: str) -> bool:
        if name == self._settings.whole_resource or name in self._slot_resources:
            return True
        return name.startswith(_PREFIXES) and name not in _UNREAD and name not in self._settings.other_resources

    def _slots(self, place: Place, held: dict[str, int]) -> NamedGpus:
        count = sum(held.values())
        field = self._field(place, min(held))
        return NamedGpus(
            field, slices.Slice(slots=count).describe(), self._amounts_of_slots(count), count, in_slots=True
        )

    def _by_name(self, place: Place, name: str, count: int) -> NamedGpus:
        field, text = self._field(place, name), f"{count} x {name}" if count > 1 else name
        if name.startswith(MIG_RESOURCE_PREFIX) and (size := slices.mig_size_of_resource(name)) is not None:
            cores, memory = size
            # All of them can be on one GPU.
            return NamedGpus(field, text, Amounts(count, count * memory, min(100, count * cores)), None)
        return NamedGpus(field, text, Amounts(count, None, 100), count * self._settings.slots_per_gpu)

    def _field(self, place: Place, name: str) -> str:
        """What the user wrote: the sign of a dialect where admission wrote the name."""
        if place.asks_by_name(name):
            return fields.resource_field(place, name)
        return self._signs.get(place.pointer) or fields.resource_field(place, name)

    def _amounts_of_slots(self, slots: int) -> Amounts:
        """At most what so many slots are."""
        devices = Fraction(slots, self._settings.slots_per_gpu)
        share = min(devices, Fraction(1))
        # The scheduler counts slots and does not see whose they are: it may be the largest GPU.
        memory = max(slices.memory_on(size, share) for size in self._context.gpu_sizes)
        return Amounts(math.ceil(devices), memory, math.ceil(100 * share))

    def _granted(self, given: Grant) -> NamedGpus:
        wanted, field = given.slice, given.reading.signs[0]
        memory = max(slices.memory_on(size, wanted.memory) for size in self._context.gpu_sizes)
        return NamedGpus(field, wanted.describe(), Amounts(wanted.devices, memory, wanted.cores), None)
