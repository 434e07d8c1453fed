"""The interposer under the compiler's sanitizers, in front of a simulator that has them too."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.interposer.node import MIB
from tests.native.building import ROOT, SANITIZERS, launcher, libraries, sanitizer_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuslice.node.admin.messages import SessionView
    from tests.interposer.conftest import Build
    from tests.interposer.node import Node

#: The stand-ins, under the names by which a program that is linked with the real libraries finds them.
STAND_INS = {"libcuda.so.1": "libgpuslice.so", "libnvidia-ml.so.1": "libgpuslice-nvml.so"}


class Session(NamedTuple):
    """How a program with a sanitizer is run in front of libraries that have it too."""

    sanitizer: str
    node: Node
    build: Build
    folder: Path

    def run(self, source: Path, *arguments: str) -> SessionView:
        real = libraries(self.sanitizer)
        for name, own in STAND_INS.items():
            (self.folder / name).symlink_to(real.parent / "interposer" / own)
        stand_ins = [self.folder / name for name in STAND_INS]
        program = self.build(source, *SANITIZERS[self.sanitizer], *stand_ins, name=f"{source.stem}-{self.sanitizer}")
        session = self.node.session(256 * MIB)
        extra = sanitizer_options(real) | {
            "LD_PRELOAD": "",
            "LD_LIBRARY_PATH": str(self.folder),
            "GPUSLICE_LIBCUDA": str(real / "libcuda.so.1"),
            "GPUSLICE_LIBNVML": str(real / "libnvidia-ml.so.1"),
        }
        done = self.node.run([*launcher(self.sanitizer), program, *arguments], session, extra)
        assert not done.stderr, f"\n{done.stderr[:8000]}"
        assert done.stdout.split() == ([*arguments, "0"] if arguments else ["done"])
        return self.node.client.show(session.id)


@pytest.fixture
def sanitized(node: Node, build: Build, tmp_path: Path) -> Callable[[str], Session]:
    return lambda sanitizer: Session(sanitizer, node, build, tmp_path)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_threads_that_use_everything_at_once_in_a_session_break_no_rule(
    sanitizer: str, sanitized: Callable[[str], Session]
) -> None:
    view = sanitized(sanitizer).run(ROOT / "tests" / "native" / "exercise.c")
    assert view.allocations > 1000
    assert view.denials == 0


@pytest.mark.parametrize(("sanitizer", "children"), [("address", 20), ("thread", 0)])
def test_threads_that_allocate_in_every_way_while_their_process_forks_break_no_rule(
    sanitizer: str, children: int, sanitized: Callable[[str], Session]
) -> None:
    view = sanitized(sanitizer).run(ROOT / "tests" / "interposer" / "forks.c", str(children))
    assert view.allocations > 1000
    assert view.denials == 0
