# SPDX-License-Identifier: Apache-2.0
"""A pod on the real kubelet: it runs, has its cgroup, can be entered, can be frozen, and leaves nothing."""

from __future__ import annotations

from tests.k8s.cluster import Cluster
from tests.k8s.pods import PATIENCE_S, cgroup_of, container_cgroup_of, pod, run
from tests.support import wait_until


def test_the_kubelet_is_of_the_line_that_was_pinned(cluster: Cluster) -> None:
    node = cluster.get("node", "node1")
    assert node["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.34.")


def test_a_pod_runs_in_a_cgroup_that_goes_with_it(cluster: Cluster) -> None:
    document = run(cluster, pod("one"))
    where, inner = cgroup_of(document), container_cgroup_of(document)
    assert inner.is_dir() and (inner / "cgroup.procs").read_text().split()
    assert cluster.kubectl("exec", "one", "--", "/bin/echo", "hello").strip() == "hello"

    cluster.kubectl("delete", "pod", "one", "--wait")
    wait_until(lambda: not where.exists(), PATIENCE_S, "its cgroup is gone")


def test_a_frozen_pod_stays_running_in_the_eyes_of_its_kubelet(cluster: Cluster) -> None:
    document = run(cluster, pod("two"))
    where = cgroup_of(document)
    (where / "cgroup.freeze").write_text("1")
    try:
        wait_until(lambda: "frozen 1" in (where / "cgroup.events").read_text(), PATIENCE_S, "it is frozen")
        assert cluster.phase("two") == "Running"
    finally:
        (where / "cgroup.freeze").write_text("0")
    cluster.kubectl("delete", "pod", "two", "--wait")
    wait_until(lambda: not where.exists(), PATIENCE_S, "its cgroup is gone")
