# SPDX-License-Identifier: Apache-2.0
"""No share moves by more than two points over the minute in which an agent goes, and no pod is started again.

Three pods of two namespaces want all of the GPU. While there is no agent nobody is held, and all have the same. The
minute in which the API server is away is test_policies.py's.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from fairsched.simgpu.daemon_process import is_running
from tests.k8s.cluster import Cluster
from tests.k8s.pods import PATIENCE_S, container_cgroup_of, drop_spaces, lives, make_spaces, pod, run
from tests.k8s.release import NAME, NAMESPACE, need_image, simulated
from tests.k8s.test_tenants import Told, said
from tests.node.daemon.site import DECODE, STEADY
from tests.support import let_run, wait_until

ENTITLED = {"ml/a": 0.5, "ml/b": 0.25, "web/c": 0.25}
MOVED = 0.02
"""The bar: no share by more than two points."""
MINUTE_S = 60.0
SHORT_S = 20.0


class Steady(Told):
    """A release whose pods are watched."""

    def during(self, seconds: float, happens: Callable[[], object]) -> dict[str, float]:
        """The shares of so long, at whose beginning this happens; nobody is started again."""
        alive = lives(self.cluster, ENTITLED)
        before, end_s = self.gpu.truth_ns(), time.monotonic() + seconds
        happens()
        let_run(max(0.0, end_s - time.monotonic()))
        after = self.gpu.truth_ns()
        assert lives(self.cluster, ENTITLED) == alive
        got = {name: after[name] - before[name] for name in ENTITLED}
        return {name: value / sum(got.values()) for name, value in got.items()}

    def wait_held(self) -> None:
        """Shares are what they should be."""
        wait_until(
            lambda: self.shares(ENTITLED, 4.0) == pytest.approx(ENTITLED, abs=MOVED),
            PATIENCE_S,
            "shares hold",
        )


@pytest.fixture(scope="module")
def steady(cluster: Cluster) -> Iterator[Steady]:
    need_image(cluster)
    with simulated() as gpu:
        found = Steady(cluster, gpu)
        make_spaces(cluster, ml=said(weight="3"), web={})
        try:
            weights = {"ml/a": "2", "ml/b": "1", "web/c": "1"}
            places = {}
            for full in ENTITLED:
                namespace, _, name = full.partition("/")
                document = pod(name, namespace=namespace, annotations=said(weight=weights[full]))
                places[full] = container_cgroup_of(run(cluster, document))
            found.install({"kubernetes": {"watch_pods": True}})
            first = gpu.spawn("first", DECODE, places["ml/a"])
            wait_until(lambda: "probes=" in found.log(), PATIENCE_S, "libcuda has its probes")
            first.kill()
            for full, place in places.items():
                gpu.spawn(full, STEADY, place)
            found.wait_held()
            yield found
        finally:
            found.uninstall()
            for full in (*ENTITLED, "first"):
                gpu.kill_group(full)
            drop_spaces(cluster, "ml", "web")


def judge(got: dict[str, float]) -> None:
    print({name: round(value, 4) for name, value in got.items()})
    assert got == pytest.approx(ENTITLED, abs=MOVED)


def test_nothing_happens(steady: Steady) -> None:
    """What the others are compared with."""
    judge(steady.during(SHORT_S, lambda: None))


def test_an_agent_is_killed(steady: Steady) -> None:
    """The kubelet starts it again; nobody is held meanwhile."""
    pid = steady.host_pid()
    judge(steady.during(MINUTE_S, lambda: os.kill(pid, signal.SIGKILL)))
    assert not is_running(pid) and steady.is_answering()


def test_an_agent_is_replaced(steady: Steady) -> None:
    steady.wait_ready()
    name = steady.pod()["metadata"]["name"]

    def restart() -> None:
        steady.cluster.kubectl("rollout", "restart", f"ds/{NAME}", "-n", NAMESPACE)

    judge(steady.during(MINUTE_S, restart))
    steady.wait_replaced(name)


def test_the_kubelet_is_started_again(steady: Steady) -> None:
    def restart() -> None:
        steady.cluster.stop("kubelet")
        steady.cluster.start_kubelet()

    judge(steady.during(SHORT_S, restart))
