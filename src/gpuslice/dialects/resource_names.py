"""Which names an operator may give to resources that count GPUs or slots."""

from __future__ import annotations

import re
from typing import Final

from gpuslice.dialects import registry

_WORD: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_RESOURCE: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*/{_WORD}", re.ASCII)
#: Quotas write `requests.` before the name, and both together must fit.
_LONGEST_DOMAIN: Final = 253 - len("requests.")
_READ: Final = frozenset(resource.name for dialect in registry.DIALECTS for resource in dialect.resources)


def check(name: str, example: str) -> str:
    """The name, if Kubernetes takes it for an extended resource and no dialect reads it. Else ValueError says why."""
    domain = name.partition("/")[0]
    if (
        _RESOURCE.fullmatch(name) is None
        or len(domain) > _LONGEST_DOMAIN
        or domain.endswith("kubernetes.io")
        or domain.startswith("requests.")
    ):
        raise ValueError(
            f"{name!r} is not the name of an extended resource; write a domain that is not Kubernetes' own and a name, "
            f"as {example}"
        )
    if name in _READ or registry.by_family(name) is not None:
        raise ValueError(f"{name!r} has a meaning in a dialect; choose another name")
    return name
