"""The forms that amounts and texts can have. Each says the same thing twice: in Python, which reads a value and
complains, and in CEL, by which the API server knows a malformed value without asking us.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Protocol, TypeVar

from gpuslice.dialects import cel
from gpuslice.model import gpus

_Value_co = TypeVar("_Value_co", covariant=True)


class FormError(ValueError):
    """Raised when a value does not have its form. Says why, and what to write instead."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reason}; {remedy}" if remedy else reason)
        self.reason = reason
        self.remedy = remedy


class AmountForm(Protocol):
    """What a whole number, the amount of a resource, may be."""

    def check(self, amount: int) -> None:
        """Complains with a FormError."""
        ...

    def malformed(self, amount: str) -> str | None:
        """CEL that is true of an expression for an amount that `check` refuses; None if it refuses none."""
        ...


class TextForm(Protocol[_Value_co]):
    """What the text of an annotation or a label may be."""

    @property
    def examples(self) -> tuple[str, ...]:
        """Texts that have the form."""
        ...

    @property
    def any_length(self) -> bool:
        """Whether a text of any length can have the form. The API server examines only the shorter ones of these."""
        ...

    def parse(self, text: str) -> _Value_co:
        """The value. Complains with a FormError."""
        ...

    def malformed(self, text: str) -> str | None:
        """CEL that is true of an expression for a text that `parse` refuses; None if it refuses none."""
        ...


#: The API server has seen to it that quantities are whole and not negative, and writes most in one way, and 0 always.
#: But it keeps 050, +50, 50. and 50e0.
_START: Final = "^[+]?0*"
_END: Final = "[.]?([eE][+-]?0+)?$"


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """Any amount."""

    def check(self, amount: int) -> None:
        """Every whole number will do."""

    def malformed(self, _amount: str) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class Percent:
    """Up to 100."""

    def check(self, amount: int) -> None:
        if amount > 100:
            raise FormError(f"{amount} is above 100 percent of a GPU", "write 1 to 100")

    def malformed(self, amount: str) -> str | None:
        return f"!{cel.matches(amount, f'{_START}([1-9]?[0-9]|100){_END}')}"


@dataclass(frozen=True, slots=True)
class HundredthsOfGpus:
    """Up to 99 is a share of one GPU; a multiple of 100 is that many whole GPUs."""

    def check(self, amount: int) -> None:
        if amount > 100 and amount % 100:
            raise FormError(
                f"{amount} is neither 1 to 100 nor a multiple of 100",
                f"write {amount // 100 * 100} or {-(-amount // 100) * 100} for whole GPUs, or up to 100 for one",
            )

    def malformed(self, amount: str) -> str | None:
        # Thousands are multiples of 100 always, powers of 1024 if there are 25 of them.
        whole = "00[.]?$|[kMGTPE]$|[eE][+-]?[0-9]+$|(00|25|50|75)[.]?[KMGTPE]i$"
        return f"!{cel.matches(amount, f'{_START}[0-9]{{1,2}}{_END}|{whole}')}"


def is_share(amount: int) -> bool:
    """Whether so many hundredths are less than a GPU."""
    return 0 < amount < 100


def is_share_in_cel(amount: str) -> str:
    return cel.matches(amount, f"{_START}[1-9][0-9]?{_END}")


@dataclass(frozen=True, slots=True)
class AnyText:
    """A text that the dialect reads by itself, or only compares."""

    examples: tuple[str, ...] = ("true",)
    any_length: bool = False

    def parse(self, text: str) -> str:
        return text

    def malformed(self, _text: str) -> str | None:
        return None


_NUMBER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PositiveNumber:
    """1, 2 and so on."""

    remedy: str = 'write for example "2"'
    examples: tuple[str, ...] = ("2",)
    any_length: bool = False

    def parse(self, text: str) -> int:
        if _NUMBER.fullmatch(text) is None or int(text) == 0:
            raise FormError(f"{text!r} is not a positive whole number", self.remedy)
        return int(text)

    def malformed(self, text: str) -> str | None:
        return cel.any_of([f"!{cel.matches(text, '^[0-9]{1,9}$')}", cel.matches(text, "^0+$")])


_DECIMAL: Final = re.compile(r"[0-9]{0,9}(\.[0-9]{1,18})?", re.ASCII)
_RATIO: Final = re.compile(r"([0-9]{1,9})\s*/\s*([0-9]{1,9})", re.ASCII)

#: A superset of what Python takes for white space, for RE2.
_SPACE: Final = r"[\s\p{Z}\x{85}\x0b\x1c-\x1f]*"
_CEL_FRACTION: Final = (
    rf"^{_SPACE}([0-9]{{1,9}}|[0-9]{{0,9}}\.[0-9]{{1,18}}|[0-9]{{1,9}}[\s\x0b]*/[\s\x0b]*[0-9]{{1,9}}){_SPACE}$"
)
_CEL_NOTHING: Final = rf"^{_SPACE}(0+|0*\.0+|0+\s*/.*|.*/\s*0+){_SPACE}$"
_CEL_ABOVE_ONE: Final = rf"^{_SPACE}0*([2-9]|[1-9][0-9]+|1\.0*[1-9])[0-9.]*{_SPACE}$"
_CEL_ONE: Final = rf"^{_SPACE}0*1(\.0+)?{_SPACE}$"
#: Without the separators that Python trims and CEL does not.
_CEL_RATIO: Final = r"^[\s\p{Z}\x{85}\x0b]*[0-9]{1,9}[\s\x0b]*/[\s\x0b]*[0-9]{1,9}[\s\p{Z}\x{85}\x0b]*$"


@dataclass(frozen=True, slots=True)
class PartOfGpu:
    """Such as 1/3 or 0.25: above 0 and at most 1, or below it."""

    #: Whether 1 is a part, too.
    up_to_one: bool = True
    examples: tuple[str, ...] = ("1/3", "0.25")
    any_length: bool = True

    def parse(self, text: str) -> Fraction:
        fraction = _parse_fraction(text.strip())
        if fraction is None or not 0 < fraction <= 1:
            bound = "at most 1" if self.up_to_one else "below 1"
            raise FormError(f"{text!r} is not a part of a GPU above 0 and {bound}", 'write for example "1/3" or "0.25"')
        if fraction == 1 and not self.up_to_one:
            raise FormError("is a whole GPU, not a part of one", "ask for nvidia.com/gpu instead")
        return fraction

    def malformed(self, text: str) -> str | None:
        too_large = [_CEL_ABOVE_ONE] if self.up_to_one else [_CEL_ABOVE_ONE, _CEL_ONE]
        wrong = [cel.matches(text, pattern) for pattern in (_CEL_NOTHING, *too_large)]
        larger = _compares(text, ">" if self.up_to_one else ">=")
        return cel.any_of([f"!{cel.matches(text, _CEL_FRACTION)}", *wrong, larger])


def _compares(text: str, comparison: str) -> str:
    numerator, denominator = (f"int({text}.split('/')[{index}].trim())" for index in range(2))
    return cel.all_of([cel.matches(text, _CEL_RATIO), f"{numerator} {comparison} {denominator}"])


def _parse_fraction(text: str) -> Fraction | None:
    if ratio := _RATIO.fullmatch(text):
        numerator, denominator = map(int, ratio.groups())
        return Fraction(numerator, denominator) if denominator else None
    return Fraction(text) if text and _DECIMAL.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    examples: tuple[str, ...]
    #: What each of them is, as a complaint has it: "a way of sharing".
    what: str
    remedy: str
    any_length: bool = False

    def parse(self, text: str) -> str:
        if text not in self.examples:
            raise FormError(f"{text!r} is not {self.what}", self.remedy)
        return text

    def malformed(self, text: str) -> str | None:
        return f"!({text} in {cel.list_of(self.examples)})"


#: What a model's name may be: it goes into a CEL expression, and attributes have at most 64 characters.
_MODEL: Final = "[A-Za-z0-9][A-Za-z0-9 ._+()-]{0,63}"
_MODEL_NAME: Final = re.compile(_MODEL, re.ASCII)


@dataclass(frozen=True, slots=True)
class GpuModelName:
    """The name of a GPU model: ours, its maker's or that of GFD's label."""

    examples: tuple[str, ...] = tuple(gpus.PRESETS)
    any_length: bool = True

    def parse(self, text: str) -> str:
        wanted = text.strip()
        if _MODEL_NAME.fullmatch(wanted) is None:
            raise FormError(f"{text!r} is not the name of a GPU model: write for example {', '.join(self.examples)}")
        return gpus.name_of_model(wanted)

    def malformed(self, text: str) -> str | None:
        return f"!{cel.matches(text, f'^{_SPACE}{_MODEL}{_SPACE}$')}"


class ContainerNames(TextForm[tuple[str, ...]], Protocol):
    """The form of a field that says for which containers the pod asks. Whether they are there is checked apart."""

    def names(self, text: str, container: str) -> str:
        """CEL: whether the text names the container whose name is that expression."""
        ...

    def names_another(self, text: str, containers: str) -> str:
        """CEL: whether the text names a container that is not among these."""
        ...


@dataclass(frozen=True, slots=True)
class ContainerName:
    """One container."""

    examples: tuple[str, ...] = ("main",)
    any_length: bool = False

    def parse(self, text: str) -> tuple[str, ...]:
        return (text,)

    def malformed(self, _text: str) -> str | None:
        return None

    def names(self, text: str, container: str) -> str:
        return f"{container} == {text}"

    def names_another(self, text: str, containers: str) -> str:
        return f"!{containers}.exists(c, {self.names(text, 'c.name')})"


@dataclass(frozen=True, slots=True)
class ListOfContainerNames:
    """Several, with commas between them."""

    examples: tuple[str, ...] = ("main, helper",)
    any_length: bool = True

    def parse(self, text: str) -> tuple[str, ...]:
        return tuple(name.strip() for name in text.split(","))

    def malformed(self, _text: str) -> str | None:
        return None

    def names(self, text: str, container: str) -> str:
        return f"{text}.split(',').exists(n, n.trim() == {container})"

    def names_another(self, text: str, containers: str) -> str:
        # Python trims separators that CEL does not; a text with one is left to Python.
        missing = f"{text}.split(',').exists(n, !{containers}.exists(c, c.name == n.trim()))"
        return cel.all_of([cel.matches(text, r"^[^\x1c-\x1f]*$"), missing])
