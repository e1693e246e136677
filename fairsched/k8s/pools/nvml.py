# SPDX-License-Identifier: Apache-2.0
"""Asks NVML which GPUs this node has, for nodes without GPU feature discovery. Errors: HostUnsupported without NVML."""

from __future__ import annotations

from fairsched.errors import HostUnsupported
from fairsched.gpu.nvml import Nvml
from fairsched.k8s.pools.detect import Detected, from_products


def detect_here() -> Detected:
    """This node's GPUs. Raises HostUnsupported: absent NVML is no node without GPUs."""
    nvml = Nvml()
    try:
        if nvml.error is not None:
            raise HostUnsupported(
                f"NVML does not work here: {nvml.error}",
                remedy="run it on the GPU node, or in the agent's pod, which has the driver's libraries",
            )
        # A GPU in MIG mode is listed by its instances, one or more for each index; one without instances not at all.
        whole: dict[int | None, tuple[str, bool]] = {}
        for gpu in nvml.gpus:
            name = (gpu.name or "unknown").partition(" MIG ")[0]
            whole.setdefault(gpu.index, (name, gpu.mig is not None))
        found = from_products(whole.values())
    finally:
        nvml.close()
    if found is None:
        raise HostUnsupported("NVML names no GPU here", remedy="see: nvidia-smi -L")
    return found
