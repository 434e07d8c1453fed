"""What an agent may write: the ResourceSlices of its own node, of our driver, and no others.

Rights by roles cannot say that. A policy of the API server's own can: the token of a pod says on which node the pod
runs, and the API server has put it there. So an agent whose node is taken over cannot publish GPUs for other nodes, or
take theirs away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.installing.objects import Object, metadata
from gpuslice.installing.options import AGENT
from gpuslice.model import devices

if TYPE_CHECKING:
    from gpuslice.installing.options import Options

NAME: Final = f"{AGENT}-slices"
_VERSION: Final = "admissionregistration.k8s.io/v1"
_NODE: Final = "authentication.kubernetes.io/node-name"


def objects(options: Options) -> list[Object]:
    return [
        {
            "apiVersion": _VERSION,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata(NAME),
            "spec": _spec(f"system:serviceaccount:{options.namespace}:{AGENT}"),
        },
        {
            "apiVersion": _VERSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata(NAME),
            "spec": {"policyName": NAME, "validationActions": ["Deny"]},
        },
    ]


def _spec(user: str) -> Object:
    written = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": ["resourceslices"],
        "scope": "*",
    }
    # With every field that the API server would fill in, so that installing once more changes nothing.
    matched = {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}, "resourceRules": [written]}
    own = f'request.userInfo.extra[?"{_NODE}"][?0].orValue("")'
    return {
        "failurePolicy": "Fail",
        "matchConstraints": matched,
        "matchConditions": [{"name": "by-an-agent", "expression": f'request.userInfo.username == "{user}"'}],
        "variables": [
            {"name": "node", "expression": own},
            {"name": "slice", "expression": 'request.operation == "DELETE" ? oldObject : object'},
        ],
        "validations": [
            {
                "expression": 'variables.node != ""',
                "message": "the token names no node: an agent must run in a pod, with the token of that pod",
            },
            {
                "expression": 'variables.slice.spec.?nodeName.orValue("") == variables.node',
                "messageExpression": '"an agent on node " + variables.node + " may write ResourceSlices of no other"',
            },
            {
                "expression": f'variables.slice.spec.driver == "{devices.DRIVER}"',
                "message": f"an agent may write ResourceSlices of the driver {devices.DRIVER} alone",
            },
        ],
    }
