"""Which folders of the node give a container more than its slice: a path in its normal form, and where that is.

Sockets of container runtimes, plugins of the kubelet and files of drivers have other places on every distribution, so
no list of them is ever whole. What the system itself keeps is in few folders, which the Filesystem Hierarchy
Standard names: all of these are refused, but for what is known to be harmless in them. Where data and the system are
side by side (/opt, /var/lib), the system's part is named. Everything else is the site's own.
"""

from __future__ import annotations

import posixpath
from typing import Final

#: The system's own: what is in them steers the node, or is a device of it.
_SYSTEM: Final = (
    "/.bottlerocket",
    "/boot",
    "/dev",
    "/etc",
    "/ostree",
    "/proc",
    "/root",
    "/run",
    "/snap",
    "/sys",
    "/sysroot",
    "/system",
    "/usr",
    # Container runtimes, kubelets and drivers beside data.
    "/home/kubernetes",
    "/mnt/stateful_partition",
    "/opt/cni",
    "/opt/containerd",
    "/opt/nri",
    "/opt/nvidia",
    "/var/lib/cdi",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/crio",
    "/var/lib/docker",
    "/var/lib/etcd",
    "/var/lib/gpuslice",
    "/var/lib/isulad",
    "/var/lib/k0s",
    "/var/lib/kubelet",
    "/var/lib/minikube",
    "/var/lib/nvidia",
    "/var/lib/rancher",
    "/var/snap",
    "/var/spool/cron",
    "/var/vcap",
)
#: What honest pods mount of the system's folders. None of it has devices of a GPU, or a door to what gives them out.
_HARMLESS: Final = (
    *("/dev/fuse", "/dev/hugepages", "/dev/infiniband", "/dev/kvm", "/dev/log", "/dev/net", "/dev/null", "/dev/random"),
    *("/dev/shm", "/dev/snd", "/dev/urandom", "/dev/zero"),  # noqa: S108 - nothing is written
    *(
        "/etc/hostname",
        "/etc/hosts",
        "/etc/localtime",
        "/etc/machine-id",
        "/etc/os-release",
        "/etc/pki",
        "/etc/resolv.conf",
    ),
    *("/etc/ssl", "/etc/timezone", "/run/datadog", "/run/shm", "/run/spire", "/run/udev"),
    *("/usr/lib/locale", "/usr/lib/modules", "/usr/local/share", "/usr/share", "/usr/src"),
)
#: Links that most distributions have. The longest come first.
_LINKS: Final = {
    "/var/usrlocal": "/usr/local",
    "/var/roothome": "/root",
    "/var/lock": "/run/lock",
    "/var/home": "/home",
    "/var/mnt": "/mnt",
    "/var/opt": "/opt",
    "/var/run": "/run",
    "/lib64": "/usr/lib64",
    "/lib32": "/usr/lib32",
    "/sbin": "/usr/sbin",
    "/bin": "/usr/bin",
    "/lib": "/usr/lib",
}


def normal_form(path: str) -> str:
    """An absolute path without repeated slashes, dots and the usual links."""
    plain = posixpath.normpath(f"/{path}").replace("//", "/")
    for link, target in _LINKS.items():
        if is_in(plain, link):
            return target + plain.removeprefix(link)
    return plain


def is_in(path: str, folder: str) -> bool:
    """Whether one path in normal form is, or is inside of, another."""
    return folder in ("/", path) or path.startswith(f"{folder}/")


def reaches_node(path: str) -> bool:
    """Whether a folder or file is, has, or is part of what the system itself keeps."""
    plain = normal_form(path)
    if any(is_in(plain, harmless) for harmless in _HARMLESS):
        return False
    return any(is_in(folder, plain) or is_in(plain, folder) for folder in _SYSTEM)
