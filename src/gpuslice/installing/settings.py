"""The settings file in the cluster: a ConfigMap, and how the webhook's pods come to read it. Nothing without a file."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from gpuslice.installing.objects import Object, metadata
from gpuslice.installing.options import WEBHOOK

if TYPE_CHECKING:
    from gpuslice.installing.options import Options

_NAME: Final = f"{WEBHOOK}-settings"
_FILE: Final = "settings.toml"
_MOUNT: Final = "/etc/gpuslice/settings"
#: On the pods. They read the file when they start, so another file needs other pods.
_CHECKSUM: Final = "gpuslice.io/settings-checksum"


def objects(options: Options) -> list[Object]:
    text = options.settings_file.text
    made = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(WEBHOOK, options) | {"name": _NAME},
        "data": {_FILE: text},
    }
    return [made] if text else []


def pod_annotations(options: Options) -> dict[str, str]:
    text = options.settings_file.text
    return {_CHECKSUM: hashlib.sha256(text.encode()).hexdigest()[:16]} if text else {}


def arguments(options: Options) -> list[str]:
    return [f"--settings={_MOUNT}/{_FILE}"] if options.settings_file.text else []


def mounts(options: Options) -> list[Object]:
    made = {"name": "settings", "mountPath": _MOUNT, "readOnly": True}
    return [made] if options.settings_file.text else []


def volumes(options: Options) -> list[Object]:
    return [{"name": "settings", "configMap": {"name": _NAME}}] if options.settings_file.text else []
