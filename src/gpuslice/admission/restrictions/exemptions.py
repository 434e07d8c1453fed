"""What gives a pod with a slice more of a GPU than that, or keeps it from starting: refused, unless its rule allows it.

A pod is one tenant, so it does not matter which of its containers has the slice. Nothing here makes a boundary of the
interposer; it keeps what is outside of the container's own processes (device files, the node's sockets, NVIDIA's
runtime) from undoing it. What a program does in its own process, LD_PRELOAD and LD_LIBRARY_PATH included, is the
agent's to see: /etc/ld.so.preload does not depend on the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.admission.granting import not_allowed
from gpuslice.admission.restrictions import device_annotations, held_claims, host_paths
from gpuslice.model.policies import Exemption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.admission.patching import PodEdit
    from gpuslice.dialects.pod_values import Reader
    from gpuslice.model.pods import Container, PodSpec
    from gpuslice.model.policies import Rule

#: With these a container mounts, maps or opens what is the node's, or runs code in its kernel.
_CAPABILITIES: Final = frozenset(("ALL", "BPF", "DAC_READ_SEARCH", "SYS_ADMIN", "SYS_BOOT", "SYS_MODULE", "SYS_RAWIO"))
#: NVIDIA's runtime adds GPUs by volumes that are mounted there.
_DEVICES_AS_MOUNTS: Final = host_paths.normal_form("/var/run/nvidia-container-devices")


def check(reader: Reader, edit: PodEdit, rule: Rule) -> None:
    """Raises NotAllowedError if the pod has something beside its slice that is not allowed."""
    spec = reader.pod.spec
    if spec is None:
        return
    for place in reader.places:
        check_container(place.field, place.container, rule)
    for name in device_annotations.names(reader.pod):
        field = f"metadata.annotations[{name[:64]}]"
        _refuse(rule, Exemption.VISIBLE_DEVICES, field, "makes container runtimes add devices; the slice needs none")
    if spec.volumes or spec.host_pid or spec.node_name:
        _check_pod(spec, edit, rule)


def check_container(where: str, container: Container, rule: Rule) -> None:
    """Raises NotAllowedError if the container, which stands at the field `where`, has what the rule does not allow."""
    if (context := container.security_context) is not None:
        if context.privileged:
            _refuse(rule, Exemption.PRIVILEGED, f"{where}.securityContext.privileged", "has all GPUs of its node")
        added = (context.capabilities.add if context.capabilities else None) or ()
        for name in added:
            if name.upper().removeprefix("CAP_") in _CAPABILITIES:
                field = f"{where}.securityContext.capabilities.add"
                _refuse(rule, Exemption.CAPABILITIES, field, f"{name[:64]!r} opens the node's devices and files")
    for variable in container.visible_devices:
        field = f"{where}.env[{variable}]"
        _refuse(rule, Exemption.VISIBLE_DEVICES, field, "makes NVIDIA's runtime add GPUs; the slice needs none")
    for mount in container.volume_mounts or ():
        if host_paths.is_in(host_paths.normal_form(mount.mount_path), _DEVICES_AS_MOUNTS):
            field = f"{where}.volumeMounts[{mount.mount_path[:64]}]"
            _refuse(rule, Exemption.VISIBLE_DEVICES, field, "makes NVIDIA's runtime add GPUs; the slice needs none")


def _check_pod(spec: PodSpec, edit: PodEdit, rule: Rule) -> None:
    if spec.host_pid:
        _refuse(rule, Exemption.HOST_PID, "spec.hostPID", "shows the processes of other pods, and their files")
    for field, path in _host_paths(spec):
        if host_paths.reaches_node(path):
            reason = f"{path[:64]!r} has devices of the node, or what gives them out"
            _refuse(rule, Exemption.HOST_PATH, field, reason)
    if spec.node_name and held_claims.claims_of_pod(edit):
        _refuse(
            rule,
            Exemption.NODE_NAME,
            "spec.nodeName",
            "passes the scheduler by, which allocates the pod's claim, so that it would never start; write a "
            "nodeSelector of kubernetes.io/hostname",
        )


def _host_paths(spec: PodSpec) -> Iterator[tuple[str, str]]:
    for index, volume in enumerate(spec.volumes or ()):
        if volume.host_path is not None:
            yield f"spec.volumes[{index}].hostPath.path", volume.host_path.path


def _refuse(rule: Rule, what: Exemption, field: str, reason: str) -> None:
    if what not in rule.allow:
        raise not_allowed(
            field, rule, f"{reason}; leave it out of a pod with a slice, or have a policy allow it (allow: [{what}])"
        )
