"""How commands print for people and for programs."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from itertools import islice
from typing import TYPE_CHECKING, Final

import click
import msgspec

from gpuslice.cli import standard_streams

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console
    from rich.table import Column, Table

_WIDE: Final = 400
#: A table is folded no further; a narrower terminal breaks its lines.
_NARROWEST: Final = 60


#: Controls, formats (such as those that change the direction of text), surrogates, private and unassigned characters.
_INVISIBLE: Final = ("Cc", "Cf", "Cs", "Co", "Cn")
#: Separators of lines and paragraphs end a line on some terminals.
_LINE_ENDS: Final = ("Zl", "Zp")


def plain(text: str) -> str:
    """Text that a tenant may have chosen, for a terminal: what would steer the terminal is shown as its number."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def plain_lines(text: str) -> str:
    """The same for text of several lines."""
    return "\n".join(map(plain, text.split("\n")))


def _shown(character: str) -> str:
    if unicodedata.category(character) in _INVISIBLE + _LINE_ENDS:
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character


def announce(text: str) -> None:
    """A line from a server. To serve is what it is for: it does not end because the line cannot be printed."""
    try:
        click.echo(text)
    except OSError:
        standard_streams.give_up()


def print_json(value: object) -> None:
    click.echo(json.dumps(msgspec.to_builtins(value), indent=2))


def console(*, on_screen: bool = False) -> Console:
    """Where tables go. In a pipe each row is on one line. A screen that is drawn over and over is as wide as it is."""
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    # No markup, no emoji: programs call themselves what they like. What they call themselves goes through `plain`.
    made = Console(highlight=False, markup=False, emoji=False, width=_WIDE if piped else None)
    if not on_screen and made.width < _NARROWEST:
        made.width = _NARROWEST
    return made


def table(*left: str, right: Iterable[str] = ()) -> Table:
    """Columns of words, then columns of numbers."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in left:
        made.add_column(title, overflow="fold")
    for title in right:
        made.add_column(title, justify="right")
    return made


def fit(whole: Table, console: Console, expendable: Iterable[str]) -> Table:
    """Leaves columns out, in that order, until the table is no wider than the screen."""
    from rich.measure import Measurement

    shown = whole
    unbounded = console.options.update(max_width=10 * _WIDE)
    for title in expendable:
        if Measurement.get(console, unbounded, shown).maximum <= console.width:
            break
        shown = _copy([column for column in shown.columns if column.header != title], shown.row_count)
    return shown


def with_rows(whole: Table, count: int) -> Table:
    """The table with its first rows alone."""
    return _copy(whole.columns, count)


def _copy(columns: Sequence[Column], rows: int) -> Table:
    copied = table()
    for column in columns:
        copied.add_column(column.header, justify=column.justify, overflow=column.overflow)
    for row in islice(zip(*(column.cells for column in columns), strict=True), rows):
        copied.add_row(*row)
    return copied
