"""What expressions can call beyond CEL's own functions, as in Kubernetes' admission policies: quantities and sets.

The library takes no types of ours, so a quantity is a map to it, with one entry: what it amounts to, as a fraction in
lowest terms. Equal quantities are equal maps, and the functions refuse every other map.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from gpuslice.model.values.kubernetes_quantities import parse_quantity

if TYPE_CHECKING:
    from collections.abc import Callable

    from cel_expr_python import cel

_KEY: Final = "quantity"
_MAX_INT: Final = 2**63 - 1
_DIGITS: Final = 400  # of a number and its divisor together, so that adding up stays cheap

Quantity = dict[str, str]


def declarations() -> list[cel.FunctionDecl]:
    from cel_expr_python import cel

    kind = cel.Type
    quantity = kind.Map(kind.STRING, kind.STRING)
    several = kind.List(kind.DYN)
    written = (kind.STRING, kind.INT, kind.DOUBLE)

    def declare(name: str, gives: cel.Type, takes: list[list[cel.Type]], does: Callable[..., Any]) -> cel.FunctionDecl:
        """With an overload for each list of parameters. Those that begin with a quantity are its methods."""
        overloads = [
            cel.Overload(
                f"{name.replace('.', '_')}_{number}", gives, parameters, is_member=parameters[0] == quantity, impl=does
            )
            for number, parameters in enumerate(takes)
        ]
        return cel.FunctionDecl(name, overloads)

    return [
        # The API server writes quantities as texts; files have numbers too.
        declare("quantity", quantity, [[each] for each in written], _quantity),
        declare("isQuantity", kind.BOOL, [[each] for each in written], _is_quantity),
        declare("isInteger", kind.BOOL, [[quantity]], _is_integer),
        declare("asInteger", kind.INT, [[quantity]], _as_integer),
        declare("asApproximateFloat", kind.DOUBLE, [[quantity]], lambda one: float(_amount(one))),
        declare("sign", kind.INT, [[quantity]], lambda one: _compare(_amount(one), Fraction(0))),
        declare("compareTo", kind.INT, [[quantity] * 2], lambda one, other: _compare(_amount(one), _amount(other))),
        declare("isLessThan", kind.BOOL, [[quantity] * 2], lambda one, other: _amount(one) < _amount(other)),
        declare("isGreaterThan", kind.BOOL, [[quantity] * 2], lambda one, other: _amount(one) > _amount(other)),
        declare("add", quantity, [[quantity] * 2, [quantity, kind.INT]], _add),
        declare("sub", quantity, [[quantity] * 2, [quantity, kind.INT]], _subtract),
        declare("sets.contains", kind.BOOL, [[several] * 2], lambda one, other: _members(one) >= _members(other)),
        declare("sets.equivalent", kind.BOOL, [[several] * 2], lambda one, other: _members(one) == _members(other)),
        declare(
            "sets.intersects",
            kind.BOOL,
            [[several] * 2],
            lambda one, other: not _members(one).isdisjoint(_members(other)),
        ),
    ]


def _quantity(text: str | float) -> Quantity:
    return _written(parse_quantity(text))


def _is_quantity(text: str | float) -> bool:
    try:
        _quantity(text)
    except ValueError:
        return False
    return True


def _written(amount: Fraction) -> Quantity:
    text = str(amount)
    if len(text) > _DIGITS:
        raise ValueError("this is too exact, or too large, for a quantity")
    return {_KEY: text}


def _amount(given: Quantity) -> Fraction:
    text = given.get(_KEY) if len(given) == 1 else None
    if isinstance(text, str) and len(text) <= _DIGITS:
        with suppress(ValueError, ZeroDivisionError):  # a map of the pod's
            return Fraction(text)
    raise ValueError("this is not a quantity")


def _is_integer(given: Quantity) -> bool:
    amount = _amount(given)
    return amount.denominator == 1 and -_MAX_INT <= amount <= _MAX_INT


def _as_integer(given: Quantity) -> int:
    if not _is_integer(given):
        raise ValueError("this quantity is not a whole number of 64 bits")
    return int(_amount(given))


def _compare(one: Fraction, other: Fraction) -> int:
    return (one > other) - (one < other)


def _add(one: Quantity, other: Quantity | int) -> Quantity:
    return _written(_amount(one) + _term(other))


def _subtract(one: Quantity, other: Quantity | int) -> Quantity:
    return _written(_amount(one) - _term(other))


def _term(given: Quantity | int) -> Fraction:
    return Fraction(given) if isinstance(given, int) else _amount(given)


def _members(values: list[Any]) -> set[Hashable]:
    return {_hashable(value) for value in values}


def _hashable(value: Any) -> Hashable:  # noqa: ANN401 - any value of CEL
    """Equal where CEL's values are: numbers of every type are equal, but true is not 1."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, dict):
        return ("map", frozenset((_hashable(key), _hashable(each)) for key, each in value.items()))
    if isinstance(value, list | tuple):
        return ("list", tuple(map(_hashable, value)))
    if isinstance(value, Hashable):
        return value
    raise ValueError(f"a set has no values of type {type(value).__name__}")
