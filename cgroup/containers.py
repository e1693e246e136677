# SPDX-License-Identifier: Apache-2.0
"""Tells which container and pod a cgroup belongs to, from its path alone (pure).

Problem: an operator thinks in pods and containers, the kernel in cgroups; and asking every runtime over its own socket
would be one more thing that fails at 3 a.m.

Approach: runtimes put the container's id, and the kubelet the pod's uid, into the path; both drivers of the kubelet
(systemd and cgroupfs) are known. A path that looks like none of them is no container, which is not an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ID = r"(?P<id>[0-9a-f]{64})"
_SCOPE = re.compile(rf"(?P<runtime>docker|cri-containerd|crio|libpod|nerdctl)-{_ID}\.scope")
_BARE = re.compile(_ID)
_POD = re.compile(
    r"(?:kubepods-(?:\w+-)?)?pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?"
)
_LXC = re.compile(r"(?:lxc\.payload\.|lxc\.monitor\.)(?P<name>.+)")
_NAMES = {"cri-containerd": "containerd", "crio": "cri-o", "libpod": "podman", "nerdctl": "containerd"}


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
    """The innermost container of a cgroup v2 path; None for a process of the host."""
    runtime = container_id = pod_uid = None
    for part in cgroup.split("/"):
        if found := _POD.fullmatch(part):
            pod_uid = found["uid"].replace("_", "-")
            runtime = container_id = None
        elif found := _SCOPE.fullmatch(part):
            runtime, container_id = _NAMES.get(found["runtime"], found["runtime"]), found["id"]
        elif _BARE.fullmatch(part):
            # The cgroupfs driver names the container's cgroup by its id alone; so does docker, below its own name.
            runtime, container_id = ("docker" if "/docker/" in cgroup else None), part
        elif found := _LXC.fullmatch(part):
            runtime, container_id = "lxc", found["name"]
    if container_id is None and pod_uid is None:
        return None
    return Container(runtime, container_id, pod_uid)
