# SPDX-License-Identifier: Apache-2.0
"""Defines the document behind ``ps``: what one process has of one GPU. Units and None are as in status.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ProcessStatus:
    """One process on one GPU, the answer to ``fairsched ps``."""

    pid: int
    """As the daemon sees it."""
    gpu: str
    """UUID."""
    tenant: str | None = None
    """None = no tenant's."""
    cgroup: str | None = None
    """As in /proc/PID/cgroup."""
    runtime: str | None = None
    """docker, containerd, cri-o, podman, lxc; None where its cgroup does not say."""
    container_id: str | None = None
    pod_uid: str | None = None
    known_as: str | None = None
    """What people call the container, pod, job, unit or user that it belongs to; None = no name is known."""
    namespace_pid: int | None = None
    """Its pid in its own PID namespace; None = it has none of its own."""
    contexts: int | None = None
    """Open compute contexts, from the driver's ioctls."""
    vram_bytes: int | None = None
    """From the driver's ioctls, else as NVML says."""
    gpu_time_s: float | None = None
    """Of the contexts it has now."""
    launches: int | None = None
    """Launches that were seen of the contexts it has now; None = they are not seen at all."""
    idle_s: float | None = None
    """For how long no launch of it was seen; None = it works, holds nothing, or launches are not seen at all."""
    command: str | None = None
    note: str | None = None


def process_from_plain(data: Mapping[str, Any]) -> ProcessStatus:
    """Of what a daemon has sent; fields of a newer one are ignored."""
    names = {field.name for field in dataclasses.fields(ProcessStatus)}
    return ProcessStatus(**{name: value for name, value in data.items() if name in names})
