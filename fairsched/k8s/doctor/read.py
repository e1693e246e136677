# SPDX-License-Identifier: Apache-2.0
"""Asks the API server for what the doctor judges, and puts the rows together.

Nodes and pods are needed; what else may not be seen is said, and judged without.
Errors: client.Refused, client.Unreachable.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from fairsched.k8s.client import KubeClient, Refused, Unreachable
from fairsched.k8s.doctor import nodes, pods, starts
from fairsched.k8s.doctor.cluster import Cluster, Row
from fairsched.k8s.objects import Object

_ORDER = ("bad", "warn", "unknown", "ok")


def look(client: KubeClient, namespace: str | None = None, pod: str | None = None) -> Cluster:
    """One look. Pods of all namespaces are needed to know what is free; without that right, those of `namespace`."""
    unasked: dict[str, str] = {}
    found_nodes, _ = client.listed("/api/v1/nodes", {})
    try:
        found_pods, _ = client.listed("/api/v1/pods", {})
    except Refused as error:
        if namespace is None or not error.is_forbidden:
            raise
        unasked["pods of other namespaces"] = str(error)
        found_pods, _ = client.listed(f"/api/v1/namespaces/{quote(namespace, safe='')}/pods", {})

    def maybe(what: str, path: str) -> list[Object] | None:
        try:
            return client.listed(path, {})[0]
        except (Refused, Unreachable) as error:
            unasked[what] = str(error)
            return None

    top = "/api/v1" if namespace is None else f"/api/v1/namespaces/{quote(namespace, safe='')}"
    return Cluster(
        found_nodes,
        found_pods,
        maybe("events", f"{top}/events"),
        maybe("quotas", f"{top}/resourcequotas"),
        maybe("runtime classes", "/apis/node.k8s.io/v1/runtimeclasses"),
        unasked,
        namespace,
        pod,
    )


def judge(cluster: Cluster) -> list[Row]:
    """All rows, the worst first, and of one object together."""
    found = list(_all(cluster))
    worst: dict[str, int] = {}
    for row in found:
        worst[row.subject] = min(worst.get(row.subject, len(_ORDER)), _ORDER.index(row.state))
    return sorted(found, key=lambda row: (worst[row.subject], row.subject, _ORDER.index(row.state)))


def _all(cluster: Cluster) -> Iterator[Row]:
    for what, why in cluster.unasked.items():
        yield Row("unasked", "unknown", "cluster", f"{what} could not be seen: {why}", "ask for list on them")
    if cluster.pod is None:
        yield from nodes.rows(cluster)
    if cluster.pod is not None and not list(pods.chosen(cluster)):
        yield Row(
            "no-pod",
            "bad",
            f"pod {cluster.namespace}/{cluster.pod}",
            "there is no such pod",
            "is it the namespace?",
        )
    yield from pods.rows(cluster)
    yield from starts.rows(cluster)
