# SPDX-License-Identifier: Apache-2.0
"""More nodes than there are: kwok keeps them Ready and says of the pods bound to them that they run.

Until they are deleted, those of Jobs as well: by default kwok has these end at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.k8s.cluster import Cluster
from tests.k8s.places import CACHE
from tests.k8s.pods import PATIENCE_S
from tests.support import wait_until
from tests.unit.repo.tree import ROOT

MARK = "kwok.x-k8s.io/node"
STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-delete.yaml",
)
"""Of kwok's own: what happens to a node and to a pod."""


def stages() -> list[Path]:
    """Where they are, as Go has fetched them."""
    pinned = yaml.safe_load((ROOT / "tests/k8s/parts.yaml").read_text())["kwok"]
    return [CACHE / "mod" / f"{pinned['module']}@{pinned['version']}/kustomize/stage" / one for one in STAGES]


def fake_node(name: str, capacity: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A Node that says of itself that it is not real, with room for pods and what else is given."""
    room = {"cpu": "64", "memory": "512Gi", "pods": "110", **(capacity or {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {MARK: "fake"},
            "labels": {"type": "kwok", "kubernetes.io/hostname": name},
        },
        "status": {"capacity": room, "allocatable": room},
    }


@contextlib.contextmanager
def fake_nodes(cluster: Cluster, nodes: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """These nodes, Ready; with them go the pods that are bound to them."""
    names = [node["metadata"]["name"] for node in nodes]
    cluster.run(
        "kwok",
        f"--kubeconfig={cluster.kubeconfig}",
        f"--manage-nodes-with-annotation-selector={MARK}=fake",
        "--node-lease-duration-seconds=40",
        *(f"--config={path}" for path in stages()),
    )
    try:
        cluster.apply(*nodes)
        wait_until(lambda: ready(cluster) >= set(names), PATIENCE_S, "the nodes that are not there are ready")
        yield
    finally:
        with contextlib.suppress(Exception):
            cluster.kubectl("delete", "node", "-l", "type=kwok", "--wait=false", timeout_s=120)
        cluster.stop("kwok")


def ready(cluster: Cluster) -> set[str]:
    """Names of the nodes that are not real and Ready."""
    return {
        node["metadata"]["name"]
        for node in cluster.get("nodes", "-l", "type=kwok")["items"]
        for one in node["status"].get("conditions", ())
        if one["type"] == "Ready" and one["status"] == "True"
    }
