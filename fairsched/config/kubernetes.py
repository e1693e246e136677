# SPDX-License-Identifier: Apache-2.0
"""The section ``kubernetes``: whether pods say what they are worth; fairsched/companion/pods has the rules."""

from __future__ import annotations

from pydantic import Field

from fairsched.config.section import AbsolutePath, Section


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
