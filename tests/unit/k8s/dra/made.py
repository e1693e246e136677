# SPDX-License-Identifier: Apache-2.0
"""GPUs, offers and claims for tests, as the scheduler leaves them."""

from __future__ import annotations

from typing import Any

from fairsched.k8s.dra import DRIVER
from fairsched.k8s.dra.devices import GpuFacts, Offer, Sharing, Terms, offers_of

A, B = "GPU-aaaaaaaa-0000-4000-8000-000000000001", "GPU-bbbbbbbb-0000-4000-8000-000000000002"
MIG = "MIG-cccccccc-0000-4000-8000-000000000003"
NODE = "node1"
UID = "7d1a3c00-0000-4000-8000-00000000000a"


def gpu(uuid: str = A, **more: Any) -> GpuFacts:
    known = {"index": 0, "minor": 0, "name": "NVIDIA H100", "memory_bytes": 80 << 30, "is_up": True}
    return GpuFacts(uuid, **{**known, **more})


def offers(*gpus: GpuFacts, sharing: Sharing = "capacity", parts: int = 1) -> dict[str, Offer]:
    return offers_of(gpus or [gpu()], Terms(sharing, parts))


def result(share: str | None = "75", uuid: str = A, **more: Any) -> dict[str, Any]:
    consumed = {} if share is None else {"consumedCapacity": {"fairsched.io/share": share, "memory": "0"}}
    device = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": uuid.lower()}
    return {**device, **consumed, **more}


def said(source: str = "FromClaim", requests: tuple[str, ...] = (), **keys: Any) -> dict[str, Any]:
    """Parameters; _ for -."""
    parameters = {
        "apiVersion": f"{DRIVER}/v1alpha1",
        "kind": "GpuShare",
        **{key.replace("_", "-"): value for key, value in keys.items()},
    }
    entry = {"source": source, "opaque": {"driver": DRIVER, "parameters": parameters}}
    return {**entry, "requests": list(requests)} if requests else entry


def claim(
    *results: dict[str, Any], config: tuple[dict[str, Any], ...] = (), uid: str = UID, name: str = "c"
) -> dict[str, Any]:
    devices = {"results": list(results) or [result()], "config": list(config)}
    return {
        "metadata": {"namespace": "ml", "name": name, "uid": uid},
        "status": {"allocation": {"devices": devices}},
    }
