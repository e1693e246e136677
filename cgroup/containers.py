# SPDX-License-Identifier: Apache-2.0
"""Tells which container and pod a cgroup belongs to, from its path alone (pure).

Problem: an operator thinks in pods and containers, the kernel in cgroups; and asking every runtime over its own socket
would be one more thing that fails at 3 a.m.

Approach: the layers of the path (cgroup/identity.py). The pod is the outermost one, with the container directly in
it: what lives in a pod may write any other pod's uid below its own cgroup. Without a pod it is the innermost
container. A path that looks like none of them is no container, which is not an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairsched.cgroup.identity import CONTAINERS, Kind, Layer, layers_of


@dataclass(frozen=True)
class Container:
    """What a cgroup path says."""

    runtime: str | None
    """docker, containerd, cri-o, podman, lxc; None where the path does not name it."""
    container_id: str | None
    """The runtime's full id; None for a process of a pod that is in none of its containers."""
    pod_uid: str | None = None
    """As Kubernetes writes it, with dashes."""

    def __str__(self) -> str:
        """For a table: short ids."""
        pod = None if self.pod_uid is None else f"pod {self.pod_uid[:8]}"
        own = None if self.container_id is None else f"{self.runtime or 'container'} {self.container_id[:12]}"
        return "/".join(part for part in (pod, own) if part)


def container_of(cgroup: str) -> Container | None:
    """The container of a cgroup path; None for a process of the host."""
    pod: Layer | None = None
    found: Layer | None = None
    for layer in layers_of(cgroup):
        is_in_pod = layer.pod_uid is not None and layer.kind is not Kind.PODMAN
        if pod is None:
            pod = layer if is_in_pod else None
            if is_in_pod or layer.kind in CONTAINERS or layer.kind is Kind.LXC:
                found = layer
        elif is_in_pod and pod.container_id is None and layer.cgroup.rpartition("/")[0] == pod.cgroup:
            pod = found = layer
    if found is None:
        return None
    runtime = None if found.kind in (Kind.CONTAINER, Kind.POD) else found.kind.value
    return Container(runtime, found.container_id or found.name, None if pod is None else pod.pod_uid)
