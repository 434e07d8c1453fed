"""The configuration in the cluster: a ConfigMap, which webhook, controller and agents mount, and which is all that they
are started with. So slots, presets, backends and names are said once.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import yaml

from gpuslice.configuration import effective
from gpuslice.installing.objects import Object, metadata

if TYPE_CHECKING:
    from gpuslice.installing.options import Options

NAME: Final = "gpuslice-configuration"
FILE: Final = "configuration.yaml"
MOUNT: Final = "/etc/gpuslice/configuration"
#: On the pods. They read the file when they start, so another file needs other pods.
_CHECKSUM: Final = "configuration.gpuslice.io/checksum"

ARGUMENTS: Final = (f"--config={MOUNT}/{FILE}",)


def text(options: Options) -> str:
    """What differs from the defaults, as the pods read it."""
    document = effective.document(options.effective.said)
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def objects(options: Options) -> list[Object]:
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(NAME, options),
            "data": {FILE: text(options)},
        }
    ]


def pod_annotations(options: Options) -> dict[str, str]:
    return {_CHECKSUM: hashlib.sha256(text(options).encode()).hexdigest()[:16]}


def mounts() -> list[Object]:
    return [{"name": "configuration", "mountPath": MOUNT, "readOnly": True}]


def volumes() -> list[Object]:
    return [{"name": "configuration", "configMap": {"name": NAME}}]
