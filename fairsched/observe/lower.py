# SPDX-License-Identifier: Apache-2.0
"""Opens what takes the place of eBPF: the trace of context switches, above NVML's samples."""

from __future__ import annotations

from collections.abc import Callable

from fairsched.accounting.context import ProcessUse
from fairsched.accounting.nvml import NvmlAccount
from fairsched.accounting.source import GpuTimeSource
from fairsched.accounting.traced import TracedAccount
from fairsched.base.process import ProcessId
from fairsched.config import Config
from fairsched.driver.namespaces import is_initial
from fairsched.gpu.nvml import Nvml
from fairsched.host.choose import OWN_PID_NAMESPACE, switched_off
from fairsched.host.trace import obstacle_alone
from fairsched.observe.told import Told


def obstacle(config: Config, nvml: Nvml | None) -> str | None:
    """Why the trace cannot be the account, as far as that is known before it is asked for."""
    if config.gpu.source not in ("auto", "trace"):
        return f"gpu.source is {config.gpu.source}"
    if nvml is None or nvml.obstacle is not None:
        why = switched_off(config, "nvml") if nvml is None else nvml.obstacle
        return f"which GPUs there are is not known: {why}"
    try:
        if not is_initial():
            return OWN_PID_NAMESPACE
    except OSError as error:
        return f"whether this is the initial PID namespace cannot be told: {error.strerror}"
    return obstacle_alone(config, nvml.driver_version)


def open_traced(
    sensors: Told, below: NvmlAccount, cgroup_of: Callable[[int], int | None], nature: tuple[int, int]
) -> TracedAccount:
    """The account by the trace, above ``below``; ``nature``: slice and switch in ns."""

    def load(slot: int) -> float | None:
        told = sensors.loads.load(slot) if sensors.loads is not None else None
        if told is None and sensors.gpu_watch is not None:
            told = sensors.gpu_watch.use(slot).busy_ratio
        return told

    account = TracedAccount(below, cgroup_of, nature, identity_of=ProcessId.of, load=load)
    account.tenant_of = below.tenant_of
    account.slots = lambda: [slot for slot, gpu in enumerate(sensors.gpus) if not gpu.is_gone]
    return account


def read(account: GpuTimeSource | None, now_ns: int) -> list[ProcessUse]:
    """Its rows; none where there is no account."""
    return [] if account is None else account.read(now_ns)
