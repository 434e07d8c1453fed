"""CEL as text: the few words that forms, match conditions and admission policies are written in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def quote(text: str) -> str:
    """A text as CEL writes it."""
    return json.dumps(text)


def matches(text: str, pattern: str) -> str:
    """Whether the value of an expression matches a pattern of RE2."""
    return f"{text}.matches({quote(pattern)})"


def any_of(clauses: Iterable[str]) -> str:
    return f"({' || '.join(clauses)})"


def all_of(clauses: Iterable[str]) -> str:
    return f"({' && '.join(clauses)})"


def list_of(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(quote, texts))}]"
