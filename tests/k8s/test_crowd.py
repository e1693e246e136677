# SPDX-License-Identifier: Apache-2.0
"""A hundred nodes of thirty pods, and thirty-two policies: what the controller takes, on the real API server.

The nodes are kwok's; the controller is a process beside it, so that its processor time and memory can be read.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.k8s.policies.crd import definition
from fairsched.simgpu.daemon_process import COMMAND
from tests.k8s.cluster import Cluster
from tests.k8s.crowd import FAKE, NODES, PODS_EACH, SPACES
from tests.k8s.places import BIN
from tests.support import let_run, wait_until
from tests.unit.repo.tree import ROOT

CONVERGED_S = 30.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
"""Who enters the node's namespaces is in no directory of ours."""
MOST_CORES = 1.0
MOST_BYTES = 300_000_000
QUIET_S = 5.0
PATIENCE_S = 60.0
CRD = "gpusharepolicies.fairsched.io"


class Crowd:
    """The cluster with the crowd, and a controller."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.process: subprocess.Popen[bytes] | None = None

    def call(self, what: str) -> None:
        command = [sys.executable, "-m", "tests.k8s.crowd", str(self.cluster.kubeconfig), what]
        done = subprocess.run(
            self.cluster.inside(*command), env=ENVIRONMENT, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr[-2000:]

    def start(self) -> None:
        """The controller."""
        command = [*COMMAND, "k8s", "controller", "--namespace", "default"]
        where = ["--kubeconfig", str(self.cluster.kubeconfig)]
        with open(self.cluster.directory / "controller.log", "wb") as log:
            self.process = subprocess.Popen(
                self.cluster.inside(*command, *where), env=ENVIRONMENT, stderr=log
            )

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def cpu_s(self) -> float:
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def most_bytes(self) -> int:
        """Of memory, since it was started."""
        assert self.process is not None
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        (line,) = [line for line in lines if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024

    def statuses(self) -> list[dict[str, Any]]:
        return [one.get("status", {}) for one in self.cluster.get("gpusharepolicies")["items"]]

    def is_counted(self) -> bool:
        """Every policy has a status, and together they reach every pod."""
        found = self.statuses()
        return all(found) and sum(one["pods"] for one in found) == NODES * PODS_EACH


def policies() -> list[dict[str, Any]]:
    """One of each namespace, and two that meet these."""
    rules = [{"selector": {"matchLabels": {"tier": "serving"}}, "weight": 2}, {"class": "batch"}]
    specs: dict[str, Any] = {
        f"team-{number:02}": {"namespaces": {"names": [f"team-{number:02}"]}, "pods": rules}
        for number in range(SPACES)
    }
    specs["gold"] = {"namespaces": {"selector": {"matchLabels": {"tier": "gold"}}}, "share": {"weight": 5}}
    specs["all"] = {"namespaces": {"selector": {}}, "share": {"weight": 1}}
    kind = {"apiVersion": "fairsched.io/v1alpha1", "kind": "GpuSharePolicy"}
    return [{**kind, "metadata": {"name": name}, "spec": spec} for name, spec in specs.items()]


@pytest.fixture
def crowd(cluster: Cluster) -> Iterator[Crowd]:
    if not (BIN / "kwok").exists():
        pytest.skip("no kwok: sudo make setup-k8s")
    found = Crowd(cluster)
    cluster.apply(definition())
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=30s")
    cluster.run(
        "kwok",
        f"--kubeconfig={cluster.kubeconfig}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={FAKE}=fake",
    )
    try:
        found.call("make")
        cluster.apply(*policies())
        yield found
    finally:
        if found.process is not None:
            found.process.kill()
            found.process.wait()
        found.call("remove")
        cluster.stop("kwok")
        cluster.kubectl("delete", "crd", CRD, "--ignore-not-found")
        cluster.kubectl("delete", "lease", "fairsched-policies", "-n", "default", "--ignore-not-found")


def test_the_controller_of_a_crowd_is_small_and_soon_done(crowd: Crowd) -> None:
    started = time.monotonic()
    crowd.start()
    wait_until(crowd.is_counted, CONVERGED_S, "all statuses are written")
    cold_s, cold_cpu_s = time.monotonic() - started, crowd.cpu_s()

    before_s = crowd.cpu_s()
    let_run(QUIET_S)
    quiet = (crowd.cpu_s() - before_s) / QUIET_S

    before_s, started = crowd.cpu_s(), time.monotonic()
    crowd.call("churn")
    gone_s = time.monotonic()
    wait_until(crowd.is_counted, CONVERGED_S, "they are right again")
    settled_s, churn = time.monotonic() - gone_s, (crowd.cpu_s() - before_s) / (time.monotonic() - started)

    measured = (
        f"cold {cold_s:.1f} s with {cold_cpu_s:.2f} s of a processor; quiet {quiet:.3f} cores; "
        f"a tenth of the pods replaced: {churn:.2f} cores, right {settled_s:.1f} s after the last; "
        f"{crowd.most_bytes() / 1e6:.0f} MB"
    )
    print(measured)
    assert quiet < MOST_CORES and churn < MOST_CORES and cold_cpu_s / cold_s < MOST_CORES, measured
    assert crowd.most_bytes() < MOST_BYTES, measured
    assert crowd.stop() == 0
