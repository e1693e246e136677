# SPDX-License-Identifier: Apache-2.0
"""Paths as the runtimes make them."""

from __future__ import annotations

import pytest

from fairsched.cgroup.containers import Container, container_of
from fairsched.cgroup.identity import layers_of

ID = "3f" * 32
INIT = "ab" * 32
UID = "0a1b2c3d-1111-2222-3333-444455556666"
OTHER = "ffffffff-1111-2222-3333-444455556666"
LOW = UID.replace("-", "_")


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        (f"/system.slice/docker-{ID}.scope", Container("docker", ID)),
        (f"/docker/{ID}", Container("docker", ID)),
        (f"/docker/{ID}/init", Container("docker", ID)),
        (f"/machine.slice/libpod-{ID}.scope/container", Container("podman", ID)),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{LOW}.slice/cri-containerd-{ID}.scope",
            Container("containerd", ID, UID),
        ),
        (f"/kubepods.slice/kubepods-pod{LOW}.slice/crio-{ID}.scope", Container("cri-o", ID, UID)),
        (f"/kubepods/besteffort/pod{UID}/{ID}", Container(None, ID, UID)),
        (f"/kubepods/pod{UID}", Container(None, None, UID)),
        # a kubelet with a cgroupRoot: kind's, and one of two components with a dash in it, which systemd's names lose
        (
            f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{LOW}.slice/cri-containerd-{ID}.scope",
            Container("containerd", ID, UID),
        ),
        (f"/kubelet/kubepods/burstable/pod{UID}/{ID}", Container(None, ID, UID)),
        (
            f"/a.slice/a-b_c.slice/a-b_c-kubepods.slice/a-b_c-kubepods-pod{LOW}.slice/crio-{ID}.scope",
            Container("cri-o", ID, UID),
        ),
        (
            f"/system.slice/containerd.service/kubelet-kubepods-besteffort-pod{LOW}.slice:cri-containerd:{ID}",
            Container("containerd", ID, UID),
        ),
        # a static pod: its uid is a hash
        (f"/kubepods.slice/kubepods-pod{'9c' * 16}.slice/crio-{ID}.scope", Container("cri-o", ID, "9c" * 16)),
        # a node in a container: the pod is meant; the path does not say which runtime made its container
        (f"/docker/{INIT}/kubepods/burstable/pod{UID}/{ID}", Container(None, ID, UID)),
        (f"/docker/{INIT}/kubepods/burstable/pod{UID}", Container(None, None, UID)),
        ("/lxc.payload.web", Container("lxc", "web")),
    ],
)
def test_a_container_is_known_by_its_path(cgroup: str, expected: Container) -> None:
    assert container_of(cgroup) == expected


@pytest.mark.parametrize("root", ["", "kubelet", "a/b_c"])
@pytest.mark.parametrize("runtime", ["cri-containerd", "crio", "docker"])
@pytest.mark.parametrize("qos", ["guaranteed", "burstable", "besteffort"])
def test_both_drivers_of_the_kubelet_are_read(root: str, runtime: str, qos: str) -> None:
    """As pkg/kubelet/cm names them: systemd's slices have all names above them in their own, cgroupfs' are plain."""
    names = [*filter(None, root.split("/")), "kubepods", *([] if qos == "guaranteed" else [qos])]
    joined = ["-".join(names[: end + 1]) for end in range(len(names))]
    slices = [f"{name}.slice" for name in [*joined, f"{joined[-1]}-pod{LOW}"]]
    for path in (
        "/".join(["", *slices, f"{runtime}-{ID}.scope"]),
        "/".join(["", *names, f"pod{UID}", ID]),
        f"/system.slice/containerd.service/{slices[-1]}:cri-containerd:{ID}",
    ):
        found = layers_of(path)[-1]
        assert (found.pod_uid, found.qos, found.container_id, found.is_outer) == (UID, qos, ID, True)
        assert str(container_of(path)).startswith(f"pod {UID[:8]}/")


@pytest.mark.parametrize(
    "cgroup",
    [
        "/",
        f"/kubelet.slice/kubelet-pod{LOW}.slice",
        f"/kubelet.slice/kubelet-kubepods-often-pod{LOW}.slice",
        f"/mykubepods-pod{LOW}.slice",
        "/gpu.slice/chat",
        "/user.slice/user-0.slice/session-1.scope",
        f"/docker-{ID[:12]}.scope",
        "/podman",
    ],
)
def test_a_process_of_the_host_is_in_none(cgroup: str) -> None:
    assert container_of(cgroup) is None


@pytest.mark.parametrize("below", [f"/pod{OTHER}", f"/kubepods/pod{OTHER}/{INIT}", f"/crio-{INIT}.scope"])
def test_what_lives_in_a_pod_cannot_pass_for_another(below: str) -> None:
    """Its uid is what escalation evicts."""
    assert container_of(f"/kubepods/pod{UID}/{ID}{below}") == Container(None, ID, UID)
    assert container_of(f"/kubepods/pod{UID}/x{below}") == Container(None, None, UID)


def test_a_pod_of_podman_is_none_of_kubernetes() -> None:
    path = f"/machine.slice/machine-libpod_pod_{INIT}.slice/libpod-{ID}.scope"
    assert container_of(path) == Container("podman", ID)


def test_the_short_form_fits_a_table() -> None:
    assert str(Container("containerd", ID, UID)) == "pod 0a1b2c3d/containerd 3f3f3f3f3f3f"
    assert str(Container(None, ID)) == "container 3f3f3f3f3f3f"
    assert str(Container(None, None, UID)) == "pod 0a1b2c3d"
