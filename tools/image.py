"""Makes the container image of gpuslice, with no registry and no builder: the image that `gpuslice cluster` runs.

    python -m tools.image archive [FOLDER]    an OCI archive, with its bill of materials beside it; into dist/
    python -m tools.image root FOLDER         the image's files, for deploy/Containerfile

The same sources and the same Python make the same bytes, so that everybody can see what an image was made of.
"""

from __future__ import annotations

import json
import platform
import re
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpuslice_cluster.images import catalogue, gpuslice_image

if TYPE_CHECKING:
    from importlib.metadata import Distribution

ROOT: Final = Path(__file__).resolve().parent.parent
VERSION: Final = version("gpuslice")
NAME: Final = f"gpuslice:{VERSION}"
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_LOCKED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def archive(folder: Path) -> tuple[Path, str]:
    """Writes archive and bill of materials into the folder. Returns the archive's path and the image's digest."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"gpuslice-{VERSION}-linux-amd64.oci.tar"
    beside = path.with_suffix(".partial")
    with beside.open("wb") as file:
        digest = catalogue.write(file, catalogue.build(catalogue.GPUSLICE), NAME, compressed=True)
    beside.rename(path)
    bill = json.dumps(bill_of_materials(digest), indent=2, sort_keys=True)
    (folder / f"gpuslice-{VERSION}-linux-amd64.cdx.json").write_text(f"{bill}\n")
    return path, digest


def root(folder: Path) -> None:
    """Writes the image's files."""
    folder.mkdir(parents=True, exist_ok=True)
    for layer in catalogue.build(catalogue.GPUSLICE).layers:
        with tarfile.open(layer) as files:
            files.extractall(folder, filter="fully_trusted")  # noqa: S202 - our own layers


def bill_of_materials(digest: str) -> dict[str, Any]:
    """What is in the image, as CycloneDX; the same for the same image."""
    hashes = _locked_hashes()
    packages = sorted(gpuslice_image.requirements("gpuslice"), key=lambda each: each.metadata["Name"].lower())
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": NAME,
                "name": "gpuslice",
                "version": VERSION,
                "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
                "licenses": [{"expression": "Apache-2.0"}],
            }
        },
        "components": [
            _component("gpuslice", VERSION, "Apache-2.0", []),
            *(
                _component(name, each.version, _license(each), hashes.get((name, each.version), []))
                for each in packages
                for name in [each.metadata["Name"].lower().replace("_", "-")]
            ),
            {"type": "platform", "bom-ref": "python", "name": "python", "version": platform.python_version()},
        ],
    }


def _component(name: str, number: str, license_name: str, hashes: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{number}",
        "purl": f"pkg:pypi/{name}@{number}",
        "name": name,
        "version": number,
    }
    if license_name:
        made["licenses"] = [{"license": {"name": license_name}}]
    if hashes:
        # Of the distributions that the lock allows: one of them is installed here.
        made["properties"] = [{"name": "gpuslice:locked-sha256", "value": each} for each in hashes]
    return made


def _license(package: Distribution) -> str:
    said = package.metadata.json
    found = said.get("license_expression") or said.get("license") or ""
    return str(found).splitlines()[0] if found else ""


def _locked_hashes() -> dict[tuple[str, str], list[str]]:
    text = (ROOT / "requirements" / "runtime.txt").read_text()
    starts = [*_LOCKED.finditer(text)]
    ends = [*(each.start() for each in starts[1:]), len(text)]
    return {
        (start[1].lower(), start[2]): _HASH.findall(text[start.end() : end])
        for start, end in zip(starts, ends, strict=True)
    }


def main(arguments: list[str]) -> int:
    match arguments:
        case ["archive", *folders] if len(folders) < 2:
            path, digest = archive(Path(*folders) if folders else ROOT / "dist")
            print(f"==> Wrote {path}: {path.stat().st_size / 1e6:.0f} MB, {NAME}@{digest}")
        case ["root", folder]:
            root(Path(folder))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
