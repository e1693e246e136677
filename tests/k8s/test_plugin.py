# SPDX-License-Identifier: Apache-2.0
"""Shares of a GPU as a resource: the real scheduler adds them up, the real kubelet gives them out, pods weigh them.

Two simulated GPUs, whose device nodes are /dev/null and /dev/zero under other names. All pods are of one namespace that
says nothing of itself; ``small`` asks for 25 shares and ``large`` for 75, which one GPU has.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.k8s.cluster import NODE, Cluster, ClusterError
from tests.k8s.commands import Person
from tests.k8s.places import BIN
from tests.k8s.pods import PATIENCE_S, container_cgroup_of, drop_spaces, make_spaces, pod, run
from tests.k8s.release import API, NAMESPACE, Release, need_image, simulated
from tests.node.daemon.site import DECODE, STEADY
from tests.support import wait_until

RESOURCE = "fairsched.io/gpu-share"
PLUGIN = "fairsched-device-plugin"
SPACE = "shares"
ASKED = {"small": 25, "large": 75}
TOLERATED = 0.06
WATCHED_S = 8.0
NODES = {"nvidiactl": 3, "nvidia-uvm": 3, "nvidia0": 3, "nvidia1": 5}
"""Minors of major 1: what reads and writes of them do is nobody's business here."""
SEEN_S = 5.0
"""The plugin looks once a second, the kubelet tells of it every two."""


def sharing(name: str, count: int) -> dict[str, Any]:
    document = pod(name, namespace=SPACE)
    document["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: str(count)}}
    return document


@contextlib.contextmanager
def device_nodes() -> Iterator[Path]:
    """A directory that stands for /dev."""
    directory = Path(tempfile.mkdtemp(prefix="fairsched-k8s-dev-"))
    try:
        for name, minor in NODES.items():
            os.mknod(directory / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        yield directory
    finally:
        shutil.rmtree(directory)


class Shared(Release):
    """A release with the device plugin."""

    dev: Path
    """Stands for /dev."""

    def install_with_plugin(self, allocation: str) -> None:
        given = self.values({})
        volume = {"name": "sim-dev", "hostPath": {"path": str(self.dev), "type": "Directory"}}
        plugin = {
            "enabled": True,
            "allocation": allocation,
            "devRoot": str(self.dev),
            "extraEnv": [one for one in given["extraEnv"] if one["name"] not in API],
            "extraVolumes": [*given["extraVolumes"], volume],
            "extraVolumeMounts": [
                *given["extraVolumeMounts"],
                {"name": "sim-dev", "mountPath": str(self.dev), "readOnly": True},
            ],
        }
        self.install({"kubernetes": {"watch_pods": True}}, devicePlugin=plugin)

    def allocatable(self) -> int:
        found = self.cluster.get("node", NODE)["status"]["allocatable"]
        return int(found.get(RESOURCE, 0))

    def wait_allocatable(self, count: int, seconds: float = PATIENCE_S) -> float:
        """Seconds it took."""
        started = time.monotonic()
        try:
            wait_until(lambda: self.allocatable() == count, seconds, f"{count} shares can be given out")
        except AssertionError as error:
            told = self.cluster.kubectl("logs", f"ds/{PLUGIN}", "-n", NAMESPACE, "--tail=30")
            raise AssertionError(f"{error}\n{self.allocatable()}\n{told}") from error
        return time.monotonic() - started

    def plugin_pods(self) -> list[dict[str, Any]]:
        selector = f"app.kubernetes.io/name={PLUGIN}"
        found: list[dict[str, Any]] = self.cluster.get("pods", "-n", NAMESPACE, "-l", selector)["items"]
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    def plugin_pod(self) -> dict[str, Any]:
        (found,) = self.plugin_pods()
        return found

    def plugin_log(self) -> str:
        """So far as a kubelet tells it: one that starts does not."""
        try:
            name = self.plugin_pod()["metadata"]["name"]
            return self.cluster.text(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/log")
        except (ClusterError, ValueError):
            return ""

    def check_shares(self) -> None:
        got = self.shares(ASKED, WATCHED_S)
        status = self.status()
        tenants = [one for one in status["tenants"] if one["name"].startswith(SPACE)]
        told = (
            self.restarts(),
            self.weights(),
            tenants,
            status["gpus"],
            status["warnings"],
            self.log()[-3000:],
        )
        assert got == pytest.approx({"small": 0.25, "large": 0.75}, abs=TOLERATED), told

    def in_pod(self, name: str, *command: str) -> str:
        return self.cluster.kubectl("exec", name, "-n", SPACE, "--", *command)

    def uuid_of(self, name: str) -> str:
        """The GPU that a pod's environment names."""
        told = dict(line.split("=", 1) for line in self.in_pod(name, "env").splitlines() if "=" in line)
        uuid, _, count = told["FAIRSCHED_GPU_SHARES"].partition("=")
        assert int(count) == ASKED[name] and told["NVIDIA_VISIBLE_DEVICES"] == "void"
        return uuid

    def weights(self) -> dict[str, float]:
        found = self.ask("tenant", "list")["tenants"]
        return {one["name"]: float(one["weight"]) for one in found if one["name"].startswith(SPACE)}

    def placed(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.on_node("cat", "/run/fairsched-shares/shares.json"))["pods"]
        return found

    def place(self, name: str, count: int) -> str:
        """Run a pod with shares of one GPU, and say which that is."""
        run(self.cluster, sharing(name, count))
        tenant = f"{SPACE}/{name}"
        wait_until(lambda: tenant in self.placed(), PATIENCE_S, "it is written down")
        ((uuid, given),) = self.placed()[tenant].items()
        assert given == count
        return uuid

    def pods_of_tests(self) -> dict[str, tuple[str, int]]:
        """(uid, restarts) of the pods with shares."""
        return {
            name: (found["metadata"]["uid"], found["status"]["containerStatuses"][0]["restartCount"])
            for name in ASKED
            for found in (self.cluster.get("pod", name, "-n", SPACE),)
        }


@pytest.fixture(scope="module")
def shared(cluster: Cluster) -> Iterator[Shared]:
    need_image(cluster)
    with device_nodes() as dev, simulated(gpus=2) as gpu:
        found = Shared(cluster, gpu)
        found.dev = dev
        make_spaces(cluster, SPACE)
        try:
            found.install_with_plugin("pack")
            found.wait_allocatable(200)
            places = {name: container_cgroup_of(run(cluster, sharing(name, ASKED[name]))) for name in ASKED}
            visible = {"CUDA_VISIBLE_DEVICES": found.uuid_of("small")}
            first = gpu.spawn("first", DECODE, places["small"], visible)
            wait_until(lambda: "probes=" in found.log(), PATIENCE_S, "libcuda has its probes")
            first.kill()
            for name, place in places.items():
                gpu.spawn(name, STEADY, place, visible)
            yield found
        finally:
            for name in (*ASKED, "first"):
                gpu.kill_group(name)
            drop_spaces(cluster, SPACE)
            found.uninstall()


def test_shares_are_given_out_of_one_gpu_and_it_is_injected_alone(shared: Shared) -> None:
    (uuid,) = {shared.uuid_of(name) for name in ASKED}
    index = shared.gpu.host.uuids().index(uuid)
    for name in ASKED:
        seen = shared.in_pod(name, "ls", "/dev").split()
        assert {one for one in seen if one.startswith("nvidia")} == {
            "nvidiactl",
            "nvidia-uvm",
            f"nvidia{index}",
        }
    told = shared.in_pod("small", "ls", "-l", f"/dev/nvidia{index}").split()
    assert told[0].startswith("c") and told[4:6] == ["1,", str(NODES[f"nvidia{index}"])]
    listed = shared.on_node(str(BIN / "nvidia-ctk"), "cdi", "list").split()
    assert set(listed) >= {f"fairsched.io/gpu={one}" for one in shared.gpu.host.uuids()}


def test_a_pod_weighs_what_it_asked_for_and_gets_it(shared: Shared) -> None:
    wanted = {SPACE: 100.0, **{f"{SPACE}/{name}": float(count) for name, count in ASKED.items()}}
    wait_until(lambda: shared.weights() == wanted, PATIENCE_S, f"the weights are {wanted}")
    uuid = shared.uuid_of("small")
    placed = {f"{SPACE}/{name}": {uuid: count} for name, count in ASKED.items()}
    wait_until(lambda: shared.placed() == placed, PATIENCE_S, "the plugin has written down who has what")
    shared.check_shares()


def test_who_asks_for_more_than_is_left_waits_and_the_scheduler_says_why(shared: Shared) -> None:
    shared.cluster.apply(sharing("greedy", 101))

    def reason() -> str:
        conditions = shared.cluster.get("pod", "greedy", "-n", SPACE)["status"].get("conditions", [])
        return " ".join(str(one.get("message")) for one in conditions if one["type"] == "PodScheduled")

    wait_until(lambda: f"Insufficient {RESOURCE}" in reason(), PATIENCE_S, "the scheduler says why")
    assert shared.cluster.phase("greedy", SPACE) == "Pending"
    shared.cluster.kubectl("delete", "pod", "greedy", "-n", SPACE, "--wait")


def test_who_is_sent_past_the_scheduler_fails_and_doctor_says_why(shared: Shared) -> None:
    document = sharing("sent", 101)
    document["spec"]["nodeName"] = NODE
    shared.cluster.apply(document)
    wait_until(lambda: shared.cluster.phase("sent", SPACE) == "Failed", PATIENCE_S, "its kubelet refuses it")
    told = Person(shared.cluster).json("doctor", "-n", SPACE, status=1)
    (row,) = [one for one in told if one["code"] == "pod-allocate"]
    assert row["subject"] == f"pod {SPACE}/sent" and "the device plugin refused" in row["text"]
    shared.cluster.kubectl("delete", "pod", "sent", "-n", SPACE, "--wait")


def test_a_gpu_that_is_lost_is_not_given_out_until_it_is_back(shared: Shared) -> None:
    busy = shared.gpu.host.uuids().index(shared.uuid_of("small"))
    for gpu in (1 - busy, busy):
        shared.gpu.host.lose(gpu)
        assert shared.wait_allocatable(100) < SEEN_S + 1
        shared.gpu.host.find(gpu)
        assert shared.wait_allocatable(200) < SEEN_S + 1
    shared.gpu.host.report_xid(79, 1 - busy)
    shared.wait_allocatable(100)
    before = shared.plugin_log().count("GPU is lost")
    shared.gpu.host.lose(1 - busy)  # as a reset does
    wait_until(lambda: shared.plugin_log().count("GPU is lost") > before, PATIENCE_S, "it is seen to be away")
    shared.gpu.host.find(1 - busy)
    shared.wait_allocatable(200)
    assert {count for _, count in shared.pods_of_tests().values()} == {0}
    shared.check_shares()


def test_a_kubelet_that_is_started_anew_takes_nothing_from_anybody(shared: Shared) -> None:
    before, placed = shared.pods_of_tests(), shared.placed()
    shared.cluster.stop("kubelet")
    shared.cluster.start_kubelet()
    wait_until(
        lambda: shared.plugin_log().count("plugin=registered") >= 2, PATIENCE_S, "the plugin registers again"
    )
    shared.wait_allocatable(200)
    run(shared.cluster, sharing("more", 30))
    expected = {**placed, f"{SPACE}/more": 30}
    wait_until(
        lambda: shared.placed().keys() == expected.keys(), PATIENCE_S, "who came is written down as well"
    )
    assert {name: shared.placed()[name] for name in placed} == placed
    assert sum(shared.placed()[f"{SPACE}/more"].values()) == 30
    assert shared.uuid_of("small") not in shared.placed()[f"{SPACE}/more"], "that one is given out"
    assert shared.pods_of_tests() == before
    shared.cluster.kubectl("delete", "pod", "more", "-n", SPACE, "--wait")
    wait_until(lambda: shared.weights()[SPACE] == 100, PATIENCE_S, "its namespace weighs as before")
    shared.check_shares()


def test_a_plugin_that_is_started_anew_takes_nothing_from_anybody(shared: Shared) -> None:
    before, placed, weights = shared.pods_of_tests(), shared.placed(), shared.weights()
    old = shared.plugin_pod()["metadata"]["name"]
    shared.cluster.kubectl("delete", "pod", old, "-n", NAMESPACE, "--wait")
    assert shared.placed() == placed and shared.weights() == weights, "meanwhile"
    wait_until(
        lambda: any(one["metadata"]["name"] != old for one in shared.plugin_pods()),
        PATIENCE_S,
        "there is another",
    )
    shared.wait_allocatable(200)
    assert (shared.pods_of_tests(), shared.placed()) == (before, placed)


def test_the_plugin_may_do_nothing_but_what_it_needs(shared: Shared) -> None:
    def inside(*command: str) -> str:
        return shared.cluster.kubectl("exec", f"ds/{PLUGIN}", "-n", NAMESPACE, "--", *command)

    status = dict(
        line.split(":\t", 1) for line in inside("cat", "/proc/1/status").splitlines() if ":\t" in line
    )
    assert {status[f"Cap{kind}"] for kind in ("Eff", "Prm", "Bnd", "Inh", "Amb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    assert int(status["VmRSS"].split()[0]) < 120_000, status["VmRSS"]
    assert "serviceaccount" not in inside("cat", "/proc/mounts")


def test_spread_takes_the_emptiest_gpu(shared: Shared) -> None:
    """All three would fit on one. The last test: it ends the pods of the others."""
    for name in ASKED:
        shared.gpu.kill_group(name)
    shared.cluster.kubectl("delete", "pod", *ASKED, "-n", SPACE, "--wait")
    shared.install_with_plugin("spread")
    shared.cluster.kubectl("rollout", "status", f"ds/{PLUGIN}", "-n", NAMESPACE, "--timeout=60s")
    wait_until(
        lambda: "plugin=registered" in shared.plugin_log(), PATIENCE_S, "the plugin that spreads registers"
    )
    shared.wait_allocatable(200)
    first, second, third = (shared.place("first", 30), shared.place("second", 50), shared.place("third", 10))
    assert first != second and third == first
