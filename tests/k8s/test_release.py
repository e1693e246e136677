# SPDX-License-Identifier: Apache-2.0
"""`helm install` on a live cluster: the agent becomes ready, holds the shares of pods, and nobody stays frozen.

One release for all of them, in the order of a release's life; each waits first until the agent is ready.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fairsched.cgroup.path import CgroupRef, find_mount
from fairsched.simgpu.daemon_process import is_running
from tests.k8s.cluster import PODS, Cluster
from tests.k8s.places import UNIFIED
from tests.k8s.pods import PATIENCE_S, container_cgroup_of, pod, run
from tests.k8s.release import NAMESPACE, Release, frozen_in, need_image, simulated
from tests.node.daemon.site import DECODE, STEADY, stand_still
from tests.node.gate.opener import DENIED, NO_DRIVER, Nodes, Opener, Trier
from tests.support import wait_until

NAMES = ("heavy", "light")
TOLERATED = 0.06
WATCHED_S = 8.0
AT_ONCE_S = 1.0
"""The promise: thawed after a kill. It takes milliseconds."""
INSTALL_S = 60.0
"""The bar from `helm install` to the first pod that runs with its share held, the images being there."""
HELD_S = 2.0
"""A share that was so for so long is held."""
KUBEPODS = UNIFIED / PODS


class Busy(Release):
    """A release on a node where two pods keep the GPU busy."""

    held_s = 0.0
    """From `helm install` until the pods ran and had their shares."""

    def weigh(self, more: Mapping[str, Any] | None = None, /, **weights: float) -> None:
        """Install it, or another configuration of it: the weights of the pods of these names; ``more``: of each."""
        self.install({"tenants": tenants(more, **weights)})

    def wait_accounted(self) -> None:
        """Both pods' work is seen, on probes."""
        wait_until(
            lambda: all((self.tenant(name)["used_ratio"] or 0) > 0 for name in NAMES),
            PATIENCE_S,
            "both pods are accounted",
        )

    def wait_held(self) -> None:
        wait_until(lambda: bool(frozen_in(KUBEPODS)), PATIENCE_S, "somebody is held")

    def wait_thawed(self) -> float:
        """Until nobody is frozen; seconds it took."""
        started = time.monotonic()
        wait_until(lambda: not frozen_in(KUBEPODS), AT_ONCE_S, "nobody is frozen")
        return time.monotonic() - started


def tenants(more: Mapping[str, Any] | None = None, /, **weights: float) -> dict[str, dict[str, Any]]:
    return {
        name: {"weight": weight, "match": {"pod": f"default/{name}"}, **(more or {})}
        for name, weight in weights.items()
    }


@pytest.fixture(scope="module")
def busy(cluster: Cluster) -> Iterator[Busy]:
    need_image(cluster)
    with simulated() as gpu:
        found = Busy(cluster, gpu)
        try:
            started = time.monotonic()
            found.weigh(heavy=3, light=1)
            found.ready_s = time.monotonic() - started
            places = {name: container_cgroup_of(run(cluster, pod(name))) for name in NAMES}
            # Of contexts that are older than the probes the GPU is a guess.
            first = gpu.spawn("first", DECODE, places["heavy"])
            wait_until(lambda: "probes=" in found.log(), PATIENCE_S, "libcuda has its probes")
            first.kill()
            for name in NAMES:
                gpu.spawn(name, STEADY, places[name])
            wait_until(
                lambda: found.shares(NAMES, HELD_S)["heavy"] == pytest.approx(0.75, abs=TOLERATED),
                PATIENCE_S,
                "the shares are held",
            )
            found.held_s = time.monotonic() - started
            found.wait_accounted()
            yield found
        finally:
            found.uninstall()
            for name in (*NAMES, "first"):
                gpu.kill_group(name)
            for name in NAMES:
                cluster.kubectl("delete", "pod", name, "--wait", "--ignore-not-found")


def test_two_pods_get_their_shares_from_an_agent_that_helm_has_installed(busy: Busy) -> None:
    got = busy.shares(NAMES, WATCHED_S)
    assert got["heavy"] == pytest.approx(0.75, abs=TOLERATED), got
    print(f"ready {busy.ready_s:.1f} s after helm install, a pod with its share held {busy.held_s:.1f} s")
    assert busy.held_s < INSTALL_S
    assert {name: busy.cluster.phase(name) for name in NAMES} == dict.fromkeys(NAMES, "Running")


def test_the_agent_says_that_it_is_well_and_who_the_pods_are(busy: Busy) -> None:
    assert busy.fairsched("health") == "well: mode enforce\n"
    assert "pod default/heavy" in busy.fairsched("status", "--full")
    assert "brake" in busy.fairsched("doctor")


def test_the_guardian_is_in_no_cgroup_of_the_agents(busy: Busy) -> None:
    """Whoever ends the container, by whatever hierarchy, leaves it."""
    (pid,) = [one["pid"] for one in busy.status()["own"]["processes"] if one["role"] == "guardian"]
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    assert {line.split(":", 2)[2] for line in lines} == {"/"}


def test_a_killed_daemon_leaves_nobody_frozen_and_is_started_again(busy: Busy) -> None:
    pid = busy.host_pid()
    busy.wait_held()
    os.kill(pid, signal.SIGKILL)
    busy.wait_thawed()
    wait_until(lambda: busy.restarts() == 1, PATIENCE_S, "the kubelet starts it again")
    busy.wait_ready()
    assert busy.host_pid() != pid


def test_a_pod_that_is_deleted_by_force_leaves_nobody_frozen(busy: Busy) -> None:
    """All of the container is killed at once."""
    busy.wait_ready()
    name, pid = busy.pod()["metadata"]["name"], busy.host_pid()
    busy.wait_held()
    busy.cluster.kubectl(
        "delete", "pod", name, "-n", NAMESPACE, "--force", "--grace-period=0", "--wait=false"
    )
    wait_until(lambda: not is_running(pid), PATIENCE_S, "the daemon has gone")
    busy.wait_thawed()
    busy.wait_replaced(name)


def test_an_upgrade_freezes_nobody_while_no_agent_is_there(busy: Busy) -> None:
    busy.wait_ready()
    pid, name = busy.host_pid(), busy.pod()["metadata"]["name"]
    busy.wait_held()
    busy.weigh(heavy=1, light=3)  # comes back when the new one is ready
    assert not is_running(pid)
    assert busy.pod()["metadata"]["name"] != name, "another configuration is another pod"
    busy.wait_accounted()
    got = busy.shares(NAMES, WATCHED_S)
    assert got["light"] == pytest.approx(0.75, abs=TOLERATED), got


def test_a_gpu_that_is_not_a_pods_stays_denied_while_an_upgrade_has_no_agent(
    busy: Busy, tmp_path: Path
) -> None:
    """By the device gate, which thaws nothing and is not taken away until the configuration says so."""
    other = Nodes(tmp_path).char(195, 1)
    place = container_cgroup_of(busy.cluster.get("pod", "light"))
    with CgroupRef.open(find_mount(), f"/{place.relative_to(UNIFIED)}") as ref:
        opener = Opener(ref)
        try:
            assert opener.open(other) == NO_DRIVER
            busy.weigh({"gpus": [0]}, heavy=1, light=3)
            wait_until(lambda: opener.open(other) == DENIED, PATIENCE_S, "it is denied")
            trier = Trier(ref, other)
            name = busy.pod()["metadata"]["name"]
            busy.weigh({"gpus": [0]}, heavy=1, light=2)
            tried, let_through = trier.end()
            assert busy.pod()["metadata"]["name"] != name and tried > 1000 and let_through == 0
            busy.weigh(heavy=1, light=3)
            wait_until(lambda: opener.open(other) == NO_DRIVER, PATIENCE_S, "it is not denied any more")
        finally:
            opener.end()


def test_an_agent_that_goes_thaws_before_it_has_gone(busy: Busy) -> None:
    busy.wait_ready()
    name, pid = busy.pod()["metadata"]["name"], busy.host_pid()
    busy.wait_held()
    busy.cluster.kubectl("delete", "pod", name, "-n", NAMESPACE, "--wait=false")
    wait_until(lambda: not is_running(pid), PATIENCE_S, "the daemon has gone")
    assert frozen_in(KUBEPODS) == []
    busy.wait_replaced(name)


def test_an_agent_that_cannot_do_as_it_should_is_not_ready_and_says_why(busy: Busy) -> None:
    """And is not started again for it: that would change nothing."""
    busy.install({"gpu": {"enforce_on": ["nvml"]}}, is_ready=False)

    def told() -> str:
        return busy.cluster.kubectl("get", "events", "-n", NAMESPACE, "-o", "jsonpath={.items[*].message}")

    said = "not well: mode is observe, not enforce: gpu.enforce_on does not name ebpf"
    wait_until(lambda: said in told(), PATIENCE_S, "the kubelet says why it is not ready")
    assert not busy.is_ready() and busy.restarts() == 0


def test_a_daemon_that_stands_still_holds_nobody_and_the_kubelet_starts_another(busy: Busy) -> None:
    """By the liveness probe, which asks more often here."""
    often = {"periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 2}
    busy.install({"tenants": tenants(heavy=3, light=1)}, probes={"liveness": often})
    busy.wait_accounted()
    pid = busy.host_pid()
    busy.wait_held()
    stand_still(pid)
    wait_until(lambda: not frozen_in(KUBEPODS), PATIENCE_S, "the guardian thaws")
    wait_until(lambda: not is_running(pid), PATIENCE_S, "the kubelet ends it")
    wait_until(lambda: busy.restarts() == 1, PATIENCE_S, "and starts another")
    busy.wait_ready()


def test_what_is_uninstalled_leaves_nothing_frozen_and_no_process(busy: Busy) -> None:
    busy.weigh(heavy=3, light=1)
    busy.wait_accounted()
    pids = [one["pid"] for one in busy.status()["own"]["processes"]]
    busy.wait_held()
    busy.uninstall()
    assert frozen_in(KUBEPODS) == []
    wait_until(lambda: not any(is_running(pid) for pid in pids), PATIENCE_S, "its helpers have gone")
    assert busy.on_node("ls", "/run/fairsched/holds") == ""
    kinds = "daemonset,configmap,service,serviceaccount"
    left = busy.cluster.kubectl("get", kinds, "-n", NAMESPACE, "-l", "app.kubernetes.io/name=fairsched")
    assert left == ""
