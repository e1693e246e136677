# SPDX-License-Identifier: Apache-2.0
"""Beside NVIDIA's device plugin with time-slicing replicas: it says who gets a replica, fairsched what a pod weighs.

    FAIRSCHED_NVIDIA_DEVICE_PLUGIN=FILE sudo -E make test-k8s ARGS=tests/k8s/test_time_slices.py

One simulated GPU with four replicas, of which each pod has one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from fairsched.simgpu.node import SimNode
from tests.k8s.cluster import NODE, Cluster
from tests.k8s.pods import (
    PATIENCE_S,
    container_cgroup_of,
    drop_spaces,
    gpus_on_the_node,
    make_spaces,
    pod,
    run,
)
from tests.k8s.release import need_image, simulated
from tests.k8s.test_tenants import TOLERATED, WATCHED_S, Told, said
from tests.k8s.time_slices import REAL, RESOURCE, real, stand_in
from tests.node.daemon.site import DECODE, STEADY
from tests.support import wait_until

SPACE = "slices"
REPLICAS = 4
WEIGHTS = {"a": 4, "b": 2, "c": 1, "d": 1}
SILENT = ("e", "f")
"""Who says nothing."""
Plugin = Callable[[Cluster, SimNode, int], contextlib.AbstractContextManager[None]]


def replica(name: str, **metadata: Any) -> dict[str, Any]:
    document = pod(name, namespace=SPACE, **metadata)
    document["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: "1"}}
    return document


class Sliced(Told):
    """A release on a node where somebody else gives out the GPU."""

    def start(self, name: str, **metadata: Any) -> None:
        """A pod with a replica that keeps the GPU busy."""
        place = container_cgroup_of(run(self.cluster, replica(name, **metadata)))
        self.gpu.spawn(name, STEADY, place)

    def drop(self, names: Sequence[str]) -> None:
        for name in names:
            self.gpu.kill_group(name)
        self.cluster.kubectl("delete", "pod", *names, "-n", SPACE, "--wait")

    def wait_accounted(self, names: Sequence[str]) -> None:
        full = {f"{SPACE}/{name}" for name in names}
        wait_until(
            lambda: {one["name"] for one in self.status()["tenants"] if one["used_ratio"]} >= full,
            PATIENCE_S,
            "all of them are accounted",
        )

    def check_shares(self, wanted: Mapping[str, float]) -> None:
        got = self.shares(wanted, WATCHED_S)
        status = self.status()
        told = (status["tenants"], status["gpus"], status["warnings"], self.log()[-3000:])
        assert got == pytest.approx(dict(wanted), abs=TOLERATED), told

    def why_pending(self, name: str) -> str:
        conditions = self.cluster.get("pod", name, "-n", SPACE)["status"].get("conditions", [])
        return " ".join(str(one.get("message")) for one in conditions if one["type"] == "PodScheduled")


@contextlib.contextmanager
def no_devices_left(cluster: Cluster) -> Iterator[None]:
    """A kubelet says for minutes that it has none of those that were given out."""
    try:
        yield
    finally:
        cluster.forget_devices()
        with gpus_on_the_node(cluster, 0):
            pass


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(stand_in, id="stand-in"),
        pytest.param(
            real,
            id="nvidias",
            marks=pytest.mark.skipif(
                not REAL,
                reason="extra: NVIDIA's device plugin (FAIRSCHED_NVIDIA_DEVICE_PLUGIN=FILE names it)",
            ),
        ),
    ],
)
def sliced(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Sliced]:
    plugin: Plugin = request.param
    need_image(cluster)
    with simulated() as gpu, no_devices_left(cluster), plugin(cluster, gpu, REPLICAS):
        found = Sliced(cluster, gpu)
        make_spaces(cluster, SPACE)

        def given_out() -> int:
            return int(cluster.get("node", NODE)["status"]["allocatable"].get(RESOURCE, 0))

        wait_until(lambda: given_out() == REPLICAS, PATIENCE_S, "the node has the replicas")
        try:
            found.install({"kubernetes": {"watch_pods": True}})
            place = container_cgroup_of(run(cluster, replica("first")))
            first = gpu.spawn("first", DECODE, place)
            wait_until(lambda: "probes=" in found.log(), PATIENCE_S, "libcuda has its probes")
            first.kill()
            found.drop(["first"])
            yield found
        finally:
            found.uninstall()
            for name in ("first", *WEIGHTS, *SILENT):
                gpu.kill_group(name)
            drop_spaces(cluster, SPACE)


def test_four_replicas_of_a_gpu_are_shared_by_what_their_pods_say(sliced: Sliced) -> None:
    for name, weight in WEIGHTS.items():
        sliced.start(name, annotations=said(weight=str(weight)))
    uuid = sliced.gpu.host.uuids()[0]
    for name in WEIGHTS:
        env = sliced.cluster.kubectl("exec", name, "-n", SPACE, "--", "env").splitlines()
        assert f"NVIDIA_VISIBLE_DEVICES={uuid}" in env, "all of them see the one GPU"
    sliced.wait_accounted(list(WEIGHTS))
    sliced.check_shares({name: one / sum(WEIGHTS.values()) for name, one in WEIGHTS.items()})


def test_a_fifth_pod_waits_for_a_replica_however_little_the_gpu_has_to_do(sliced: Sliced) -> None:
    """How many there are is NVIDIA's plugin's to say, and not what fairsched shares by."""
    sliced.cluster.apply(replica("fifth"))
    wait_until(
        lambda: f"Insufficient {RESOURCE}" in sliced.why_pending("fifth"),
        PATIENCE_S,
        "the scheduler says why",
    )
    sliced.cluster.kubectl("delete", "pod", "fifth", "-n", SPACE, "--wait")


def test_replicas_carry_no_weight_so_that_who_says_nothing_gets_as_much_as_the_next(sliced: Sliced) -> None:
    sliced.drop(list(WEIGHTS))
    for name in SILENT:
        sliced.start(name)
    sliced.wait_accounted(SILENT)
    assert {sliced.tenant(f"{SPACE}/{name}")["weight"] for name in SILENT} == {1}
    sliced.check_shares(dict.fromkeys(SILENT, 0.5))
