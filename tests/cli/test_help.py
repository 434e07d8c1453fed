"""The help of every command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from gpuslice.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator


def contexts(context: click.Context) -> Iterator[click.Context]:
    """That of a command, and those of all commands in it."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            inner = context.command.get_command(context, name)
            assert inner is not None
            yield from contexts(click.Context(inner, info_name=name, parent=context))


@pytest.mark.parametrize(
    "context", [*contexts(click.Context(main.command, info_name="gpuslice"))], ids=lambda context: context.command_path
)
def test_the_help_has_an_example_of_the_command(context: click.Context) -> None:
    _, found, example = context.get_help().partition("Example:\n")

    assert found
    assert context.command_path in example.partition("\n\n")[0]
