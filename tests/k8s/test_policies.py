# SPDX-License-Identifier: Apache-2.0
"""GpuSharePolicy on a live API server: what it refuses, what a node makes of it, and who is told of what.

Two pods of ``ml`` and one of ``web``; their shares come from policies alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from fairsched.simgpu.node import SimNode
from tests.k8s import etcd, rights
from tests.k8s.cluster import Cluster, ClusterError
from tests.k8s.pods import PATIENCE_S, container_cgroup_of, drop_spaces, lives, make_spaces, pod, run
from tests.k8s.release import API, NAME, NAMESPACE, need_image, simulated
from tests.k8s.test_tenants import EFFECTIVE_S, TOLERATED, WATCHED_S, Told, said
from tests.node.daemon.site import DECODE, STEADY
from tests.support import let_run, wait_until

CONTROLLER = f"{NAME}-policies"
CRD = "gpusharepolicies.fairsched.io"
PODS = ("ml/a", "ml/b", "web/c")
AWAY_S = 60.0
"""The bar for an API server that is away."""
BACK_S = 8.0
"""Until what is said to one that is back is in effect: an agent looks for it every five seconds."""
UNMOVED = 0.02
STATUS_S = 10.0
"""Until a status tells of a change: a round of the controller, and what a busy machine of tests takes."""
ML: dict[str, Any] = {
    "namespaces": {"names": ["ml"]},
    "share": {"weight": 3},
    "pods": [
        {"selector": {"matchLabels": {"tier": "gold"}}, "weight": 2, "max": {"weight": 4}},
        {"weight": 1},
    ],
}
N = {"namespaces": {"names": ["ml"]}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**N, "share": {"weight": 0}}, "spec.share.weight: * write a number above 0"),
    ({**N, "share": {"weight": "3"}}, 'spec.share.weight: * must be of type number: "string"'),
    ({**N, "share": {"class": "express"}}, 'spec.share.class: * supported values: "latency", "batch"'),
    ({**N, "share": {"quota": "150%"}}, "spec.share.quota: * write a part of one GPU from 0% to 100%"),
    ({**N, "share": {"quota": "10%", "min": "20%"}}, "spec.share.min: * lower min, or raise quota"),
    ({**N, "share": {"vramLimit": "8 bananas"}}, "spec.share.vramLimit: * such as 8GiB"),
    ({**N, "share": {"wieght": 3}}, 'unknown field "spec.share.wieght"'),
    (N, "spec.share: * it says nothing: give share"),
    ({"share": {"weight": 1}}, "spec.namespaces: Required value"),
    ({"namespaces": {}, "share": {"weight": 1}}, "spec.namespaces: * give either names, or selector"),
    ({"namespaces": {"names": ["ml-*"]}, "share": {"weight": 1}}, "names[0]: * use selector"),
    (
        {"namespaces": {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, "pods": []},
        "matchExpressions[0]: * In and NotIn need values",
    ),
    ({**N, "pods": [{"weight": 3}, {"weight": 2}]}, "spec.pods: * only the last may be without selector"),
    ({**N, "pods": [{"selector": {}}]}, "spec.pods[0].selector: * leave selector away"),
    ({**N, "pods": [{"weight": 3, "max": {"weight": 2}}]}, "spec.pods[0].max.weight: * raise max.weight"),
    ({**N, "pods": [{"max": {"quota": "50%"}}]}, "spec.pods[0].max.quota: * give quota as well"),
    (
        {**N, "pods": [{"vramLimit": "8GiB", "max": {"vramLimit": "4000MiB"}}]},
        "spec.pods[0].max.vramLimit: * not more than this",
    ),
    (
        {**N, "pods": [{"class": "latency", "max": {"class": "batch"}}]},
        "max.class: * write max.class: latency",
    ),
    ({**N, "pods": [{"min": "20%"}]}, "spec.pods: * raise spec.share.min"),
]
"""Specs, and of what the API server says the field and, after the *, the remedy."""


class Ruled(Told):
    """A release with policies."""

    def rule(self, name: str, **spec: Any) -> None:
        kind = {"apiVersion": "fairsched.io/v1alpha1", "kind": "GpuSharePolicy"}
        self.cluster.apply({**kind, "metadata": {"name": name}, "spec": spec})

    def policy_status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.get("gpusharepolicy", name).get("status", {})
        return found

    def condition(self, name: str, kind: str) -> str:
        """Its status and reason."""
        found = [one for one in self.policy_status(name).get("conditions", []) if one["type"] == kind]
        return f"{found[0]['status']} {found[0]['reason']}" if found else ""

    def policy_of(self, tenant: str) -> str | None:
        found: str | None = self.tenant(tenant)["policy"]
        return found

    def events_of(self, name: str, namespace: str, reason: str) -> list[str]:
        found = self.cluster.get("events", "-n", namespace)["items"]
        return [
            one["message"]
            for one in found
            if one["reason"] == reason and one["involvedObject"]["name"] == name
        ]

    def leader(self) -> str:
        """The controller's pod that writes."""
        spec = self.cluster.get("lease", CONTROLLER, "-n", NAMESPACE)["spec"]
        return str(spec.get("holderIdentity") or "").partition("_")[0]


@pytest.fixture(scope="module")
def gpu(cluster: Cluster) -> Iterator[SimNode]:
    need_image(cluster)
    with simulated() as found:
        yield found


@pytest.fixture(scope="module")
def ruled(cluster: Cluster, gpu: SimNode) -> Iterator[Ruled]:
    found = Ruled(cluster, gpu)
    found.asked_before = len(cluster.audited())
    spaces = ("ml", "web")
    make_spaces(cluster, *spaces)
    try:
        places = {}
        for full in PODS:
            namespace, _, name = full.partition("/")
            labels = {"tier": "gold"} if name == "a" else {}
            # Who says nothing and asks for no GPU is no tenant without a policy.
            words = said(weight="1") if namespace == "web" else {}
            document = pod(name, namespace=namespace, labels=labels, annotations=words)
            places[full] = container_cgroup_of(run(cluster, document))
        env = [{"name": name, "value": value} for name, value in API.items()]
        found.install({"kubernetes": {"watch_pods": True}}, policies={"enabled": True, "extraEnv": env})
        # Until something is said of its namespace, nobody looks for the library of a pod.
        found.rule("research", **{**ML, "share": {"weight": 2}})
        found.wait_weight("ml", 2)
        first = gpu.spawn("first", DECODE, places["ml/a"])
        wait_until(lambda: "probes=" in found.log(), PATIENCE_S, "libcuda has its probes")
        first.kill()
        for full, place in places.items():
            gpu.spawn(full, STEADY, place)
        yield found
    finally:
        found.uninstall()
        for full in (*PODS, "first"):
            gpu.kill_group(full)
        cluster.kubectl("delete", "crd", CRD, "--ignore-not-found")
        drop_spaces(cluster, *spaces)


def test_a_policy_that_makes_no_sense_is_refused_with_the_field_and_what_to_write(ruled: Ruled) -> None:
    for spec, text in REFUSED:
        document = {
            "apiVersion": "fairsched.io/v1alpha1",
            "kind": "GpuSharePolicy",
            "metadata": {"name": "bad"},
            "spec": spec,
        }
        with pytest.raises(ClusterError) as error:
            ruled.cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(document))
        field, _, remedy = text.partition(" * ")
        assert field in str(error.value) and remedy in str(error.value), (spec, str(error.value))


def test_a_policy_is_in_effect_within_two_seconds_and_shares_follow(ruled: Ruled) -> None:
    ruled.rule("research", **ML)
    took_s = ruled.wait_weight("ml", 3)
    assert took_s < EFFECTIVE_S
    assert (ruled.weight("ml/a"), ruled.weight("ml/b"), ruled.weight("web")) == (2, 1, 1)
    got = ruled.shares(PODS, WATCHED_S)
    assert got == pytest.approx({"ml/a": 0.5, "ml/b": 0.25, "web/c": 0.25}, abs=TOLERATED)


def test_status_and_explain_name_the_policy_a_share_comes_from(ruled: Ruled) -> None:
    assert ruled.policy_of("ml/a") == "policy research, pods[0]"
    assert ruled.policy_of("ml/b") == "policy research, pods[1]"
    assert ruled.policy_of("web/c") is None
    assert "by policy research, pods[1]" in ruled.fairsched("status", "--full")
    assert "weight 2, by policy research, pods[0]" in ruled.fairsched("explain", "ml/a")


def test_no_annotation_and_no_label_gets_a_pod_more_than_its_policy_says(ruled: Ruled) -> None:
    """An Event tells who made it."""
    ruled.annotate("ml/a", weight="1000000")
    ruled.wait_weight("ml/a", 4)
    ruled.cluster.kubectl("label", "pod", "b", "-n", "ml", "fairsched.io/weight=1000000")
    text = "fairsched.io/weight: 1e+06 is beyond policy research, pods[1]: it gets 1"
    wait_until(
        lambda: ruled.events_of("b", "ml", "FairschedOutOfBounds") == [text], PATIENCE_S, "an event says so"
    )
    wait_until(lambda: f"ml/b: {text}" in ruled.warnings(), PATIENCE_S, "the status says so")
    assert ruled.weight("ml/b") == 1
    got = ruled.shares(PODS, WATCHED_S)
    assert got == pytest.approx({"ml/a": 0.6, "ml/b": 0.15, "web/c": 0.25}, abs=TOLERATED)
    ruled.annotate("ml/a", weight="2")
    ruled.cluster.kubectl("label", "pod", "b", "-n", "ml", "fairsched.io/weight-")
    ruled.wait_weight("ml/a", 2)


def test_the_status_says_whom_a_policy_reaches_and_which_it_meets(ruled: Ruled) -> None:
    ruled.rule("all", namespaces={"selector": {}}, share={"weight": 1})
    ruled.rule("also", **{**ML, "share": {"weight": 9}})
    wait_until(lambda: bool(ruled.policy_status("also")), STATUS_S, "it has a status")
    wait_until(
        lambda: (
            ruled.condition("research", "Conflicting") == "False NoConflict"
            or ruled.condition("also", "Conflicting") == "True SameStanding"
        ),
        STATUS_S,
        "the conflict is seen",
    )
    first = ruled.policy_status("also")
    assert (first["namespaces"], first["names"], first["pods"], first["podsByRule"]) == (1, ["ml"], 2, [1, 1])
    assert first["conflicts"] == [{"policy": "research", "namespaces": 1, "wins": False}]
    wait_until(
        lambda: ruled.condition("research", "Effective") == "False Overruled", STATUS_S, "it is overruled"
    )
    assert ruled.wait_weight("ml", 9) < EFFECTIVE_S, "the first in the alphabet, on the node as well"
    assert {"policy": "also", "namespaces": 1, "wins": True} in ruled.policy_status("all")["overruledBy"]
    ruled.rule("research", **ML, priority=5)
    assert ruled.wait_weight("ml", 3) < EFFECTIVE_S
    wait_until(
        lambda: ruled.condition("research", "Conflicting") == "False NoConflict", STATUS_S, "no conflict"
    )
    ruled.cluster.kubectl("delete", "gpusharepolicy", "all", "also")
    found = ruled.cluster.get("gpusharepolicy", "research")
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]


def test_when_the_controller_that_writes_goes_another_does(ruled: Ruled) -> None:
    old = ruled.leader()
    assert old
    ruled.cluster.kubectl("delete", "pod", old, "-n", NAMESPACE, "--wait=false")
    wait_until(lambda: ruled.leader() not in ("", old), PATIENCE_S, "another holds the Lease")
    ruled.rule("later", namespaces={"names": ["web"]}, share={"weight": 1})
    wait_until(lambda: ruled.condition("later", "Effective") == "True InEffect", PATIENCE_S, "it writes")
    ruled.cluster.kubectl("delete", "gpusharepolicy", "later")


# ---- lives of pods ----


def test_a_container_that_is_started_again_is_the_same_tenant(ruled: Ruled) -> None:
    document = ruled.cluster.get("pod", "b", "-n", "ml")
    place = container_cgroup_of(document)
    ruled.gpu.kill_group("ml/b")
    (place / "cgroup.kill").write_text("1")

    def again() -> bool:
        (status,) = ruled.cluster.get("pod", "b", "-n", "ml")["status"]["containerStatuses"]
        return bool(status["restartCount"] and status["ready"])

    wait_until(again, PATIENCE_S, "the kubelet starts it again")
    other = container_cgroup_of(ruled.cluster.get("pod", "b", "-n", "ml"))
    assert other != place and ruled.weight("ml/b") == 1
    ruled.gpu.spawn("ml/b", STEADY, other)
    wait_until(
        lambda: (ruled.tenant("ml/b")["used_ratio"] or 0) > 0.05, PATIENCE_S, "its work is accounted to it"
    )


def test_the_work_of_an_init_container_is_its_pods(ruled: Ruled) -> None:
    document = pod("d", namespace="ml")
    (main,) = document["spec"]["containers"]
    document["spec"]["initContainers"] = [{**main, "name": "warm-up"}]
    ruled.cluster.apply(document)

    def running() -> list[dict[str, Any]]:
        found = ruled.cluster.get("pod", "d", "-n", "ml")["status"].get("initContainerStatuses", [])
        return [one for one in found if "running" in one["state"]]

    wait_until(lambda: bool(running()), PATIENCE_S, "the init container runs")
    found = ruled.cluster.get("pod", "d", "-n", "ml")
    assert found["status"]["phase"] == "Pending"
    found["status"]["containerStatuses"] = running()
    ruled.gpu.spawn("ml/d", STEADY, container_cgroup_of(found))
    try:
        wait_until(
            lambda: any(one["name"] == "ml/d" and one["used_ratio"] for one in ruled.status()["tenants"]),
            PATIENCE_S,
            "its work is accounted to the pod",
        )
        assert ruled.policy_of("ml/d") == "policy research, pods[1]"
    finally:
        ruled.gpu.kill_group("ml/d")
        ruled.cluster.kubectl("delete", "pod", "d", "-n", "ml", "--force", "--grace-period=0")


def test_an_api_server_that_is_away_for_a_minute_moves_no_share(ruled: Ruled) -> None:
    """Nor does it start a pod again. etcd forgets meanwhile what was: no watch can go on where it was."""
    cluster, before = ruled.cluster, lives(ruled.cluster, PODS)
    weights = {"ml": 3.0, "ml/a": 2.0, "ml/b": 1.0, "web": 1.0}
    started = time.monotonic()
    cluster.stop("kube-apiserver")
    try:
        etcd.forget(cluster)
        # The minute is shared: what the GPU did in it is the measurement.
        got = ruled.shares(PODS, AWAY_S - (time.monotonic() - started))
        assert "the API server has told nothing for" in ruled.warnings()
        assert {name: ruled.weight(name) for name in weights} == weights
        assert got == pytest.approx({"ml/a": 0.5, "ml/b": 0.25, "web/c": 0.25}, abs=UNMOVED)
    finally:
        cluster.start_api_server()
    ruled.rule("research", **{**ML, "share": {"weight": 1}}, priority=5)
    took_s = ruled.wait_weight("ml", 1)
    cluster.restart_those_who_waited()
    print(f"{got}; effective {took_s:.1f} s after it was back")
    assert took_s < BACK_S
    ruled.rule("research", **ML, priority=5)
    took_s = ruled.wait_weight("ml", 3)
    assert took_s < EFFECTIVE_S, "the next change is heard as ever"
    assert lives(cluster, PODS) == before


def test_a_pod_that_dies_while_it_is_held_leaves_nothing_behind(ruled: Ruled) -> None:
    # Holds of half a second cannot pay back what a deep queue takes where the machine is late.
    ruled.rule("research", **{**ML, "share": {"quota": "10%", "class": "batch"}}, priority=5)
    wait_until(lambda: ruled.tenant("ml/a")["state"] == "held", PATIENCE_S, "it is held")
    top = container_cgroup_of(ruled.cluster.get("pod", "a", "-n", "ml")).parent
    ruled.gpu.kill_group("ml/a")
    ruled.cluster.kubectl("delete", "pod", "a", "-n", "ml", "--force", "--grace-period=0")
    wait_until(lambda: not top.exists(), PATIENCE_S, "its cgroup has gone")
    wait_until(lambda: ruled.weight("ml/a") is None, PATIENCE_S, "it is no tenant any more")
    assert str(top) not in ruled.on_node("sh", "-c", "cat /run/fairsched/holds/* 2>/dev/null")
    before, started = ruled.gpu.truth_ns()["ml/b"], time.monotonic()
    let_run(WATCHED_S)
    got = (ruled.gpu.truth_ns()["ml/b"] - before) / 1e9 / (time.monotonic() - started)
    assert 0 < got < 0.1 + TOLERATED, "of the GPU's time, which the other may not have processors to use"


# ---- what it may ----


def test_agents_and_controllers_ask_for_all_that_they_may_and_for_nothing_else(ruled: Ruled) -> None:
    """By the API server's own record and rules, for each account."""
    for name in (NAME, CONTROLLER):
        who = rights.account(NAMESPACE, name)
        rights.check(ruled.cluster, who, NAMESPACE, "kube-system", since=ruled.asked_before)
