"""The forms of fields that choose GPUs. As in `forms`, in Python and in CEL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gpuslice.dialects import cel
from gpuslice.dialects.forms import FormError
from gpuslice.model.choices import MOST_ALTERNATIVES

_SEPARATOR: Final = " {0,3}, {0,3}"


@dataclass(frozen=True, slots=True)
class _ListOf:
    """Up to eight, with commas between them. Each is a pattern, both for Python and for RE2."""

    pattern: str
    what: str
    remedy: str
    examples: tuple[str, ...]
    any_length: bool = True

    def parse(self, text: str) -> tuple[str, ...]:
        if re.fullmatch(self._whole, text, re.ASCII) is None:
            raise FormError(f"{text[:200]!r} is not {self.what}", self.remedy)
        return tuple(dict.fromkeys(self._meaning(each.strip()) for each in text.split(",")))

    def malformed(self, text: str) -> str | None:
        return f"!{cel.matches(text, f'^{self._whole}$')}"

    @property
    def _whole(self) -> str:
        return f" {{0,3}}{self.pattern}({_SEPARATOR}{self.pattern}){{0,{MOST_ALTERNATIVES - 1}}} {{0,3}}"

    def _meaning(self, item: str) -> str:
        return item


class GpuTypes(_ListOf):
    """Parts of the names of products: `A100,V100`, `NVIDIA-A100-SXM4-40GB`."""

    def __init__(self) -> None:
        super().__init__(
            "[A-Za-z0-9][A-Za-z0-9 ._+()-]{0,47}",
            "a list of GPU types",
            f'write up to {MOST_ALTERNATIVES}, with commas between them, for example "A100,V100"',
            ("A100,V100", "T4", "NVIDIA-A100-SXM4-40GB"),
        )

    def _meaning(self, item: str) -> str:
        """As selectors compare it: HAMi does not care for capitals, and GFD's labels have no spaces."""
        return item.upper().replace(" ", "-")


class GpuUuids(_ListOf):
    """UUIDs of GPUs."""

    def __init__(self) -> None:
        uuid = "GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
        super().__init__(
            uuid,
            "a list of the UUIDs of GPUs",
            f"write up to {MOST_ALTERNATIVES}, with commas between them, as nvidia-smi -L shows them",
            ("GPU-03f69c50-207a-2038-9b45-23cac89cb67d",),
        )

    def _meaning(self, item: str) -> str:
        prefix, _, number = item.partition("-")
        return f"{prefix}-{number.lower()}"


_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("0", "f", "F", "FALSE", "false", "False")


@dataclass(frozen=True, slots=True)
class Flag:
    """Yes or no, as Go reads it."""

    examples: tuple[str, ...] = ("true", "false")
    any_length: bool = False

    def parse(self, text: str) -> bool:
        if text not in _TRUE and text not in _FALSE:
            raise FormError(f"{text[:200]!r} is neither true nor false", 'write "true" or "false"')
        return text in _TRUE

    def malformed(self, text: str) -> str | None:
        return f"!({text} in {cel.list_of((*_TRUE, *_FALSE))})"
