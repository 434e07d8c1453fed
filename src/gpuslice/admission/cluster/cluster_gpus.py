"""What the GPUs of a cluster mean for admission, by what its API server tells of nodes and ResourceSlices."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpuslice.admission.cluster import gpu_sizes, offers
from gpuslice.admission.context import KNOWN_GPU_SIZES
from gpuslice.kube import server_version
from gpuslice.model.policies import Backend

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gpuslice.admission.cluster.gpu_sizes import Gpus
    from gpuslice.admission.cluster.offers import NodeOffer
    from gpuslice.kube.server_version import ServerVersion
    from gpuslice.model.settings import Settings


class ClusterGpus(NamedTuple):
    """The fields of a Context that depend on them, by the same names."""

    serves_dra: bool
    gpu_sizes: tuple[int, ...]
    offered: frozenset[str] | None
    node_backends: frozenset[Backend]


def find(
    settings: Settings,
    published: Collection[Gpus],
    labelled: Iterable[Gpus],
    nodes: Collection[NodeOffer],
    version: ServerVersion | None,
    *,
    slices_served: bool,
) -> ClusterGpus:
    """`published` is what our agents publish in ResourceSlices, `labelled` what nodes' labels say."""
    served = slices_served and (bool(published) or server_version.has_claims(version))
    backends = offers.backends(nodes, settings.shared_resource, published=bool(published))
    return ClusterGpus(
        serves_dra=served,
        gpu_sizes=gpu_sizes.sizes(published, labelled) or KNOWN_GPU_SIZES,
        offered=offers.together(list(nodes)),
        node_backends=backends or frozenset((settings.node_backend or _usual_backend(served=served),)),
    )


def _usual_backend(*, served: bool) -> Backend:
    """What agents will offer that are told nothing."""
    return Backend.DRA if served else Backend.EXTENDED
