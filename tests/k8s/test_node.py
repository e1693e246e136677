# SPDX-License-Identifier: Apache-2.0
"""Pods as tenants in the cgroups that this node's kubelet and runtime make, whichever driver they have.

Two pods of one namespace, of another QoS class each, one with an init container; one release for all of them, in the
order of a pod's life. `make test-k8s` plays it in the cgroups of this machine, and where it is named
`make test-k8s-guest ARGS=tests/k8s/test_node.py` in a guest with cgroup v2 alone and a systemd that makes the cgroups.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.cgroup.identity import Kind, layers_of
from fairsched.simgpu.daemon_process import COMMAND
from tests.k8s.cluster import PODS, Cluster
from tests.k8s.places import IS_SYSTEMD, UNIFIED
from tests.k8s.pods import PATIENCE_S, cgroup_of, container_cgroup_of, pod, run
from tests.k8s.release import Release, frozen_in, is_asked, need_image, simulated
from tests.k8s.test_tenants import TOLERATED, WATCHED_S, said
from tests.node.daemon.site import DECODE, STEADY
from tests.support import wait_until

SPACE = "team"
WEIGHTS = {"heavy": 3, "light": 1}
KUBEPODS = UNIFIED / PODS
AT_ONCE_S = 1.0
MAIN, INIT = "containerStatuses", "initContainerStatuses"
SOCKET = "/run/fairsched/fairsched.sock"


class Team(Release):
    """A release that is told by the pods of one namespace."""

    def pod(self, name: str = "") -> dict[str, Any]:
        return self.cluster.get("pod", name, "-n", SPACE) if name else super().pod()

    def place(self, name: str) -> Path:
        return container_cgroup_of(self.pod(name))

    def work(self, name: str, place: Path) -> None:
        """A process in that cgroup that keeps the GPU busy."""
        self.gpu.spawn(name, STEADY, place)

    def gpu_time_s(self, name: str) -> float:
        return float(self.tenant(f"{SPACE}/{name}")["gpu_time_s"] or 0)

    def wait_accounted(self, *names: str) -> None:
        """More GPU time than now is booked for each of them."""
        before = {name: self.gpu_time_s(name) for name in names}
        wait_until(
            lambda: all(self.gpu_time_s(name) > before[name] for name in names), PATIENCE_S, "it is accounted"
        )

    def wait_frozen(self, top: Path) -> None:
        """Somebody below it is held. It may be over when this returns."""
        wait_until(lambda: bool(frozen_in(top)), PATIENCE_S, f"somebody is held in {top}")

    def named(self) -> set[str]:
        """The namespace's tenants."""
        return {one["name"] for one in self.status()["tenants"] if one["name"].startswith(f"{SPACE}/")}

    def wait_runs(self, name: str, kind: str = MAIN, *, other_than: Path | None = None) -> Path:
        """Until a container of this kind runs in another cgroup than that; which one."""
        found: list[Path] = []

        def runs() -> bool:
            document = self.pod(name)
            statuses = document["status"].get(kind, [])
            if any("running" in one["state"] for one in statuses):
                found[:] = [container_cgroup_of(document, kind)]
            return bool(found) and found[0] != other_than

        wait_until(runs, PATIENCE_S, f"a container of {name} runs")
        return found[0]

    def check_shares(self) -> None:
        got = self.shares(WEIGHTS, WATCHED_S)
        assert got["heavy"] == pytest.approx(0.75, abs=TOLERATED), got


def light() -> dict[str, Any]:
    """With an init container that waits to be ended, as its main one does."""
    document = pod("light", namespace=SPACE, annotations=said(weight="1"))
    (main,) = document["spec"]["containers"]
    document["spec"]["initContainers"] = [{**main, "name": "init"}]
    return document


def heavy() -> dict[str, Any]:
    """Guaranteed, where the other is best effort: its cgroup lies elsewhere."""
    document = pod("heavy", namespace=SPACE, annotations=said(weight="3"))
    (main,) = document["spec"]["containers"]
    main["resources"] = {"limits": {"cpu": "1500m", "memory": "256Mi"}}
    return document


@pytest.fixture(scope="module")
def team(cluster: Cluster) -> Iterator[Team]:
    need_image(cluster)
    with simulated() as gpu:
        found = Team(cluster, gpu)
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        try:
            place = container_cgroup_of(run(cluster, heavy()))
            found.install({"kubernetes": {"watch_pods": True}})
            first = gpu.spawn("first", DECODE, place)
            wait_until(lambda: "probes=" in found.log(), PATIENCE_S, "libcuda has its probes")
            first.kill()
            found.work("heavy", place)
            yield found
        finally:
            found.uninstall()
            for name in (*WEIGHTS, "first"):
                gpu.kill_group(name)
            cluster.kubectl("delete", "namespace", SPACE, "--ignore-not-found", timeout_s=120)


def test_a_pod_is_one_tenant_in_its_init_container_and_after_it(team: Team) -> None:
    team.cluster.apply(light())

    init = team.wait_runs("light", INIT)
    team.work("light", init)
    wait_until(lambda: f"{SPACE}/light" in team.named(), PATIENCE_S, "it is a tenant")
    team.wait_accounted("heavy", "light")
    assert team.tenant(f"{SPACE}/light")["cgroups"] == [path_of(init.parent)]
    booked_s = team.gpu_time_s("light")

    team.gpu.kill_group("light")
    end(init, signal.SIGTERM)
    place = team.wait_runs("light")
    assert place != init and place.parent == init.parent == cgroup_of(team.pod("light"))
    team.work("light", place)
    team.wait_accounted("light")
    assert team.gpu_time_s("light") > booked_s, "what the init container had is not forgotten"
    assert team.named() == {f"{SPACE}/{name}" for name in WEIGHTS}


def test_a_path_of_this_node_says_which_container_and_pod_it_is(team: Team) -> None:
    for name in WEIGHTS:
        document = team.pod(name)
        (status,) = document["status"]["containerStatuses"]
        (*_, layer) = layers_of(path_of(container_cgroup_of(document)))
        assert layer.container_id == status["containerID"].partition("://")[2]
        assert (layer.pod_uid, layer.qos) == (
            document["metadata"]["uid"],
            document["status"]["qosClass"].lower(),
        )
        assert layer.is_outer and layer.kind is (Kind.CONTAINERD if IS_SYSTEMD else Kind.CONTAINER)


def test_two_pods_of_the_node_get_what_they_weigh(team: Team) -> None:
    team.check_shares()


def test_a_hold_freezes_the_pods_own_cgroup_and_none_above_it(team: Team) -> None:
    """Neither a slice that others live in, nor the agent's."""
    allowed, seen = {cgroup_of(team.pod(name)) for name in WEIGHTS}, set[Path]()

    def has_looked() -> bool:
        seen.update(frozen_in(KUBEPODS))
        return time.monotonic() > end_s

    end_s = time.monotonic() + WATCHED_S
    wait_until(has_looked, 2 * WATCHED_S, "it was looked at")
    assert cgroup_of(team.pod("light")) in seen
    assert seen <= allowed
    told = team.on_node(*COMMAND, "explain", f"{SPACE}/light", "--socket", SOCKET)
    assert "ahead of its share" in told, told


def test_a_container_that_is_started_again_stays_its_pods_tenant(team: Team) -> None:
    """In a cgroup of its own, of which nobody has told."""
    old, booked_s = team.place("light"), team.gpu_time_s("light")
    team.gpu.kill_group("light")
    end(old, signal.SIGKILL)
    new = team.wait_runs("light", other_than=old)
    assert new.parent == old.parent and not old.exists()
    team.work("light", new)
    team.wait_accounted("light")
    assert team.gpu_time_s("light") > booked_s
    assert team.named() == {f"{SPACE}/{name}" for name in WEIGHTS}
    team.check_shares()


def test_a_pod_that_dies_while_it_is_held_leaves_nothing_frozen_and_comes_back(team: Team) -> None:
    """All of it at once, its sandbox as well; the kubelet makes it anew in the same cgroup of the pod."""
    document = team.pod("light")
    where, main = cgroup_of(document), container_cgroup_of(document)
    init = container_cgroup_of(document, INIT)

    wait_until(lambda: is_asked(where / "cgroup.freeze"), PATIENCE_S, "it is held")
    (where / "cgroup.kill").write_text("1")
    wait_until(lambda: not is_asked(where / "cgroup.freeze"), AT_ONCE_S, "the hold is over")
    team.gpu.kill_group("light")
    end(team.wait_runs("light", INIT, other_than=init), signal.SIGTERM)
    again = team.wait_runs("light", other_than=main)
    assert again.parent == where
    team.work("light", again)
    team.wait_accounted("heavy", "light")
    team.check_shares()


def test_a_pod_that_is_deleted_while_it_is_held_goes_with_its_cgroup(team: Team) -> None:
    where = cgroup_of(team.pod("light"))
    team.wait_frozen(where)
    team.cluster.kubectl("delete", "pod", "light", "-n", SPACE, "--force", "--grace-period=0", "--wait=false")
    team.gpu.kill_group("light")  # a container ends its own processes; this one is none of them
    wait_until(lambda: not where.exists(), PATIENCE_S, "its cgroup has gone")
    wait_until(lambda: not frozen_in(KUBEPODS), AT_ONCE_S, "nobody is frozen")
    wait_until(lambda: team.named() == {f"{SPACE}/heavy"}, PATIENCE_S, "it is no tenant any more")


def path_of(cgroup: Path) -> str:
    """As in /proc/PID/cgroup."""
    return f"/{cgroup.relative_to(UNIFIED)}"


def end(cgroup: Path, number: int) -> None:
    """Signals what the runtime has started there; the kubelet sees a container that ends."""
    for line in (cgroup / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line), number)
