# SPDX-License-Identifier: Apache-2.0
"""The section ``kubernetes``: whether pods say what they are worth; fairsched/companion/pods has the rules."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from fairsched.config.section import AbsolutePath, Section


class Dra(Section):
    """Shares of GPUs as devices that claims ask for (resource.k8s.io/v1); see docs/kubernetes-dra.md."""

    enabled: bool = Field(
        default=False, description="Publish this node's GPUs and prepare claims; needs Kubernetes 1.34."
    )
    sharing: Literal["auto", "capacity", "devices"] = Field(
        default="auto",
        description="capacity: claims consume a part of a GPU (the servers' feature gate DRAConsumableCapacity); "
        "devices: a GPU is devices_per_gpu equal devices; auto: the first where the API server has it.",
    )
    devices_per_gpu: int = Field(
        default=1, ge=1, le=64, description="Where a device goes to one claim only: how many a GPU is."
    )
    default_share: int = Field(
        default=100, ge=1, le=100, description="Hundredths of a GPU for a claim that does not say how many."
    )
    kubelet_dir: AbsolutePath = Field(
        default=Path("/var/lib/kubelet"), description="The kubelet's root directory."
    )
    cdi_dir: AbsolutePath = Field(
        default=Path("/var/run/cdi"),
        description="Where the container runtime reads what we write for it (CDI).",
    )


class Kubernetes(Section):
    """Pods as tenants, by what their labels and annotations say; see docs/kubernetes.md."""

    watch_pods: bool = Field(
        default=False,
        description="Namespaces and pods of this node become tenants, with what `fairsched.io/...` says of them.",
    )
    watch_policies: bool = Field(
        default=False,
        description="What GpuSharePolicy objects say goes before annotations; needs `watch_pods`. Without their "
        "definition in the cluster nothing changes.",
    )
    kubeconfig: AbsolutePath | None = Field(
        default=None, description="How to reach the API server; null = the service account of the pod."
    )
    node: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Name of this node; null = $NODE_NAME, else the host's name.",
    )
    dra: Dra = Field(default_factory=Dra, description="Shares as devices.")
