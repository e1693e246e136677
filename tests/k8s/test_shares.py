# SPDX-License-Identifier: Apache-2.0
"""Two pods are tenants by their names, and their shares of the simulated GPU are held.

The daemon runs as on the node, in its mount namespace, where the names of pods lie. No image has the simulated libcuda:
the work comes from processes of ours in the containers' cgroups.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.k8s.cluster import Cluster
from tests.k8s.pods import PATIENCE_S, container_cgroup_of, pod, run
from tests.node.daemon.site import COMMAND, DECODE, STEADY, Site, logged
from tests.support import wait_until

NAMES = ("heavy", "light")
WEIGHTS = {"heavy": 3, "light": 1}
TOLERATED = 0.06
WATCHED_S = 8.0


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[Site]:
    node = Site(tmp_path)
    node.command = cluster.inside(*COMMAND)
    try:
        yield node
    finally:
        node.close()


def test_pods_are_tenants_by_name_and_their_shares_are_held(cluster: Cluster, site: Site) -> None:
    pods = {name: run(cluster, pod(name)) for name in NAMES}
    places = {name: container_cgroup_of(document) for name, document in pods.items()}
    site.daemon.configure(
        {
            "mode": "enforce",
            "mechanisms": {"ebpf": "required"},
            "tenants": {
                name: {"weight": WEIGHTS[name], "match": {"pod": f"default/{name}"}} for name in NAMES
            },
        }
    )
    site.start()
    first = site.spawn("first", DECODE, places["heavy"])
    wait_until(lambda: logged(site.log(), "library=.* probes=[1-9]"), PATIENCE_S, "libcuda has its probes")
    first.kill()
    for name in NAMES:
        site.spawn(name, STEADY, places[name])
    wait_until(
        lambda: all(site.gpu_time_s(name) > 0 for name in NAMES), PATIENCE_S, "both pods are accounted"
    )
    shares = site.shares(list(NAMES), WATCHED_S)
    assert shares["heavy"] == pytest.approx(0.75, abs=TOLERATED), shares
    assert {name: cluster.phase(name) for name in NAMES} == dict.fromkeys(NAMES, "Running")

    assert site.stop() == 0
    for name in NAMES:
        assert "frozen 1" not in (places[name] / "cgroup.events").read_text()
        site.kill_group(name)
        cluster.kubectl("delete", "pod", name, "--wait")
