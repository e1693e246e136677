# SPDX-License-Identifier: Apache-2.0
"""Takes in GPUs and MIG instances that come and go while the daemon runs.

Problem. A GPU in MIG mode may be split anew at any time, and each instance is a GPU of its own for the account, the law
and the status. What was counted for one must never be another's, and nobody may stay held for one that is gone.

Approach. The thread that asks NVML (gpu/watch.py) finds out; a tick takes the new list. What has come gets a slot that
nothing was counted on; BPF and the book of ordinals are told. On what has gone no work can be left: contexts that the
account still knows there end, so that nobody has demand there, and who is held for it is let go like anybody whose
neighbours want nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence, Set

from fairsched.accounting.ebpf import EbpfAccount
from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.driver.watch import DriverWatch
from fairsched.gpu.nvml import Gpu, Nvml
from fairsched.gpu.watch import GpuWatch

logger = logging.getLogger(__name__)


def changes(before: Sequence[Gpu], after: Sequence[Gpu]) -> Iterator[tuple[int, Gpu]]:
    """What has come and what has gone, by slot."""
    for slot, gpu in enumerate(after):
        was_there = slot < len(before) and not before[slot].is_gone
        if was_there is gpu.is_gone:
            yield slot, gpu


def name_gpus(probe: GpuTimeProbe, account: EbpfAccount, nvml: Nvml | None) -> None:
    """Tell BPF and the account which GPUs there are. Without a name none is told."""
    gpus = () if nvml is None else nvml.gpus
    named = {gpu.uuid_bytes: slot for slot, gpu in enumerate(gpus) if gpu.uuid_bytes is not None}
    if named:
        probe.set_uuids(named, is_all=nvml is not None and not nvml.has_mig)
    account.gpus = max(1, len(gpus))


def take_in(
    before: Sequence[Gpu], nvml: Nvml, probe: GpuTimeProbe | None, account: EbpfAccount | None, now_ns: int
) -> None:
    """Deal with what differs between ``before`` and now."""
    for slot, gpu in changes(before, nvml.gpus):
        _log(slot, gpu)
        if gpu.is_gone and probe is not None and account is not None:
            _end_work(probe, account, slot, now_ns)
    if probe is not None and account is not None:
        name_gpus(probe, account, nvml)


def _end_work(probe: GpuTimeProbe, account: EbpfAccount, slot: int, now_ns: int) -> None:
    """A GPU is gone: whatever its contexts had open is over."""
    for at, live in list(probe.contexts()):
        if live.gpu == slot:
            probe.end_drain(at, live.generation, 0)
            account.end((at, live.generation), now_ns)


def _log(slot: int, gpu: Gpu) -> None:
    """Say that one has come or gone."""
    mig = gpu.mig
    part = (
        ""
        if mig is None
        else f" of={mig.parent_uuid} gi={mig.gpu_instance} ci={mig.compute_instance} profile={mig.profile}"
    )
    logger.warning("gpu=%s uuid=%s slot=%d%s", "gone" if gpu.is_gone else "new", gpu.uuid, slot, part)


def slots_of(
    pids: Set[int], gpus: Sequence[Gpu], watch: GpuWatch | None, driver: DriverWatch
) -> dict[int, set[int]]:
    """On which GPUs these processes compute, as the driver's ioctls, else NVML, tell."""
    listed = watch.slots_of(pids) if watch is not None else {}
    said = driver.slots_of(pids)  # of whole GPUs, as they were when it was loaded
    there = {pid: slots for pid, slots in said.items() if not any(gpus[one].is_gone for one in slots)}
    return {**listed, **there}
