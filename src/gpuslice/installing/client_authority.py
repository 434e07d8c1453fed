"""The authority of the API servers' client certificates in the cluster: a ConfigMap, and how the webhook reads it.

The pods mount it whether it is there or not: an operator may create it later, and it counts from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.installing.objects import Object, metadata
from gpuslice.installing.options import CLIENT_AUTHORITY_FILE, CLIENT_AUTHORITY_FOLDER, WEBHOOK

if TYPE_CHECKING:
    from gpuslice.installing.options import Options

NAME: Final = f"{WEBHOOK}-client-authority"


def objects(options: Options) -> list[Object]:
    text = options.client_authority
    made = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(WEBHOOK, options) | {"name": NAME},
        "data": {CLIENT_AUTHORITY_FILE: text},
    }
    return [made] if text else []


def mounts() -> list[Object]:
    return [{"name": "client-authority", "mountPath": CLIENT_AUTHORITY_FOLDER, "readOnly": True}]


def volumes() -> list[Object]:
    return [{"name": "client-authority", "configMap": {"name": NAME, "optional": True}}]
