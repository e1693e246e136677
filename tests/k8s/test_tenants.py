# SPDX-License-Identifier: Apache-2.0
"""Pods are tenants by what they and their namespaces say, on a live API server: also while that is away.

Two pods of the namespace ``ml``, which weighs three, and one of ``web``, which says nothing of itself and weighs one.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.k8s import rights
from tests.k8s.cluster import Cluster
from tests.k8s.pods import PATIENCE_S, container_cgroup_of, drop_spaces, make_spaces, pod, run
from tests.k8s.release import NAME, NAMESPACE, Release, need_image, simulated
from tests.node.daemon.site import DECODE, STEADY
from tests.support import let_run, wait_until

TOLERATED = 0.06
WATCHED_S = 8.0
EFFECTIVE_S = 2.0
"""The bar for a change of an annotation."""
SETTLED_S = 3.0
"""What is owed is repaid in two (policy/solo.py)."""
AWAY_S = 60.0
PODS = {"ml/a": {"weight": "1"}, "ml/b": {"weight": "1"}, "web/c": {"weight": "1"}}


def said(**values: str) -> dict[str, str]:
    return {f"fairsched.io/{key}": value for key, value in values.items()}


class Told(Release):
    """A release that is told by pods."""

    asked_before = 0
    """Lines of the API server's record that are older than it."""

    def weight(self, tenant: str) -> float | None:
        """As the daemon has it; None: it has no such tenant."""
        found = [one["weight"] for one in self.ask("tenant", "list")["tenants"] if one["name"] == tenant]
        return float(found[0]) if found else None

    def settings(self, tenant: str) -> dict[str, Any]:
        """What `tenant list` says of it; empty: there is no such tenant."""
        found = [one for one in self.ask("tenant", "list")["tenants"] if one["name"] == tenant]
        return dict(found[0]) if found else {}

    def annotate(self, full: str, **values: str | None) -> None:
        """A pod, NAMESPACE/NAME, or a namespace; None takes an annotation away. `_` stands for `-`."""
        namespace, _, name = full.partition("/")
        what = ("pod", name, "-n", namespace) if name else ("namespace", namespace)
        keys = {f"fairsched.io/{key.replace('_', '-')}": value for key, value in values.items()}
        words = [f"{key}-" if value is None else f"{key}={value}" for key, value in keys.items()]
        self.cluster.kubectl("annotate", "--overwrite", *what, *words)

    def wait_weight(self, tenant: str, weight: float) -> float:
        """Seconds until a tenant weighs so much."""
        started = time.monotonic()
        wait_until(lambda: self.weight(tenant) == weight, PATIENCE_S, f"{tenant} weighs {weight:g}")
        return time.monotonic() - started

    def wait_settled(self) -> None:
        """Debts of before a change are paid, or forgotten."""
        let_run(SETTLED_S)

    def warnings(self) -> str:
        return " ".join(self.status()["warnings"])


@pytest.fixture(scope="module")
def told(cluster: Cluster) -> Iterator[Told]:
    need_image(cluster)
    with simulated() as gpu:
        found = Told(cluster, gpu)
        found.asked_before = len(cluster.audited())
        spaces = {"ml": said(weight="3"), "web": {}}
        make_spaces(cluster, **spaces)
        try:
            places = {}
            for full, values in PODS.items():
                namespace, _, name = full.partition("/")
                document = pod(name, namespace=namespace, annotations=said(**values))
                places[full] = container_cgroup_of(run(cluster, document))
            found.install({"kubernetes": {"watch_pods": True}})
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
            drop_spaces(cluster, *spaces)


def test_namespaces_divide_the_gpu_and_pods_their_namespaces_part(told: Told) -> None:
    assert told.wait_weight("ml", 3) < PATIENCE_S
    wait_until(
        lambda: {one["name"] for one in told.status()["tenants"] if one["used_ratio"]} >= set(PODS),
        PATIENCE_S,
        "all of them are accounted by their names",
    )
    got = told.shares(PODS, WATCHED_S)
    assert got == pytest.approx({"ml/a": 0.375, "ml/b": 0.375, "web/c": 0.25}, abs=TOLERATED)


def test_a_change_of_an_annotation_is_in_effect_within_two_seconds(told: Told) -> None:
    told.annotate("ml/a", weight="3")
    assert told.wait_weight("ml/a", 3) < EFFECTIVE_S
    got = told.shares(PODS, WATCHED_S)
    assert got == pytest.approx({"ml/a": 0.5625, "ml/b": 0.1875, "web/c": 0.25}, abs=TOLERATED)


def test_a_pod_gets_no_more_than_its_namespaces_part_whatever_it_says(told: Told) -> None:
    told.annotate("web/c", weight="1000000")
    told.wait_weight("web/c", 1_000_000)
    assert told.weight("web") == 1
    assert told.shares(PODS, WATCHED_S)["web/c"] == pytest.approx(0.25, abs=TOLERATED)


SAYS: dict[str, dict[str, str]] = {
    "ml": {"min": "40%", "quota": "90%", "class": "batch", "vram_limit": "16GiB"},
    "ml/a": {"min": "30%", "vram_limit": "8GiB"},
    "ml/b": {"quota": "10%", "class": "latency"},
}
HAS: dict[str, dict[str, Any]] = {
    "ml": {"min": 0.4, "quota": 0.9, "vram_limit": 16 << 30},
    "ml/a": {"min": 0.3, "quota": None, "class": "batch", "vram_limit": 8 << 30},
    "ml/b": {"min": 0.0, "quota": 0.1, "class": "latency", "vram_limit": None},
}


def test_every_key_is_in_force_and_a_quota_is_held(told: Told) -> None:
    """The class that a namespace says is its pods' default."""
    for full, values in SAYS.items():
        told.annotate(full, **values)

    def found() -> dict[str, dict[str, Any]]:
        return {full: {key: told.settings(full).get(key) for key in HAS[full]} for full in HAS}

    try:
        wait_until(lambda: found() == HAS, PATIENCE_S, f"what they say is in force: {HAS}")
        told.wait_settled()
        began, before = time.monotonic(), told.gpu.truth_ns()
        let_run(WATCHED_S)
        got = (told.gpu.truth_ns()["ml/b"] - before["ml/b"]) / 1e9 / (time.monotonic() - began)
        assert 0.1 - TOLERATED < got < 0.1 + TOLERATED, "of the GPU's time"
    finally:
        for full, values in reversed(SAYS.items()):  # a pod's min is out of its namespace's
            told.annotate(full, **dict.fromkeys(values))
    wait_until(lambda: told.settings("ml/b").get("quota") is None, PATIENCE_S, "it is over")


def test_pods_that_say_the_same_tenant_share_one_part(told: Told) -> None:
    """Two of three pods: they have half of what is their namespace's, where each by itself had a third."""
    place = container_cgroup_of(run(told.cluster, pod("e", namespace="ml", annotations=said(weight="1"))))
    told.gpu.spawn("ml/e", STEADY, place)
    told.annotate("ml/a", weight="1")
    try:
        for full in ("ml/b", "ml/e"):
            told.annotate(full, tenant="team")
        wait_until(lambda: told.weight("ml/team") == 1, PATIENCE_S, "there is a tenant of that name")
        assert told.weight("ml/b") is None and told.weight("ml/e") is None
        told.wait_settled()
        got = told.shares([*PODS, "ml/e"], WATCHED_S)
        assert got["ml/b"] + got["ml/e"] == pytest.approx(0.375, abs=TOLERATED), got
        assert got["web/c"] == pytest.approx(0.25, abs=TOLERATED), got
    finally:
        told.gpu.kill_group("ml/e")
        told.annotate("ml/b", tenant=None)
        told.annotate("ml/a", weight="3")
        told.cluster.kubectl("delete", "pod", "e", "-n", "ml", "--wait=false")
    told.wait_weight("ml/b", 1)


def test_ps_explain_and_the_metrics_call_a_pod_by_its_name(told: Told) -> None:
    assert {"ml/a", "ml/b", "web/c"} <= set(told.fairsched("ps").split())
    assert "ml/a" in told.fairsched("explain", "ml/a")
    where = f"/api/v1/namespaces/{NAMESPACE}/pods/{told.pod()['metadata']['name']}:9477/proxy/metrics"
    wait_until(lambda: 'tenant="ml/a"' in told.cluster.text(where), PATIENCE_S, "the metrics name it")


def test_what_cannot_be_understood_keeps_the_default_and_an_event_says_why(told: Told) -> None:
    told.annotate("ml/b", weight="heavy")
    text = "fairsched.io/weight: 'heavy': it is not a number"
    wait_until(lambda: f"ml/b: {text}" in told.warnings(), PATIENCE_S, "the status says so")
    assert told.tenant("ml/b")["weight"] == 1

    def events() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = told.cluster.get("events", "-n", "ml")["items"]
        return [one for one in found if one["reason"] == "FairschedNotUnderstood"]

    wait_until(lambda: bool(events()), PATIENCE_S, "there is an event")
    (event,) = events()
    assert event["message"] == text and event["involvedObject"]["name"] == "b"
    told.annotate("ml/b", weight="1")
    wait_until(lambda: "heavy" not in told.warnings(), PATIENCE_S, "it is over")


def test_a_pod_that_goes_is_a_tenant_no_more(told: Told) -> None:
    document = pod("d", namespace="ml", annotations=said(weight="5"))
    run(told.cluster, document)
    told.wait_weight("ml/d", 5)
    told.cluster.kubectl("delete", "pod", "d", "-n", "ml", "--wait")
    wait_until(lambda: told.weight("ml/d") is None, PATIENCE_S, "it has gone")


def test_while_the_api_server_is_away_all_stays_as_it_was_said_last(told: Told) -> None:
    """Also for a daemon that was started meanwhile. Afterwards the watch goes on."""
    cluster = told.cluster
    cluster.stop("kube-apiserver")
    try:
        wait_until(
            lambda: "the API server has told nothing for" in told.warnings(), AWAY_S, "the status says so"
        )
        pid = told.host_pid()
        os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: told.is_answering() and told.host_pid() != pid, AWAY_S, "the kubelet starts another"
        )
        assert [told.weight(one) for one in ("ml", "ml/a", "web")] == [3, 3, 1]
        got = told.shares(PODS, WATCHED_S)
        assert got["web/c"] == pytest.approx(0.25, abs=TOLERATED), got
    finally:
        cluster.start_api_server()
    told.annotate("ml/a", weight="2")
    told.wait_weight("ml/a", 2)
    wait_until(lambda: "the API server has told nothing" not in told.warnings(), AWAY_S, "it is over")
    cluster.restart_those_who_waited()


def test_the_agent_has_asked_for_all_that_it_may_and_for_nothing_else(told: Told) -> None:
    """By the API server's own record and rules."""
    rights.check(told.cluster, rights.account(NAMESPACE, NAME), NAMESPACE, "ml", since=told.asked_before)
