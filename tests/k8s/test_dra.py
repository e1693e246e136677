# SPDX-License-Identifier: Apache-2.0
"""Shares by claims, with the real scheduler and kubelet: given, held, refused, kept through restarts, and cleaned up.

The tests build on each other's state, in their order: two pods with three quarters and one quarter of the GPU.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.simgpu.node import SimNode
from tests.k8s import rights
from tests.k8s.cluster import NODE, Cluster, ClusterError
from tests.k8s.pods import PATIENCE_S, container_cgroup_of, drop_spaces, make_spaces, pod, run
from tests.k8s.release import NAME, NAMESPACE, Release, need_image, simulated
from tests.node.daemon.site import DECODE, STEADY
from tests.support import wait_until

SPACE = "claims"
DRIVER = "gpu.fairsched.io"
TOLERATED = 0.06
WATCHED_S = 8.0
WIPED_S = 60.0
"""The kubelet removes slices of a driver that has been away for 30 s."""
TEMPLATES = {"large": "gpu-three-quarters", "small": "gpu-quarter"}


def using(name: str, **claim: str) -> dict[str, Any]:
    """A pod with a claim: ``resourceClaimTemplateName`` or ``resourceClaimName``."""
    document = pod(name, namespace=SPACE)
    document["spec"]["resourceClaims"] = [{"name": "gpu", **claim}]
    document["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return document


def claim(
    name: str, share: str | None = None, kind: str = "ResourceClaim", **parameters: Any
) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": DRIVER}
    if share is not None:
        exactly["capacity"] = {"requests": {"fairsched.io/share": share}}
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if parameters:
        said = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "GpuShare", **parameters}
        devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": said}}]
    spec: dict[str, Any] = {"devices": devices}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": SPACE},
        "spec": spec if kind == "ResourceClaim" else {"spec": spec},
    }


class Claimed(Release):
    """A release with the driver."""

    asked_before = 0
    """Lines of the API server's record that are older than it."""

    def __init__(self, cluster: Cluster, gpu: SimNode) -> None:
        super().__init__(cluster, gpu)
        self.device_dir = gpu.host.state_dir / "dev"

    def install_driver(self, **dra: Any) -> None:
        config = {
            "gpu": {"device_dir": str(self.device_dir)},
            "kubernetes": {"watch_pods": True, "dra": dra},
        }
        # One that was not ready at the first look is looked at again after 30 s by default.
        probes = {"readiness": {"periodSeconds": 5}}
        self.install(config, dra={"enabled": True, "examples": {"namespace": SPACE}}, probes=probes)

    def devices(self) -> list[dict[str, Any]]:
        """Of this node, as the scheduler has them."""
        slices = self.cluster.get("resourceslices")["items"]
        return [
            device
            for one in slices
            if one["spec"]["driver"] == DRIVER and one["spec"]["nodeName"] == NODE
            for device in one["spec"]["devices"]
        ]

    def weights(self) -> dict[str, float]:
        return {one["name"]: one["weight"] for one in self.ask("tenant", "list")["tenants"]}

    def events(self, name: str) -> str:
        told = self.cluster.get("events", "-n", SPACE, f"--field-selector=involvedObject.name={name}")
        return " ".join(one["message"] for one in told["items"])

    def inside(self, name: str, *command: str) -> str:
        return self.cluster.kubectl("exec", name, "-n", SPACE, "--", *command)

    def left(self) -> set[str]:
        """Files of claims on the node."""
        listed = self.on_node("sh", "-c", "ls -A /var/run/cdi /var/lib/fairsched/dra")
        return {line for line in listed.split() if not line.startswith("/")}

    def delete(self, *names: str) -> None:
        """A pod is there as long as a process of ours is in its cgroup."""
        for name in names:
            self.gpu.kill_group(name)
        self.cluster.kubectl("delete", "pod", *names, "-n", SPACE, "--wait", timeout_s=120)

    def uuid(self) -> str:
        found: str = self.devices()[0]["attributes"]["uuid"]["string"]
        return found


@pytest.fixture(scope="module")
def claimed(cluster: Cluster) -> Iterator[Claimed]:
    need_image(cluster)
    with simulated() as gpu:
        found = Claimed(cluster, gpu)
        found.asked_before = len(cluster.audited())
        make_spaces(cluster, SPACE)
        try:
            found.install_driver()
            yield found
        finally:
            for name in (*TEMPLATES, "first"):
                gpu.kill_group(name)
            # Pods with claims need the driver to end.
            cluster.kubectl("delete", "pods", "--all", "-n", SPACE, "--wait", timeout_s=120)
            found.uninstall()
            drop_spaces(cluster, SPACE)


@pytest.fixture(scope="module")
def places(claimed: Claimed) -> dict[str, Path]:
    """Cgroups of the two pods."""
    found = {}
    for name, template in TEMPLATES.items():
        document = using(name, resourceClaimTemplateName=template)
        found[name] = container_cgroup_of(run(claimed.cluster, document))
    return found


def test_gpus_are_published_and_the_node_owns_the_slice(claimed: Claimed) -> None:
    wait_until(lambda: len(claimed.devices()) == 1, PATIENCE_S, "the GPU is published")
    (device,) = claimed.devices()
    assert device["attributes"]["productName"] == {"string": "Simulated GPU"}
    assert set(device["attributes"]) >= {"uuid", "driverVersion", "pciBusID", "index", "type"}
    assert device["allowMultipleAllocations"] and device["capacity"]["fairsched.io/share"]["value"] == "100"
    (found,) = claimed.cluster.get("resourceslices")["items"]
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", claimed.cluster.get("node", NODE)["metadata"]["uid"])


def test_a_container_sees_the_gpu_that_its_claim_has(claimed: Claimed, places: dict[str, Path]) -> None:
    uuid = claimed.uuid()
    env = claimed.inside("large", "env").splitlines()
    assert f"FAIRSCHED_SHARE_{uuid.upper().replace('-', '_')}=75" in env
    assert f"NVIDIA_VISIBLE_DEVICES={uuid}" in env
    nodes = claimed.inside("large", "ls", "/dev").split()
    assert {"nvidia0", "nvidiactl", "nvidia-uvm"} <= set(nodes)
    run(claimed.cluster, pod("without", namespace=SPACE))
    assert "nvidia0" not in claimed.inside("without", "ls", "/dev").split()
    claimed.cluster.kubectl("delete", "pod", "without", "-n", SPACE, "--wait=false")


def test_two_claims_share_the_gpu_as_they_asked_for(claimed: Claimed, places: dict[str, Path]) -> None:
    gpu = claimed.gpu
    wait_until(
        lambda: claimed.weights().get(SPACE) == 100, PATIENCE_S, "the namespace weighs what its pods got"
    )
    assert (claimed.weights()[f"{SPACE}/large"], claimed.weights()[f"{SPACE}/small"]) == (75, 25)
    first = gpu.spawn("first", DECODE, places["large"])
    wait_until(lambda: "probes=" in claimed.log(), PATIENCE_S, "libcuda has its probes")
    first.kill()
    for name, place in places.items():
        gpu.spawn(name, STEADY, place)
    full = {f"{SPACE}/{name}" for name in places}
    wait_until(
        lambda: {one["name"] for one in claimed.status()["tenants"] if one["used_ratio"]} >= full,
        PATIENCE_S,
        "both are accounted",
    )
    got = claimed.shares(places, WATCHED_S)
    assert got == pytest.approx({"large": 0.75, "small": 0.25}, abs=TOLERATED), got


def test_a_claim_that_is_too_large_waits_and_the_scheduler_says_why(
    claimed: Claimed, places: dict[str, Path]
) -> None:
    claimed.cluster.apply(using("third", resourceClaimTemplateName="gpu-quarter"))
    wait_until(lambda: "cannot allocate all claims" in claimed.events("third"), PATIENCE_S, "it says why")
    assert claimed.cluster.phase("third", SPACE) == "Pending"
    claimed.delete("small")
    wait_until(
        lambda: claimed.cluster.phase("third", SPACE) == "Running", PATIENCE_S, "it has what became free"
    )
    claimed.delete("third")
    wait_until(lambda: len(claimed.left()) == 2, PATIENCE_S, "only what is of the first is left")
    wait_until(
        lambda: len(claimed.cluster.get("resourceclaims", "-n", SPACE)["items"]) == 1,
        PATIENCE_S,
        "and its claim",
    )


def test_bad_parameters_keep_the_pod_from_starting_and_it_says_which(claimed: Claimed) -> None:
    claimed.cluster.apply(claim("bad", "1", weight="heavy"), using("bad", resourceClaimName="bad"))
    text = "parameters: weight: 'heavy': it is not a number"
    wait_until(lambda: text in claimed.events("bad"), PATIENCE_S, "the event says so")
    claimed.delete("bad")
    claimed.cluster.kubectl("delete", "resourceclaim", "bad", "-n", SPACE)


def test_parameters_and_memory_of_a_claim_are_the_pods_defaults(claimed: Claimed) -> None:
    said = claim("said", "5", weight=7, **{"class": "batch", "vram-limit": "1GiB"})
    claimed.cluster.apply(said)
    run(claimed.cluster, using("said", resourceClaimName="said"))
    wait_until(lambda: claimed.weights().get(f"{SPACE}/said") == 7, PATIENCE_S, "it weighs what it says")
    assert claimed.weights()[SPACE] == 80, "its namespace weighs shares alone"
    (found,) = [one for one in claimed.ask("tenant", "list")["tenants"] if one["name"] == f"{SPACE}/said"]
    assert (found["class"], found["vram_limit"]) == ("batch", 1 << 30)
    claimed.delete("said")
    claimed.cluster.kubectl("delete", "resourceclaim", "said", "-n", SPACE)


def test_a_driver_that_was_killed_goes_on_where_it_was(claimed: Claimed, places: dict[str, Path]) -> None:
    pid = claimed.status()["companion"]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: claimed.status()["companion"]["pid"] not in (None, pid), PATIENCE_S, "there is another"
    )
    run(claimed.cluster, using("small", resourceClaimTemplateName="gpu-quarter"))
    wait_until(lambda: claimed.weights().get(f"{SPACE}/small") == 25, PATIENCE_S, "the new one is told")
    assert claimed.weights()[f"{SPACE}/large"] == 75


def test_a_kubelet_that_is_started_again_finds_the_driver_and_its_slices(claimed: Claimed) -> None:
    """It removes all slices of its node when it starts."""
    cluster = claimed.cluster
    before = cluster.get("pod", "large", "-n", SPACE)["status"]["containerStatuses"]
    (old,) = cluster.get("resourceslices")["items"]
    cluster.stop("kubelet")
    cluster.kubectl("delete", "pod", "small", "-n", SPACE, "--wait=false")
    cluster.start_kubelet()
    wait_until(cluster.is_node_ready, PATIENCE_S, "the node is ready")

    def is_anew() -> bool:
        found = cluster.get("resourceslices")["items"]
        return len(found) == 1 and found[0]["metadata"]["uid"] != old["metadata"]["uid"]

    wait_until(is_anew, PATIENCE_S, "the slice was made anew")
    wait_until(lambda: not cluster.has("pod", "small", "-n", SPACE), PATIENCE_S, "a pod can end")
    run(cluster, using("small", resourceClaimTemplateName="gpu-quarter"))
    after = cluster.get("pod", "large", "-n", SPACE)["status"]["containerStatuses"]
    assert [one["containerID"] for one in after] == [one["containerID"] for one in before]


@pytest.fixture(scope="module")
def without_gate(claimed: Claimed) -> Iterator[None]:
    """The API server does not know consumable capacity: it drops what says so."""

    def start(*, has_gates: bool) -> None:
        claimed.cluster.stop("kube-apiserver")
        claimed.cluster.start_api_server(has_gates=has_gates)
        claimed.cluster.restart_those_who_waited()

    start(has_gates=False)
    try:
        yield
    finally:
        start(has_gates=True)


def test_where_a_device_goes_to_one_claim_a_gpu_is_several_and_pods_may_share_a_claim(
    claimed: Claimed, without_gate: None
) -> None:
    """As it is without the feature gate, and the agent finds that out itself."""
    claimed.delete("large", "small")
    claimed.install_driver(devices_per_gpu=2)
    wait_until(lambda: "dra=sharing kind=devices" in claimed.log(), PATIENCE_S, "it has asked the server")
    wait_until(lambda: len(claimed.devices()) == 2, PATIENCE_S, "the GPU is two devices")
    assert {one["capacity"]["fairsched.io/share"]["value"] for one in claimed.devices()} == {"50"}
    claimed.cluster.apply(claim("ours"), claim("other"), claim("more"))
    for name, of in (("a", "ours"), ("b", "ours"), ("c", "other")):
        run(claimed.cluster, using(name, resourceClaimName=of))
    wait_until(lambda: claimed.weights().get(SPACE) == 100, PATIENCE_S, "all are told")
    assert {name: claimed.weights()[f"{SPACE}/{name}"] for name in "abc"} == {"a": 25, "b": 25, "c": 50}
    claimed.cluster.apply(using("d", resourceClaimName="more"))
    wait_until(lambda: "cannot allocate all claims" in claimed.events("d"), PATIENCE_S, "there are no more")
    claimed.delete("a", "b", "c", "d")
    claimed.cluster.kubectl("delete", "resourceclaims", "--all", "-n", SPACE)
    wait_until(lambda: claimed.left() == set(), PATIENCE_S, "nothing of them is left")


def test_an_agent_may_do_what_it_does_on_its_own_node_and_nothing_else(claimed: Claimed) -> None:
    """Who has its account's rights and is on no node is refused by the admission policy."""
    user = rights.account(NAMESPACE, NAME)
    (found,) = claimed.cluster.get("resourceslices")["items"]
    body = json.dumps({**found, "metadata": {"name": "theirs"}})
    denied = "an agent changes the ResourceSlices of its own node only"
    with pytest.raises(ClusterError, match=denied):
        claimed.cluster.kubectl("create", "-f", "-", f"--as={user}", stdin=body)
    with pytest.raises(ClusterError, match=denied):
        claimed.cluster.kubectl("delete", "resourceslice", found["metadata"]["name"], f"--as={user}")
    claimed.cluster.kubectl("create", "-f", "-", stdin=body)
    wait_until(
        lambda: not claimed.cluster.has("resourceslice", "theirs"),
        PATIENCE_S,
        "it removes what is not its own",
    )
    claimed.cluster.apply(pod("wrong", namespace=SPACE, annotations={"fairsched.io/weight": "heavy"}))
    wait_until(lambda: "it is not a number" in claimed.events("wrong"), PATIENCE_S, "the event says so")
    claimed.delete("wrong")
    rights.check(claimed.cluster, user, NAMESPACE, SPACE, since=claimed.asked_before)


def test_after_it_was_uninstalled_the_kubelet_removes_the_slices(claimed: Claimed) -> None:
    claimed.uninstall()
    wait_until(lambda: claimed.devices() == [], WIPED_S, "the slices are gone")
    assert claimed.on_node("ls", f"/var/lib/kubelet/plugins_registry/{DRIVER}-reg.sock") == ""
