"""What a tenant calls itself, in an administrator's terminal: it steers no terminal, and passes for no further line."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.cli.output import plain, plain_lines
from tests.cli.conftest import lonely_node, node
from tests.cli.node import ALLOCATOR, Allocator

if TYPE_CHECKING:
    from tests.cli.node import Node

__all__ = ["lonely_node", "node"]  # fixtures of tests/cli

#: Titles, a cleared screen, C1 controls, a forged line, text from right to left, a tag, no character, rich's markup.
NAMES = (
    "\x1b]0;owned\x07\x1b[2J",
    "\x9b2J\x85",
    "a\nforged 0 B\rb",
    "\u202eevil\u2066\u200b",
    "\U000e0041\ue000",
    "\u2028forged",
    "[/foo][bold red]x[/]:boom:",
)


@given(st.text())
def test_nothing_but_visible_characters_is_left(text: str) -> None:
    shown = plain(text)
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert plain_lines(text).split("\n") == [plain(line) for line in text.split("\n")]
    assert shown.encode().decode() == shown


@pytest.mark.parametrize("text", ["python train.py --name=[x]", "Größe 1½", "日本語 é", "👍"])
def test_what_people_write_is_shown_as_it_is(text: str) -> None:
    assert plain(text) == text


def test_a_surrogate_is_shown_as_its_number() -> None:
    assert plain("a\udc9bb") == r"a\udc9bb"


def test_the_name_of_a_process_does_not_steer_the_terminal(node: Node) -> None:
    Allocator(node.start("run", "--limit", "256MiB", "--gpu", "0", "--name", "train", "--", *ALLOCATOR, *NAMES))
    everything = {"COLUMNS": "2000", "PYTHONUTF8": "1"}
    for arguments in (("session", "show", "train"), ("ps", "-o", "wide"), ("top", "--once"), ("sim", "status")):
        shown = node.gpuslice(*arguments, extra=everything).stdout
        unexpected = [character for character in shown if plain(character) != character and character != "\n"]
        assert unexpected == [], arguments
        assert "\nforged" not in shown
        if arguments != ("sim", "status"):  # which names programs, without what they were started with
            for name in NAMES:
                assert plain(name) in shown, arguments
    assert node.json("session", "show", "train")["processes"][0]["command"].endswith(" ".join(NAMES))


def test_an_error_does_not_steer_the_terminal(node: Node) -> None:
    for arguments in (("session", "show", NAMES[0]), ("session", "create", "--gpu", NAMES[1], "--limit", "1GiB")):
        done = node.gpuslice(*arguments, code=1)
        assert [character for character in done.stderr if plain(character) != character] == ["\n"]
