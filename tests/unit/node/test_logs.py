"""A line of the log is JSON, whatever is in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuslice.node.logs import _to_json


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", "text"),
        (7, 7),
        (Path("/dev/null"), "PosixPath('/dev/null')"),
        ("no Unicode: \udcff", "no Unicode: \udcff"),
        (2**100, 2**100),
    ],
)
def test_anything_can_be_logged(value: object, shown: object) -> None:
    assert json.loads(_to_json({"event": "test", "value": value})) == {"event": "test", "value": shown}
