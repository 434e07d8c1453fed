"""The interposer under the compiler's sanitizers, in front of a simulator that has them too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.interposer.node import MIB
from tests.native.building import ROOT, SANITIZERS, launcher, libraries, sanitizer_options

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interposer.conftest import Build
    from tests.interposer.node import Node

#: The stand-ins, under the names by which a program that is linked with the real libraries finds them.
STAND_INS = {"libcuda.so.1": "libgpuslice.so", "libnvidia-ml.so.1": "libgpuslice-nvml.so"}


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_threads_that_use_everything_at_once_in_a_session_break_no_rule(
    sanitizer: str, node: Node, build: Build, tmp_path: Path
) -> None:
    real = libraries(sanitizer)
    for name, own in STAND_INS.items():
        (tmp_path / name).symlink_to(real.parent / "interposer" / own)
    program = build(
        ROOT / "tests" / "native" / "exercise.c",
        *SANITIZERS[sanitizer],
        *(tmp_path / name for name in STAND_INS),
        name=f"exercise-{sanitizer}",
    )
    session = node.session(256 * MIB)
    extra = sanitizer_options(real) | {
        "LD_PRELOAD": "",
        "LD_LIBRARY_PATH": str(tmp_path),
        "GPUSLICE_LIBCUDA": str(real / "libcuda.so.1"),
        "GPUSLICE_LIBNVML": str(real / "libnvidia-ml.so.1"),
    }
    done = node.run([*launcher(sanitizer), program], session, extra)
    assert (done.stdout, done.stderr) == ("done\n", "")
    view = node.client.show(session.id)
    assert view.allocations > 1000
    assert view.denials == 0
