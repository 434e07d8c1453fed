"""CEL expressions of policies: compiled once, evaluated for each pod that the rest of their rule matches.

The library is imported when the first expression is compiled, so a cluster without expressions does not pay for it.
It checks names and types when it compiles, and bounds recursion and iterations when it evaluates: an expression
cannot hang the webhook.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cel_expr_python import cel

#: As in Kubernetes' own admission policies.
VARIABLES: Final = ("object", "namespaceObject", "request")


class ExpressionError(ValueError):
    """Raised when an expression cannot be compiled, or has no answer for a pod."""


class Expression:
    """A compiled expression that says yes or no."""

    def __init__(self, text: str) -> None:
        try:
            self._compiled = _environment().compile(text)
        except RuntimeError as error:
            raise ExpressionError(_first_line(error)) from None
        kind = self._compiled.return_type().name()
        # What comes out of a pod's fields is only known when it is evaluated.
        if kind not in ("BOOL", "DYN"):
            raise ExpressionError(f"it gives a value of type {kind}, not true or false")

    def holds(self, variables: Mapping[str, Any]) -> bool:
        """Whether it is true. A field that is not there is an error: write has(object.metadata.labels) && ..."""
        try:
            result = self._compiled.eval(data=variables)
            value = result.value()
        except (RuntimeError, ValueError, TypeError, OverflowError) as error:
            raise ExpressionError(_first_line(error)) from None
        if not isinstance(value, bool):
            failed = result.type().name() == "ERROR"
            raise ExpressionError(
                str(value).removeprefix("UNKNOWN: ") if failed else f"it gave {str(value)[:40]!r}, not true or false"
            )
        return value


#: Expressions that a set of rules still uses. A new set, in which one policy of many changed, compiles only new ones.
_known: Final[WeakValueDictionary[str, Expression]] = WeakValueDictionary()


def compiled(text: str) -> Expression:
    """The expression, compiled unless another rule uses it already. Raises ExpressionError if it cannot be."""
    known = _known.get(text)
    if known is None:
        known = _known[text] = Expression(text)
    return known


@cache
def _environment() -> cel.Env:
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_optional, ext_strings

    from gpuslice.policies import cel_functions

    # As in Kubernetes' own policies. What these have beyond it (lists, url, ip, semver) is refused by its name.
    ours = cel.CelExtension("gpuslice", cel_functions.declarations())
    extensions = [ext_strings.ExtStrings(), ext_optional.ExtOptional(), ours]
    return cel.NewEnv(variables=dict.fromkeys(VARIABLES, cel.Type.DYN), extensions=extensions)


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text.removeprefix("INVALID_ARGUMENT: ").removeprefix("ERROR: <input>:").removesuffix(" [INVALID_ARGUMENT]")
