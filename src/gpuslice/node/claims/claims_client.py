"""Claims from the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuslice.kube.errors import ApiError, CredentialsError, UnreachableError
from gpuslice.kube.resources import Resource
from gpuslice.node.claims import resource_claims
from gpuslice.node.claims.resource_claims import Claim, ClaimGoneError, ClaimReference, ClaimUnreadableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.kube.client.api import Api

RESOURCE_CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims")
_APPLY: Final = "application/apply-patch+yaml"
_MANAGER: Final = "gpuslice-agent"


class ApiClaims:
    """Reads claims, and writes what became of their devices."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def claim(self, reference: ClaimReference) -> Claim:
        """The claim as it is now."""
        try:
            document = await self._api.get(
                RESOURCE_CLAIMS, reference.name, dict[str, Any], namespace=reference.namespace
            )
        except ApiError as error:
            if error.not_found:
                raise ClaimGoneError("claim_gone", f"there is no claim {reference}") from None
            raise ClaimUnreadableError("claim_unreadable", f"claim {reference} cannot be read: {error}") from None
        except (UnreachableError, CredentialsError) as error:
            raise ClaimUnreadableError("claim_unreadable", f"claim {reference} cannot be read: {error}") from None
        return resource_claims.read(document, reference)

    async def report(self, reference: ClaimReference, status: Sequence[dict[str, Any]]) -> None:
        """Applies only our own devices: other drivers write theirs."""
        document = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": reference.name, "uid": reference.uid},
            "status": {"devices": list(status)},
        }
        await self._api.call(
            "PATCH",
            RESOURCE_CLAIMS.path(reference.namespace, reference.name, "status"),
            parameters={"fieldManager": _MANAGER, "force": "true"},
            body=document,
            content=_APPLY,
        )
