"""Rules of this repository that no other tool checks. Run by `make check`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parent.parent
MAX_LINES: Final = 600

_URL: Final = re.compile(r"https?://([A-Za-z0-9.-]+)")
# Addresses that readers follow or protocols name. Where packages come from is each machine's own setting: a registry's
# address in a file would override it.
_HOSTS: Final = re.compile(
    r"www\.apache\.org|(.+\.)?kubernetes\.io|docs\.nvidia\.com|semver\.org|keepachangelog\.com|localhost|127\.0\.0\.1"
    r"|(.+\.)?example(\.(com|org))?|www\.w3\.org|json-schema\.org|grafana\.com|(.+\.)?svc"
)
_INDEX_OPTION: Final = re.compile(r"^\s*(--(extra-)?index-url|-i\s|--find-links|-f\s)", re.MULTILINE)


def tracked_files() -> list[Path]:
    """What is, or will be, in the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def violations(path: Path) -> Iterator[str]:
    name = path.relative_to(ROOT)
    if path.name in ("uv.lock", "poetry.lock", "Pipfile.lock"):
        yield f"{name}: locks are requirements/*.txt, made by `make lock`; remove it"
    if path.is_symlink():
        yield f"{name}: is a link, which some checkouts turn into a text; put a file there"
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return
    for host in sorted(set(_URL.findall(text))):
        if _HOSTS.fullmatch(host) is None:
            yield f"{name}: names the host {host}; if readers should follow it, add it to tools/house_rules.py"
    if path.suffix in (".txt", ".in") and _INDEX_OPTION.search(text):
        yield f"{name}: says where packages come from; that is each machine's own setting"
    if name.parts[0] in ("src", "cluster", "native") and text.count("\n") > MAX_LINES:
        yield f"{name}: has {text.count(chr(10))} lines; split what is above {MAX_LINES}"


def main() -> int:
    found = [violation for path in tracked_files() for violation in violations(path)]
    for violation in found:
        print(f"error: {violation}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
