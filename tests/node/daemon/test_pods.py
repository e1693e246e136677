# SPDX-License-Identifier: Apache-2.0
"""Escalation among real pods: the daemon's own ladder evicts one, and only the GPU is simulated.

    FAIRSCHED_FULL=1 FAIRSCHED_KUBECONFIG=/path/to/admin.conf pytest tests/node/daemon/test_pods.py

A tenant is the cgroup of a pod that the kubelet of this machine made. No image has our libcuda, so its work comes from
processes of ours in that cgroup. tests/unit/companion/escalate/cluster.py says what cluster it wants.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairsched.companion.escalate.evict import MARK
from tests.node.daemon.site import DECODE, PATIENCE_S, STEADY, Site, is_asked, logged
from tests.node.daemon.test_escalation import QUICK, outcomes
from tests.support import wait_until
from tests.unit.companion.escalate.cluster import (
    KUBECONFIG,
    LABEL,
    PLACE,
    Cluster,
    needs_cluster,
    scratch,
    uid,
)

pytestmark = needs_cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with scratch() as found:
        yield found


def service_account_config(cluster: Cluster, directory: Path) -> Path:
    """The administrator's kubeconfig with the token of the service account in the place of his."""
    document: dict[str, Any] = yaml.safe_load(Path(KUBECONFIG).read_text())
    for user in document["users"]:
        user["user"] = {"token": cluster.service_account().token}
    path = directory / "service-account.conf"
    path.write_text(yaml.safe_dump(document))
    return path


def container_cgroup(site: Site, pod: dict[str, Any]) -> Path:
    """That of the pod's container, as the runtime made it."""
    (status,) = pod["status"]["containerStatuses"]
    container_id = status["containerID"].partition("://")[2]
    (found,) = Path(site.mount.absolute("/")).glob(f"kubepods*/**/pod{uid(pod)}/{container_id}")
    return found


def test_a_pod_that_makes_another_wait_is_moved_away(site: Site, cluster: Cluster, tmp_path: Path) -> None:
    """The lowest priority is guarded by its budget, so the next goes; who waits stays, and so does the node."""
    before = cluster.pods()
    root = Path(site.mount.absolute("/"))
    places = {name: container_cgroup(site, pod) for name, pod in before.items()}
    tenants = {
        name: {
            "cgroup": str(place.parent.relative_to(root)),
            "class": "latency" if name == "high" else "batch",
        }
        for name, place in places.items()
    }
    site.configure(tenants)
    site.start()
    workers = [site.spawn("high", DECODE, places["high"])]
    wait_until(lambda: logged(site.log(), "library=.* probes=[1-9]"), PATIENCE_S, "libcuda has its probes")
    workers += [site.spawn(name, STEADY, places[name]) for name in ("guarded", "low", "low", "low")]
    wait_until(lambda: is_asked(places["low"].parent), PATIENCE_S, "a pod is held")
    listed = json.loads(site.cli("ps", "--json", "--config", str(site.config_path)).stdout)
    assert {(one["tenant"], one["pod_uid"]) for one in listed} == {
        (name, uid(pod)) for name, pod in before.items()
    }
    assert cluster.is_running("guarded", "low", "high"), "its kubelet thinks nothing of it"

    site.configure(
        tenants,
        escalation={
            **QUICK,
            "ladder": ["evict"],
            "evict": {"namespaces": [PLACE], "labels": {LABEL: "true"}, "wait_s": 30, "cool_down_s": 1},
            "kubernetes": {
                "kubeconfig": str(service_account_config(cluster, tmp_path)),
                "node": cluster.node,
            },
        },
    )
    os.kill(site.pid, signal.SIGHUP)
    wait_until(lambda: bool(outcomes(site)), 2 * PATIENCE_S, "the ladder has acted")
    assert outcomes(site)[0] == ("apply", "done"), site.log()
    assert cluster.spec()["unschedulable"]
    assert MARK in cluster.admin.node(cluster.node)["metadata"]["annotations"]
    after = cluster.pods()
    assert uid(after["high"]) == uid(before["high"]) and uid(after["guarded"]) == uid(before["guarded"])
    assert "low" not in after or uid(after["low"]) != uid(before["low"])

    for worker in workers:
        worker.kill()
    wait_until(
        lambda: outcomes(site)[-1] == ("rollback", "rolled_back"), 2 * PATIENCE_S, "nobody waits any more"
    )
    assert not cluster.spec().get("unschedulable")
    wait_until(lambda: cluster.is_running("guarded", "low", "high"), PATIENCE_S, "it has a place again")
    assert site.stop() == 0
    assert not [path for path in root.glob("kubepods*/**/cgroup.freeze") if path.read_text().strip() == "1"]
