"""Slices in words, for people."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpuslice.model.slices import Slice


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Slice(memory=1), "1 byte of memory"),
        (Slice(memory=1500, cores=30), "1500 bytes of memory, 30% cores"),
        (Slice(memory=4 * 2**30, devices=2), "2 x 4Gi memory"),
        (Slice(memory=Fraction(1, 3), gpu_model="A100-40GB"), "1/3 of the memory of an A100-40GB"),
        (Slice(memory=Fraction(1), cores=100, gpu_model="T4"), "whole GPU of a T4"),
        (Slice(slots=1), "1 slot"),
    ],
)
def test_a_slice_is_told_in_words(given: Slice, text: str) -> None:
    assert given.describe() == text
