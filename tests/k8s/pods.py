# SPDX-License-Identifier: Apache-2.0
"""Pods that tests make, and their cgroups."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.k8s.cluster import NODE, PODS, Cluster
from tests.k8s.places import IMAGE, IS_SYSTEMD, SLOWER, UNIFIED
from tests.support import wait_until

PATIENCE_S = 60.0 * SLOWER
GONE_S = 120.0 * SLOWER


def pod(name: str, **metadata: Any) -> dict[str, Any]:
    """One container that waits to be ended, and goes at once."""
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {
            "terminationGracePeriodSeconds": 2,
            "containers": [container],
            "dnsPolicy": "Default",
            # A node of seconds has taints yet that the controllers are about to remove.
            "tolerations": [{"operator": "Exists"}],
        },
    }


def run(cluster: Cluster, document: dict[str, Any]) -> dict[str, Any]:
    """Makes the pod and returns it Running."""
    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    # The controllers give a new namespace its account, without which no pod is admitted.
    wait_until(lambda: cluster.has("serviceaccount", "default", "-n", namespace), PATIENCE_S, "an account")
    cluster.apply(document)
    try:
        wait_until(lambda: cluster.phase(name, namespace) == "Running", PATIENCE_S, f"pod {name} runs")
    except AssertionError as error:
        told = cluster.kubectl("describe", "pod", name, "-n", namespace)
        raise AssertionError(f"{error}\n{told[-1500:]}") from error
    return cluster.get("pod", name, "-n", namespace)


def lives(cluster: Cluster, pods: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Of each NAMESPACE/POD: which one it is, and how often its container was started again."""
    found = {}
    for full in pods:
        namespace, _, name = full.partition("/")
        document = cluster.get("pod", name, "-n", namespace)
        (status,) = document["status"]["containerStatuses"]
        found[full] = (document["metadata"]["uid"], status["restartCount"])
    return found


def make_spaces(cluster: Cluster, *names: str, **annotations: Mapping[str, str]) -> None:
    """Namespaces of these names, also of those with annotations; those of before have gone first."""
    for name in (*names, *annotations):
        wait_until(lambda name=name: not cluster.has("namespace", name), GONE_S, f"the old {name} is gone")
    cluster.apply(*(space(name, annotations.get(name, {})) for name in (*names, *annotations)))


def space(name: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "annotations": dict(annotations)}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def drop_spaces(cluster: Cluster, *names: str) -> None:
    """Their pods may run for a while yet: what comes next does not wait for that."""
    cluster.kubectl("delete", "namespace", *names, "--ignore-not-found", "--wait=false")


@contextlib.contextmanager
def gpus_on_the_node(cluster: Cluster, count: int) -> Iterator[None]:
    """The node has so many of nvidia.com/gpu, which nobody has registered, and none when that is over."""

    def tell(there: str | None) -> None:
        status = {name: {"nvidia.com/gpu": there} for name in ("capacity", "allocatable")}
        patch = json.dumps({"status": status})
        cluster.kubectl("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", patch)

    tell(str(count))
    try:
        yield
    finally:
        tell(None)


def cgroup_of(document: dict[str, Any]) -> Path:
    """The pod's in cgroup v2, as the kubelet's driver names it."""
    metadata, status = document["metadata"], document["status"]
    quality = status["qosClass"].lower()
    if IS_SYSTEMD:
        above = "kubepods" if quality == "guaranteed" else f"kubepods-{quality}"
        middle = "" if quality == "guaranteed" else f"{above}.slice/"
        return UNIFIED / f"{PODS}/{middle}{above}-pod{metadata['uid'].replace('-', '_')}.slice"
    middle = "" if quality == "guaranteed" else f"{quality}/"
    return UNIFIED / f"{PODS}/{middle}pod{metadata['uid']}"


def container_cgroup_of(document: dict[str, Any], kind: str = "containerStatuses") -> Path:
    """Of a pod with one container, or with one of another ``kind``: ``initContainerStatuses``."""
    (status,) = document["status"][kind]
    identifier = status["containerID"].partition("://")[2]
    return cgroup_of(document) / (f"cri-containerd-{identifier}.scope" if IS_SYSTEMD else identifier)
