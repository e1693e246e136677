# SPDX-License-Identifier: Apache-2.0
"""Judges each GPU node (pure): device plugin, health of its devices, the agent."""

from __future__ import annotations

from collections.abc import Iterator

from fairsched.k8s.doctor.cluster import (
    Cluster,
    Row,
    amount,
    condition,
    is_gpu_node,
    is_gpu_resource,
    is_ready,
)
from fairsched.k8s.objects import Object, is_agent, is_over, labels_of, name_of, space_of


def rows(cluster: Cluster) -> Iterator[Row]:
    """Of every node with GPUs; one for a cluster that has none."""
    found = [node for node in cluster.nodes if is_gpu_node(node)]
    if not found:
        yield Row(
            "no-gpu-node",
            "warn",
            "cluster",
            "no node offers a GPU, and none is labelled as one that has them",
            "install NVIDIA's device plugin, or label one: kubectl label node NODE nvidia.com/gpu.present=true",
        )
    agents = [pod for pod in cluster.pods if is_agent(pod) and not is_over(pod)]
    for node in found:
        yield from _node(node)
        if agents:
            yield from _agent(node, agents)
    if found and not agents:
        yield Row(
            "agent-none",
            "warn",
            "cluster",
            "no agent of fairsched is there, or its namespace may not be seen",
            "helm install fairsched packaging/helm/fairsched -n fairsched --create-namespace",
        )


def _node(node: Object) -> Iterator[Row]:
    where = f"node {name_of(node)}"
    if not is_ready(node):
        why = condition(node, "Ready").get("message") or "its kubelet has said nothing"
        yield Row("node-not-ready", "bad", where, f"it is not ready: {why}", "look at its kubelet")
    if (node.get("spec") or {}).get("unschedulable"):
        yield Row(
            "node-cordoned",
            "warn",
            where,
            "it is cordoned: no pod is sent there",
            f"kubectl uncordon {name_of(node)}",
        )
    status = node.get("status") or {}
    capacity = {
        name: amount(value) for name, value in (status.get("capacity") or {}).items() if is_gpu_resource(name)
    }
    allocatable = status.get("allocatable") or {}
    if not capacity:
        yield Row(
            "node-plugin",
            "bad",
            where,
            "it is labelled as a GPU node, and no device plugin has registered a GPU resource there",
            "look at the device plugin's pod there, its tolerations and its log; the driver must be loaded: nvidia-smi",
        )
        return
    for name, count in sorted(capacity.items()):
        usable = amount(allocatable.get(name, 0))
        if not usable:
            has_gone = not count
            yield Row(
                "node-devices",
                "bad",
                where,
                f"{name}: none usable"
                + (
                    "; a device plugin was registered and has none now"
                    if has_gone
                    else f" of {int(count)}: the device plugin has gone, or calls all of them unhealthy"
                ),
                "look at the device plugin's pod there and its log; for GPUs at nvidia-smi and dmesg for Xid",
            )
        elif usable < count:
            yield Row(
                "node-devices",
                "warn",
                where,
                f"{name}: {int(usable)} usable of {int(count)}: the others are unhealthy",
                "look at nvidia-smi and dmesg there for Xid; reset or drain",
            )
        else:
            yield Row("node-plugin", "ok", where, f"{name}: {int(usable)} registered and healthy")


def _agent(node: Object, agents: list[Object]) -> Iterator[Row]:
    where = f"node {name_of(node)}"
    mine = [pod for pod in agents if (pod.get("spec") or {}).get("nodeName") == name_of(node)]
    if not mine:
        label = labels_of(node).get("nvidia.com/gpu.present")
        hint = (
            "its label nvidia.com/gpu.present is not true, which the chart's nodeSelector wants"
            if label != "true"
            else "look at the DaemonSet: kubectl -n NAMESPACE describe ds"
        )
        yield Row(
            "agent-absent", "warn", where, "no agent of fairsched runs there: shares are not held", hint
        )
        return
    for pod in mine:
        if is_ready(pod):
            yield Row("agent", "ok", where, f"agent {name_of(pod)} is ready")
            continue
        yield Row(
            "agent-not-ready",
            "bad",
            where,
            f"agent {name_of(pod)} is not ready{_waits(pod)}: shares may not be held",
            f"kubectl -n {space_of(pod)} describe pod {name_of(pod)}: the event of its probe",
        )


def _waits(pod: Object) -> str:
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        state = one.get("state") or {}
        for key in ("waiting", "terminated"):
            if state.get(key):
                return f" ({state[key].get('reason') or key})"
    return ""
