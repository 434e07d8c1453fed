"""Folders of the node that give more than a slice, in whatever way they are written, on whatever distribution."""

from __future__ import annotations

import pytest

from gpuslice.admission.restrictions.host_paths import reaches_node

NODE = """
/ // /. /../ . dev ./dev /dev /dev/ //dev /dev/. /dev/./nvidia0 /dev/nvidiactl /dev/nvidia-caps/nvidia-cap1
/dev/nvidia-uvm /dev/dri/renderD128 /dev/char /dev/char/195:0 /dev/block/8:0 /dev/fd/3 /dev/mem /dev/kmsg
/dev/sda /dev/vfio/vfio /dev/mapper /dev/pts /dev/../dev /mnt/../dev /mnt/./../dev/nvidia0 /dev/shm/../nvidia0
/dev/shm/../../dev /data/../../dev /proc /proc/1/root /proc/self/fd /sys/bus/pci /sys/fs/cgroup /sys/../sys /run
/run/ /var/run /var/run/ /var//run/cdi /var/run/../run/k3s /var/lock /run/lock/subsys /run/gpuslice/agent
/run/nvidia/driver /run/nvidia-persistenced/socket /var/run/nvidia-container-devices /run/nvidia-fabricmanager
/run/containerd/containerd.sock /run/containerd-shim /run/k3s /run/k3s/containerd/containerd.sock /run/k0s
/run/crio/crio.sock /run/docker.sock /run/docker /run/cri-dockerd.sock /run/dockershim.sock /run/podman
/run/user/1000/docker.sock /run/isulad.sock /run/frakti.sock /run/buildkit /run/nri /run/systemd/private
/run/dbus /run/host-containerd /run/runc /run/credentials /var /var/lib /var/lib/ /var/lib/kubelet
/var/lib/kubelet/device-plugins/kubelet.sock /var/lib/kubelet/pod-resources /var/lib/kubelet/plugins_registry
/var/lib/kubelet/pods /var/lib/../lib/kubelet /var/lib/containerd /var/lib/containers /var/lib/docker
/var/lib/rancher /var/lib/rancher/k3s/agent /var/lib/k0s/run /var/lib/minikube /var/lib/etcd /var/lib/cni
/var/lib/cdi /var/lib/gpuslice/sessions /var/lib/nvidia /var/snap/microk8s/common/run/containerd.sock /snap/bin
/var/vcap/data /var/spool /var/spool/cron /etc /etc/cdi /etc/kubernetes/manifests /etc/containerd
/etc/systemd/system /etc/cron.d /etc/rancher /etc/ld.so.preload /etc/nri /etc/nvidia-container-runtime
/etc/ssl/../kubernetes /etc/shadow /etc/cni/net.d /usr /usr/bin /bin /bin/sh /sbin /lib /lib/systemd/system
/lib64 /usr/lib/x86_64-linux-gnu /usr/local /usr/local/bin /usr/libexec /opt /opt/cni/bin /opt/nri/plugins
/opt/containerd /opt/nvidia /var/opt/cni /boot /root /root/.kube /var/roothome /home/kubernetes/bin /home /mnt
/var/home /var/usrlocal/bin /sysroot/ostree /ostree/deploy /system/run/containerd /.bottlerocket/rootfs
/mnt/stateful_partition/var/lib/kubelet
"""

DATA = """
/data /data/ /data/dev /mnt/data /mnt/dev/nvidia0 /home/alice /var/home/alice /srv /media/disk /tmp /tmp/x
/scratch /raid /local/models /devices /development /process /system-data /runs /runner /usr2 /etcetera /rooted
/libs /binaries /optional /opt/models /var/opt/models /var/log /var/log/pods /var/tmp /var/data /var/lib/models
/var/lib/kubelets /var/lib/dockers /var/runner /var/spool/mail /dev/infiniband /dev/infiniband/uverbs0 /dev/shm
/dev/shm/ /dev/shm/x /dev/hugepages /dev/fuse /dev/net/tun /dev/null /etc/localtime /etc/ssl/certs /etc/pki/tls
/usr/share/zoneinfo /lib/modules /lib/modules/6.1.0 /usr/src /var/run/datadog /run/spire/sockets /run/udev
"""


@pytest.mark.parametrize("path", NODE.split())
def test_folders_of_the_system(path: str) -> None:
    assert reaches_node(path)


@pytest.mark.parametrize("path", DATA.split())
def test_folders_of_the_site_and_what_is_harmless(path: str) -> None:
    assert not reaches_node(path)
