"""What is wrong with a configuration. Every problem is told, not only the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from gpuslice.model.errors import GpusliceError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Problem(Struct, frozen=True):
    """One field that cannot be what its author meant."""

    #: Who said it: a file's name, or a flag.
    source: str
    #: The field, as `webhook.port`. Empty where the file as a whole is meant.
    path: str
    #: What was found, and what to write instead.
    text: str

    @property
    def is_of_flag(self) -> bool:
        return self.source.startswith("--")

    def __str__(self) -> str:
        """A flag names its field by itself."""
        named = [self.source] if self.is_of_flag or not self.path else [self.source, self.path]
        return ": ".join([*(each for each in named if each), self.text])


class ConfigurationError(GpusliceError):
    """Raised for a configuration that cannot be what its author meant. The text has a line for each problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)
