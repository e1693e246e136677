# SPDX-License-Identifier: Apache-2.0
"""Kueue's real controller on the example of packaging/kubernetes/kueue: quotas, borrowing, reclaiming.

The jobs' pods are given to a node of kwok's: what is looked at is who is admitted.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.k8s.cluster import Cluster
from tests.k8s.fake_nodes import fake_node, fake_nodes
from tests.k8s.kueue import EXAMPLE, admitted, job
from tests.k8s.pods import PATIENCE_S
from tests.k8s.release import GPU_LABEL
from tests.support import wait_until

GPUS = 8
"""Of both teams together."""
OWN = 4
"""A team's."""


@pytest.fixture(scope="module")
def queues(cluster: Cluster, with_kueue: None) -> Iterator[Cluster]:
    node = fake_node("gpu-node", {"nvidia.com/gpu": str(GPUS)})
    node["metadata"]["labels"][GPU_LABEL] = "true"
    with fake_nodes(cluster, [node]):
        cluster.kubectl("apply", "-k", str(EXAMPLE))
        try:
            yield cluster
        finally:
            cluster.kubectl("delete", "job", "--all", "-n", "research", "--wait=false")
            cluster.kubectl("delete", "job", "--all", "-n", "serving", "--wait=false")
            cluster.kubectl("delete", "-k", str(EXAMPLE), timeout_s=120)


def submit(cluster: Cluster, namespace: str, *names: str) -> None:
    cluster.apply(*(job(name, namespace) for name in names))


def test_a_team_borrows_what_the_other_leaves(queues: Cluster) -> None:
    """Ten are asked for, the cohort has eight, and the team's own are four."""
    submit(queues, "research", *(f"train-{number}" for number in range(10)))
    wait_until(lambda: len(admitted(queues, "research")) == GPUS, PATIENCE_S, "it has all that there is")


def test_a_team_gets_its_quota_back_from_who_has_borrowed_it(queues: Cluster) -> None:
    submit(queues, "serving", *(f"serve-{number}" for number in range(6)))
    wait_until(
        lambda: (len(admitted(queues, "serving")), len(admitted(queues, "research"))) == (OWN, OWN),
        PATIENCE_S,
        "each has its own quota",
    )


def test_what_a_team_gives_up_is_borrowed_again(queues: Cluster) -> None:
    queues.kubectl("delete", "job", "--all", "-n", "serving")
    wait_until(lambda: len(admitted(queues, "research")) == GPUS, PATIENCE_S, "research has all again")


def test_the_pods_of_an_admitted_job_name_its_queue(queues: Cluster) -> None:
    found = queues.get("pods", "-n", "research")["items"]
    assert {one["metadata"]["labels"].get("kueue.x-k8s.io/local-queue-name") for one in found} == {"gpus"}


def test_a_queue_that_is_not_there_admits_nobody(queues: Cluster) -> None:
    queues.apply(job("lost", "serving", queue="no-such-queue"))
    wait_until(
        lambda: bool(queues.get("workloads.kueue.x-k8s.io", "-n", "serving")["items"]),
        PATIENCE_S,
        "it is seen",
    )
    assert "lost" not in admitted(queues, "serving")
