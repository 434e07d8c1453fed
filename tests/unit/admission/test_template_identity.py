"""A template is that of the slice it was asked for, whatever was asked for before."""

from __future__ import annotations

from fractions import Fraction

import msgspec

from gpuslice.admission.backends.dra import Template, template_for
from gpuslice.model.slices import Slice


def _asked(template: Template) -> dict[str, str]:
    (request,) = msgspec.json.decode(template.spec)["devices"]["requests"]
    asked: dict[str, str] = request["exactly"]["capacity"]["requests"]
    return asked


def test_one_byte_is_not_all_of_the_memory_though_the_two_numbers_are_equal() -> None:
    """Where a template of the one were given for the other, a byte would pass a policy's maximum and be a whole GPU."""
    everything = template_for(Slice(memory=Fraction(1), cores=1), None)
    one_byte = template_for(Slice(memory=1, cores=1), None)
    assert _asked(everything) == {"cores": "1"}
    assert _asked(one_byte) == {"cores": "1", "memory": "1Mi"}
    assert everything.name != one_byte.name
