"""How sessions are named, and what limits mean in bytes."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.model import sessions
from gpuslice.node.admin import shares
from gpuslice.node.admin.messages import GpuShare
from gpuslice.node.errors import AgentError
from gpuslice.node.gpus.nvml import GpuInfo
from gpuslice.node.sessions import page

MACHINE = [
    GpuInfo("0", "GPU-aaaaaaaa-0000-0000-0000-000000000000", "A", 1000 << 20),
    GpuInfo("0:0", "MIG-bbbbbbbb-0000-0000-0000-000000000000", "A MIG", 400 << 20, mig=True),
    GpuInfo("1", "GPU-aaaaaaab-0000-0000-0000-000000000000", "B", 2000 << 20),
]


@pytest.mark.parametrize("name", ["a", "0", "job-1", "my_job", "x" * sessions.MAX_NAME])
def test_a_session_can_have_the_name(name: str) -> None:
    assert sessions.check_name(name) == name
    assert sessions.is_id(name)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a b", "a/b", "..", "a.b", "ä", "a\n", "x" * 64])
def test_a_session_cannot_have_the_name(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a session"):
        sessions.check_name(name)
    assert not sessions.is_id(name)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_random_ids_are_words_and_differ(one: int, other: int) -> None:
    word = sessions.pronounceable(one)
    assert sessions.is_id(word)
    assert len(word) == 11
    assert (word == sessions.pronounceable(other)) == (one == other)


def test_a_share_is_of_the_gpu_that_was_named() -> None:
    found = shares.resolve([GpuShare("1", "50%"), GpuShare("0:0", 100, 30)], None, MACHINE)
    assert [(gpu.uuid[:8], gpu.limit_bytes, gpu.core_percent) for gpu in found] == [
        ("GPU-aaaa", 1000 << 20, 0),
        ("MIG-bbbb", 100, 30),
    ]
    whole = shares.resolve([], "25%", MACHINE)
    assert [gpu.limit_bytes for gpu in whole] == [250 << 20, 500 << 20]


@pytest.mark.parametrize(
    ("gpu", "text"),
    [("2", "is not a GPU"), ("GPU-aaaa", "names several"), ("GPU", "is not a GPU"), ("", "is not a GPU")],
)
def test_a_gpu_that_is_not_one_is_refused(gpu: str, text: str) -> None:
    with pytest.raises(AgentError, match=text):
        shares.resolve([GpuShare(gpu, 1)], None, MACHINE)


@given(st.text(max_size=40))
def test_any_gpu_and_limit_is_found_or_refused(text: str) -> None:
    for machine in (MACHINE, []):
        with suppress(AgentError):
            found = shares.resolve([GpuShare(text, text)], None, machine)
            assert 1 <= found[0].limit_bytes <= page.BYTES_MASK


def test_a_uuid_is_what_cuda_gives() -> None:
    text = "GPU-00112233-4455-6677-8899-aabbccddeeff"
    assert page.uuid_bytes(text) == bytes.fromhex("00112233445566778899aabbccddeeff")
    assert page.uuid_bytes(text.replace("GPU", "MIG")) == page.uuid_bytes(text)
