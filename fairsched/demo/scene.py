# SPDX-License-Identifier: Apache-2.0
"""Who is on stage: three LLM decoders and a trainer that takes whatever it can get, weights 4:2:1:1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fairsched.simgpu import Workload

# 40 kernels of 0.5 ms and 1 ms on the CPU: 48 token/s when it has the GPU to itself.
DECODER = Workload("decode", kernels=40, kernel_us=500, jitter_ratio=0.1, gap_us=1000)
# 60 ms of work in the queues of three processes at any time: the one that wins where nobody schedules.
TRAINER = Workload("trainer", kernels=20, kernel_us=500, jitter_ratio=0.1, depth=2, processes=3)


@dataclass(frozen=True)
class Tenant:
    """One tenant, and how it is shown."""

    name: str
    weight: int
    workload: Workload
    colour: str
    tenant_class: Literal["latency", "batch"] = "latency"
    unit: str = "token"


# The colours are Okabe and Ito's: they stay apart for colour-blind eyes.
TENANTS = (
    Tenant("chat", 4, DECODER, "#0072B2"),
    Tenant("code", 2, DECODER, "#009E73"),
    Tenant("mail", 1, DECODER, "#E69F00"),
    Tenant("trainer", 1, TRAINER, "#D55E00", tenant_class="batch", unit="step"),
)


def entitlements(tenants: tuple[Tenant, ...] = TENANTS) -> dict[str, float]:
    """Everybody always wants the GPU here, so weights alone decide."""
    total = sum(tenant.weight for tenant in tenants)
    return {tenant.name: tenant.weight / total for tenant in tenants}


def configuration(cgroups: Mapping[str, str], mode: str, libcuda: str) -> dict[str, Any]:
    """The daemon's, but for where its files are. Nothing of it is shared with a daemon that may run on this host.

    ``libcuda`` is named so that it is probed at once, and not when the first tenant maps it.
    """
    return {
        "mode": mode,
        "gpu": {"libcuda": [libcuda]},
        "mechanisms": {"ebpf": "required", "freezer": "required", "guardian": "required"},
        "tenants": {
            tenant.name: {
                "cgroup": cgroups[tenant.name],
                "weight": float(tenant.weight),
                "class": tenant.tenant_class,
            }
            for tenant in TENANTS
        },
    }
