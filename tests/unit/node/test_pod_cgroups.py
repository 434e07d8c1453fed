"""Which pod a cgroup's path says, with both drivers, and what it does not say."""

from __future__ import annotations

import pytest

from gpuslice.system.pod_cgroups import KubeletRoot, PodPlace

UID = "0d3e6a52-7a1f-4f0e-9d5e-0c6f1b2a3c4d"
OTHER = "ffffffff-7a1f-4f0e-9d5e-0c6f1b2a3c4d"
SYSTEMD = UID.replace("-", "_")
OTHER_SYSTEMD = OTHER.replace("-", "_")
SCOPE = "cri-containerd-abc.scope"
HERE = PodPlace(UID, "abc")
IN_SCOPE = PodPlace(UID, SCOPE)


def place(path: str, root: KubeletRoot | None = None) -> PodPlace | None:
    return (root or KubeletRoot()).place(f"0::{path}\n")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"/kubepods/pod{UID}/abc", HERE),
        (f"/kubepods/burstable/pod{UID}/abc", HERE),
        (f"/kubepods/besteffort/pod{UID}/abc", HERE),
        (f"/kubepods/besteffort/pod{UID}/abc/made/inside", HERE),
        (f"/kubepods/besteffort/pod{UID}", PodPlace(UID, "")),
        (f"/kubepods.slice/kubepods-pod{SYSTEMD}.slice/{SCOPE}", IN_SCOPE),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice/{SCOPE}", IN_SCOPE),
        (f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SYSTEMD}.slice/{SCOPE}/init", IN_SCOPE),
        # As an agent with a cgroup namespace of its own sees others.
        (f"/../../pod{UID}/abc", HERE),
        (f"/../../../besteffort/pod{UID}/abc", HERE),
        (f"/../../../../kubepods/besteffort/pod{UID}/abc", HERE),
        (f"/../../kubepods-burstable-pod{SYSTEMD}.slice/{SCOPE}", IN_SCOPE),
        (f"/../../../kubepods-besteffort.slice/kubepods-besteffort-pod{SYSTEMD}.slice/{SCOPE}", IN_SCOPE),
        (f"/../../../kubepods-pod{SYSTEMD}.slice/{SCOPE}", IN_SCOPE),
    ],
)
def test_both_drivers_name_the_pod_and_the_container(path: str, expected: PodPlace) -> None:
    assert place(path) == expected


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        f"/pod{UID}/abc",
        f"/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/abc",
        f"/user.slice/user-1000.slice/user@1000.service/kubepods.slice/kubepods-pod{SYSTEMD}.slice/{SCOPE}",
        f"/system.slice/docker-abc.scope/kubepods/besteffort/pod{UID}/abc",
        f"/../../../../user.slice/user-1000.slice/kubepods/pod{UID}/abc",
        f"/../../../../system.slice/other.service/pod{UID}",
        f"/../../../../user.slice/../kubepods/pod{UID}/abc",
        f"/kubepods/guaranteed/pod{UID}/abc",
        f"/kubepods/besteffort/burstable/pod{UID}/abc",
        f"/kubepods/besteffort/x/pod{UID}/abc",
        f"/kubepods/podx{UID}/abc",
        f"/kubepods/pod{UID}x/abc",
        f"/kubepods.slice/pod{UID}/abc",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-besteffort-pod{SYSTEMD}.slice/{SCOPE}",
        f"/kubepods-pod{SYSTEMD}.slice/{SCOPE}",
        f"/mine.slice/mine-kubepods.slice/mine-kubepods-pod{SYSTEMD}.slice/{SCOPE}",
    ],
)
def test_what_the_kubelet_did_not_make_is_no_pod(path: str) -> None:
    assert place(path) is None


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/pod{UID}/abc/kubepods/pod{OTHER}/abc",
        f"/kubepods/pod{UID}/abc/pod{OTHER}",
        f"/kubepods/pod{UID}/abc/kubepods.slice/kubepods-pod{OTHER_SYSTEMD}.slice/{SCOPE}",
        f"/../../pod{UID}/abc/../pod{OTHER}/abc",
    ],
)
def test_a_container_that_makes_cgroups_stays_in_its_own_pod(path: str) -> None:
    assert place(path) == HERE


def test_the_hierarchies_of_version_1_must_agree() -> None:
    one, another = f"/kubepods/besteffort/pod{UID}/abc", f"/kubepods/besteffort/pod{OTHER}/abc"
    root = KubeletRoot()
    assert root.place(f"3:memory:{one}\n2:cpu,cpuacct:{one}\n1:name=systemd:{one}\n0::/\n") == HERE
    assert root.place(f"3:memory:{one}\n2:cpu,cpuacct:{another}\n") is None
    assert root.place("3:memory:/\nnonsense\n0::/\n") is None


@pytest.mark.parametrize(
    ("own", "tenant", "expected"),
    [
        # The kubelet has a root of its own (--cgroup-root).
        (f"/node-1/kubepods/besteffort/pod{OTHER}/agent", f"/node-1/kubepods/burstable/pod{UID}/abc", HERE),
        (f"/node-1/kubepods/besteffort/pod{OTHER}/agent", f"/node-2/kubepods/burstable/pod{UID}/abc", None),
        (f"/node-1/kubepods/besteffort/pod{OTHER}/agent", f"/kubepods/burstable/pod{UID}/abc", None),
        # The same with systemd: slices carry the name of the root.
        (
            f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{OTHER_SYSTEMD}.slice/agent.scope",
            (
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
                f"kubelet-kubepods-burstable-pod{SYSTEMD}.slice/{SCOPE}"
            ),
            IN_SCOPE,
        ),
        # A cluster inside a pod of another: the agent's own kubelet is the inner one.
        (
            f"/kubepods/pod{OTHER}/outer/kubelet/kubepods/pod{OTHER}/agent",
            f"/kubepods/pod{OTHER}/outer/kubelet/kubepods/pod{UID}/abc",
            HERE,
        ),
        (f"/kubepods/pod{OTHER}/outer/kubelet/kubepods/pod{OTHER}/agent", f"/kubepods/pod{UID}/abc", None),
        # An agent outside of pods, and one that sees nothing of its own place.
        ("/system.slice/gpusliced.service", f"/kubepods/burstable/pod{UID}/abc", HERE),
        ("/", f"/kubepods/burstable/pod{UID}/abc", HERE),
    ],
)
def test_the_agent_s_own_place_says_where_its_kubelet_begins(own: str, tenant: str, expected: PodPlace | None) -> None:
    assert place(tenant, KubeletRoot.seen_from(f"0::{own}\n")) == expected
