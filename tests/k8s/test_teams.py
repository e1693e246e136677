# SPDX-License-Identifier: Apache-2.0
"""Teams of Kueue on a node: Jobs that its controller lets in weigh what their queues say, and the loop is closed.

Real: Kueue, the kubelet and its pods, the chart with two replicas of the controller, Prometheus. The GPU is simulated.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from fairsched.k8s.client import Refused
from fairsched.k8s.teams.queues import KEY, queues_of
from tests.k8s import network, rights
from tests.k8s.cluster import NODE, Cluster
from tests.k8s.kueue import EXAMPLE, job
from tests.k8s.pods import PATIENCE_S, container_cgroup_of, gpus_on_the_node
from tests.k8s.release import API, GPU_LABEL, NAMESPACE, Release, need_image, simulated
from tests.k8s.settings import ADDRESS
from tests.node.daemon.site import DECODE, STEADY
from tests.support import wait_until

TEAMS = ("research", "serving")
NAME = "fairsched-teams"
TOLERATED = 0.06
WATCHED_S = 8.0
EFFECTIVE_S = 2.0
"""The bar for a change of what the cluster says."""
CONVERGED_S = 30.0
"""The bar for the loop, from when Prometheus has data."""
PORT = 9090
SCRAPE_S = 1
PAID_S = 20.0
"""Of the window of a minute: so long the GPU goes to whom it is owed."""


class Shared(Release):
    """A release on a node where two teams' Jobs keep the GPU busy."""

    asked_before = 0
    """Lines of the API server's record that are older than it."""

    def enforce(self, mode: str = "enforce", **teams: Any) -> None:
        env = [{"name": name, "value": value} for name, value in API.items()]
        self.install(
            {"mode": mode, "kubernetes": {"watch_pods": True}, "metrics": {"listen": "0.0.0.0:9477"}},
            teams={"enabled": True, "extraEnv": env, "window": "60s", **teams},
        )

    def written(self, namespace: str) -> float | None:
        """What the annotation says of its only queue."""
        annotations = self.cluster.get("namespace", namespace)["metadata"].get("annotations", {})
        queues = queues_of(annotations[KEY]) if KEY in annotations else None
        return queues["gpus"].weight if queues else None

    def weight(self, tenant: str) -> float | None:
        """As the daemon has it."""
        found = [one["weight"] for one in self.ask("tenant", "list")["tenants"] if one["name"] == tenant]
        return float(found[0]) if found else None

    def wait_weight(self, tenant: str, weight: float) -> float:
        """Seconds until a tenant weighs so much."""
        started = time.monotonic()
        wait_until(lambda: self.weight(tenant) == weight, PATIENCE_S, f"{tenant} weighs {weight:g}")
        return time.monotonic() - started

    def pod_of(self, namespace: str) -> dict[str, Any] | None:
        found = self.cluster.get("pods", "-n", namespace)["items"]
        running = [one for one in found if one["status"].get("phase") == "Running"]
        return running[0] if running else None

    def holder(self) -> str:
        spec = self.cluster.get("lease", NAME, "-n", NAMESPACE)["spec"]
        return str(spec.get("holderIdentity") or "").partition("_")[0]

    def replicas(self) -> set[str]:
        selector = "app.kubernetes.io/name=fairsched-teams"
        found = self.cluster.get("pods", "-n", NAMESPACE, "-l", selector)["items"]
        return {one["metadata"]["name"] for one in found if one["status"].get("phase") == "Running"}


@pytest.fixture(scope="module")
def shared(cluster: Cluster, with_kueue: None) -> Iterator[Shared]:
    need_image(cluster)
    with gpus_on_the_node(cluster, 8), simulated() as gpu:
        found = Shared(cluster, gpu)
        found.asked_before = len(cluster.audited())
        cluster.kubectl("label", "node", NODE, f"{GPU_LABEL}=true", "--overwrite")
        cluster.kubectl("apply", "-k", str(EXAMPLE))
        try:
            cluster.apply(*(job("work", team) for team in TEAMS))
            wait_until(
                lambda: all(found.pod_of(team) is not None for team in TEAMS),
                PATIENCE_S,
                "both are let in and run",
            )
            places = {team: container_cgroup_of(found.pod_of(team) or {}) for team in TEAMS}
            found.enforce()
            first = gpu.spawn("first", DECODE, places["research"])
            wait_until(lambda: "probes=" in found.log(), PATIENCE_S, "libcuda has its probes")
            first.kill()
            for team, place in places.items():
                gpu.spawn(team, STEADY, place)
            yield found
        finally:
            found.uninstall()
            for name in (*TEAMS, "first"):
                gpu.kill_group(name)
            for team in TEAMS:
                cluster.kubectl("delete", "job", "--all", "-n", team, "--ignore-not-found")
            cluster.kubectl("delete", "-k", str(EXAMPLE), "--ignore-not-found", timeout_s=120)


def test_jobs_that_were_let_in_weigh_on_the_node_what_their_teams_do(shared: Shared) -> None:
    wait_until(
        lambda: [shared.written(team) for team in TEAMS] == [1, 3], PATIENCE_S, "the namespaces say it"
    )
    shared.wait_weight("serving", 3)
    shared.wait_weight("research", 1)
    got = shared.shares(TEAMS, WATCHED_S)
    assert got == pytest.approx({"research": 0.25, "serving": 0.75}, abs=TOLERATED)


def test_another_weight_of_a_cluster_queue_is_in_effect_within_two_seconds(shared: Shared) -> None:
    def weigh(weight: str) -> float:
        patch = json.dumps({"spec": {"fairSharing": {"weight": weight}}})
        shared.cluster.kubectl("patch", "clusterqueue", "research", "--type=merge", "-p", patch)
        return shared.wait_weight("research", float(weight))

    took_s = [weigh("9"), weigh("1")]
    print(f"effective after {took_s} s")
    assert max(took_s) < EFFECTIVE_S


def test_a_person_goes_before_the_team(shared: Shared) -> None:
    shared.cluster.kubectl("annotate", "namespace", "research", "fairsched.io/weight=5")
    shared.wait_weight("research", 5)
    assert shared.written("research") == 1, "and neither is written over"
    shared.cluster.kubectl("annotate", "namespace", "research", "fairsched.io/weight-")
    shared.wait_weight("research", 1)


def test_its_account_may_write_its_annotation_and_nothing_else_of_a_namespace(shared: Shared) -> None:
    """RBAC alone would let it say what is let in there."""
    client = network.as_account(shared.cluster, NAMESPACE, NAME)
    path = "/api/v1/namespaces/research"
    with network.inside(shared.cluster):
        for metadata in (
            {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
            {"annotations": {"fairsched.io/weight": "1000"}},
            {"annotations": {"other": "x", KEY: "gpus=research:1"}},
            {"finalizers": ["example.com/never"]},
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "1"}]},
        ):
            with pytest.raises(Refused, match="teams may"):
                client.patch(path, {"metadata": metadata})
        client.patch(path, {"metadata": {"annotations": {KEY: "gpus=research:1.000"}}})
    shared.cluster.kubectl("annotate", "namespace", "research", "note=of-a-person")
    for verb, what in (
        ("delete", "namespaces"),
        ("create", "namespaces"),
        ("get", "secrets"),
        ("list", "pods"),
    ):
        account = f"--as=system:serviceaccount:{NAMESPACE}:{NAME}"
        assert not shared.cluster.answers("auth", "can-i", verb, what, "--all-namespaces", account), (
            f"{verb} {what}"
        )


def test_one_of_two_writes_and_when_it_goes_the_other_does(shared: Shared) -> None:
    wait_until(lambda: len(shared.replicas()) == 2, PATIENCE_S, "there are two")
    first = shared.holder()
    assert first in shared.replicas()
    shared.cluster.kubectl("delete", "pod", first, "-n", NAMESPACE, "--wait=false")
    wait_until(lambda: shared.holder() not in ("", first), PATIENCE_S, "another has the Lease")
    shared.cluster.kubectl("annotate", "namespace", "serving", f"{KEY}-")
    wait_until(lambda: shared.written("serving") == 3, PATIENCE_S, "it writes")


@contextlib.contextmanager
def prometheus(shared: Shared) -> Iterator[str]:
    """A real one, on the node, that asks the agent that :func:`aim` names; its address."""
    top = shared.cluster.directory / "prometheus"
    top.mkdir()
    jobs = [{"job_name": "fairsched", "file_sd_configs": [{"files": [str(top / "agents.json")]}]}]
    aim(shared)
    settings = top / "prometheus.yml"
    settings.write_text(
        yaml.safe_dump({"global": {"scrape_interval": f"{SCRAPE_S}s"}, "scrape_configs": jobs})
    )
    command = [
        str(shutil.which("prometheus")),
        f"--config.file={settings}",
        f"--storage.tsdb.path={top / 'data'}",
        f"--web.listen-address={ADDRESS}:{PORT}",
    ]
    with open(top / "log", "wb") as log:
        process = subprocess.Popen(shared.cluster.inside(*command), stdout=log, stderr=log)
    try:
        yield f"http://{ADDRESS}:{PORT}"
    finally:
        process.kill()
        process.wait()


def aim(shared: Shared) -> None:
    """Prometheus asks the agent that is there now."""
    target = {"targets": [f"{shared.pod()['status']['podIP']}:9477"]}
    whole = shared.cluster.directory / "prometheus/agents.new"
    whole.write_text(json.dumps([target]))
    whole.rename(whole.with_name("agents.json"))


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus: apt-get install prometheus")
def test_a_team_that_gets_less_than_its_part_weighs_more_within_its_bounds(shared: Shared) -> None:
    """Nobody is held, so that both get half of the GPU, of which serving is entitled to three quarters.

    Four fifths of the errors, ln 1.5 and ln .5: 3 becomes 4.15, and 1 becomes .57.
    """
    shared.enforce("observe")
    with prometheus(shared) as url:
        shared.enforce("observe", prometheus=url)
        shared.cluster.kubectl("rollout", "status", f"deployment/{NAME}", "-n", NAMESPACE, "--timeout=60s")
        started = time.monotonic()
        wait_until(lambda: (shared.written("serving") or 0) > 3.9, 2 * PATIENCE_S, "it is corrected")
        wait_until(lambda: (shared.written("research") or 9) < 0.61, PATIENCE_S, "and so is the other")
        took_s = time.monotonic() - started
        print(f"corrected after {took_s:.1f} s: {[shared.written(team) for team in TEAMS]}")
        assert took_s < CONVERGED_S
        assert (shared.written("serving") or 0) <= 6 and (shared.written("research") or 0) >= 0.5
        got = shared.shares(TEAMS, WATCHED_S)
        assert got == pytest.approx({"research": 0.5, "serving": 0.5}, abs=TOLERATED), "nobody is held"

        # From now on they are held to what was corrected: what serving lacks of this minute is made up for.
        shared.enforce("enforce", prometheus=url)
        aim(shared)
        paid = shared.shares(TEAMS, PAID_S)["serving"]
        print(f"serving had {paid:.3f} of the GPU for {PAID_S:g} s, of which it is owed .75")
        assert paid > 0.75 + TOLERATED
        wait_until(lambda: (shared.written("serving") or 9) < 3.3, 2 * PATIENCE_S, "the error is gone")
        got = shared.shares(TEAMS, WATCHED_S)
        assert got == pytest.approx({"research": 0.25, "serving": 0.75}, abs=TOLERATED)
        held = [shared.written(team) for team in TEAMS]
    assert "teams=failed" not in controllers(shared)
    wait_until(
        lambda: "teams=held what=prometheus" in controllers(shared), PATIENCE_S, "it says that it is silent"
    )
    assert [shared.written(team) for team in TEAMS] == held, "what was written last holds"


def controllers(shared: Shared) -> str:
    """Their logs."""
    return shared.cluster.kubectl(
        "logs", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=fairsched-teams", "--tail=-1"
    )


def test_the_controller_has_asked_for_all_that_it_may_and_for_nothing_else(shared: Shared) -> None:
    """By the API server's own record and rules, but for what a test has asked as it."""
    rights.check(
        shared.cluster, rights.account(NAMESPACE, NAME), NAMESPACE, "research", since=shared.asked_before
    )


def test_uninstalled_it_leaves_weights_as_they_are(shared: Shared) -> None:
    shared.uninstall()
    assert shared.written("serving") is not None
    left = shared.cluster.kubectl("get", "validatingadmissionpolicy,clusterrole,deployment", "-A")
    assert NAME not in left
