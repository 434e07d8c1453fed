"""The packages for pip: what they hold, and that they install where there is no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_is_for_every_linux_with_glibc_2_17(shipped_packages: Path) -> None:
    (wheel,) = shipped_packages.glob("*.whl")
    assert "-py3-none-manylinux2014_x86_64" in wheel.name
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
    assert any(name.endswith("interposer/libgpuslice.so") for name in names)
    assert not [name for name in names if "gpuslice_cluster" in name or name.endswith((".c", ".h"))]


def test_the_sources_have_what_the_wheel_is_built_from(shipped_packages: Path) -> None:
    (path,) = shipped_packages.glob("*.tar.gz")
    with tarfile.open(path) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {"pyproject.toml", "CMakeLists.txt", "native/CMakeLists.txt", "src/gpuslice/cli/main.py"} <= names
    assert not [name for name in names if name.startswith(("cluster/", ".ci/", "build/", ".venv/"))]


def test_it_installs_and_runs_without_a_compiler(shipped_packages: Path, tmp_path: Path) -> None:
    (wheel,) = shipped_packages.glob("*.whl")
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=120)
    # No program of this machine is found: pip could compile nothing.
    bare = {"PATH": str(home / "bin"), "HOME": str(Path.home()), "TMPDIR": str(tmp_path)}
    pip = [str(home / "bin" / "pip"), "install", "--quiet", "--only-binary", ":all:"]
    locked = str(ROOT / "requirements" / "runtime.txt")
    subprocess.run([*pip, "--require-hashes", "-r", locked], env=bare, check=True, timeout=300)
    subprocess.run([*pip, "--no-deps", str(wheel)], env=bare, check=True, timeout=120)
    gpuslice = str(home / "bin" / "gpuslice")
    machine = ("--name", f"clean-{os.getpid()}")
    subprocess.run([gpuslice, "sim", "up", *machine, "--gpus", "1xA100-40GB"], env=bare, check=True, timeout=60)
    try:
        shown = subprocess.check_output([gpuslice, "sim", "status", *machine], env=bare, text=True, timeout=60)
        assert "A100" in shown
    finally:
        subprocess.run([gpuslice, "sim", "down", *machine], env=bare, check=True, timeout=60)
