"""Pods that ask as CastSlice's users do, well and badly: made at random, the same ones each time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

Object = dict[str, Any]

_OPTIMIZE = ["true"] * 6 + ["false", "True", "", None]
_RATIOS = [None] * 6 + ["1", "2", "007", "123456789", "0", "000", "-1", "x", "", "1.5", " 2", "1000000000"]
_WORKLOADS = [None] * 4 + ["training", "inference", "batch", "dev", "gaming", "", "Training"]
_COUNTS: list[str | int] = [*["1"] * 24, 1, 2, "3", "1k", "2e3", "0", 0, "500m", "-1"]
_SLICES = [None] * 3 + ["", "main: 1 slot", "c0: 4Gi memory; c1: 2 slots; gone: 1 slot", "c0: a; c0: b; c: d", "; "]
_DIALECTS = [None] * 4 + ["castslice", "hami, vcuda", "native", "nonsense", ""]
_BACKENDS = [None] * 4 + ["dra", "extended", "dra, nonsense"]
_MODELS = [None] * 16 + ["T4", "?"]
_SHARING = [None] * 12 + ["container", "container", "pod", "everybody"]
_OTHER_RESOURCES = ["nvidia.com/gpumem", "gpuslice.io/memory", "tencent.com/vcuda-core", "nvidia.com/mig-1g.5gb"]


def pods(source: random.Random, count: int) -> Iterator[Object]:
    for number in range(count):
        yield _pod(source, f"pod-{number}")


def _pod(source: random.Random, name: str) -> Object:
    annotations = {
        key: text
        for key, text in {
            "castops.io/optimize": source.choice(_OPTIMIZE),
            "castops.io/slice-ratio": source.choice(_RATIOS),
            "castops.io/workload-type": source.choice(_WORKLOADS),
            "gpuslice.io/slice": source.choice(_SLICES),
            "gpuslice.io/dialect": source.choice(_DIALECTS),
            "gpuslice.io/backend": source.choice(_BACKENDS),
            "gpuslice.io/gpu-model": source.choice(_MODELS),
            "gpuslice.io/sharing": source.choice(_SHARING),
            "example.com/else": source.choice([None, "something"]),
        }.items()
        if text is not None
    }
    optimized = annotations.get("castops.io/optimize") == "true"
    names = iter([f"c{number}" for number in range(8)])
    init = [_container(source, next(names), optimized=optimized) for _ in range(source.choice([0, 0, 1, 2]))]
    for container in init:
        if source.random() < 0.3:
            container["restartPolicy"] = "Always"
    spec: Object = {
        "automountServiceAccountToken": False,  # its volume has a name of chance
        "containers": [
            _container(source, next(names), optimized=optimized) for _ in range(source.choice([1, 1, 2, 3]))
        ],
    }
    if init or source.random() < 0.1:
        spec["initContainers"] = init
    claimed = [container for container in (*init, *spec["containers"]) if "claims" in container.get("resources", {})]
    if claimed:
        # What another claim is for, the policy cannot find out: it refuses those that the webhook may let pass.
        spec["resourceClaims"] = [{"name": "claim", "resourceClaimTemplateName": "gpuslice-0123456789abcdef"}]
    metadata: Object = {"name": name}
    if annotations or source.random() < 0.5:
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(source: random.Random, name: str, *, optimized: bool) -> Object:
    container: Object = {"name": name, "image": "registry.example/image"}
    kind = source.random()
    if kind < 0.15:
        return container
    resources: Object = {}
    if kind < 0.25:
        resources = source.choice([{}, {"limits": {"cpu": "1"}}, {"requests": {"memory": "1Gi"}}])
    elif kind < 0.85:
        resources = _asking(source, optimized=optimized)
    else:
        resources["limits"] = {"nvidia.com/gpu-shared": "3"}
    if source.random() < 0.1:
        resources["claims"] = [{"name": "claim"}]
    return container | {"resources": resources}


def _asking(source: random.Random, *, optimized: bool) -> Object:
    count = source.choice(_COUNTS)
    asked: Object = {"nvidia.com/gpu": count}
    if source.random() < 0.2:
        asked["nvidia.com/gpu-shared"] = source.choice(["1", "7"])
    if source.random() < 0.3:
        asked["cpu"] = "2"
    # Another dialect alone is nothing that the policy knows, so it is only put beside CastSlice's.
    if optimized and count in ("1", 1) and source.random() < 0.05:
        asked[source.choice(_OTHER_RESOURCES)] = "10"
    where = source.random()
    if where < 0.6:
        return {"limits": asked}
    if where < 0.7:
        return {"requests": asked}
    if where < 0.95:
        return {"limits": asked, "requests": dict(asked)}
    return {"limits": asked, "requests": asked | {"nvidia.com/gpu": source.choice(_COUNTS)}}
