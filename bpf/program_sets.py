# SPDX-License-Identifier: Apache-2.0
"""Names the sets of programs that the loader can be asked for (pure).

A *set* is one C source with its maps. A *group* is what is loaded whole or not at all, such as everything one hook
needs. The GPU time programs are not here: theirs is a process that stays (attacher.py).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from fairsched.bpf import abi, budgets


class Kind(enum.Enum):
    """How the kernel sees a program."""

    KPROBE = "kprobe"
    TRACEPOINT = "tracepoint"
    RAW_TRACEPOINT = "raw_tracepoint"
    LSM = "lsm"
    CGROUP_DEVICE = "cgroup_device"


@dataclass(frozen=True)
class ProgramSet:
    """A source, the maps user space reads or writes, and its programs."""

    source: str
    maps: tuple[str, ...]
    groups: Mapping[str, Mapping[str, Kind]]
    tables: Mapping[abi.Table, int] = field(default_factory=dict)
    """Of these the tables whose room is given out by budgets (budget.h), and how much there is."""
    reads_files: bool = False
    """It follows kernel pointers to files: the offsets come from the kernel's types."""
    reads_pids: bool = False
    """It follows kernel pointers from a task to its pids: likewise."""
    reads_cgroups: bool = False
    """It asks which cgroups are around a task: where no helper may be called for it, it follows kernel pointers."""


BUDGET_MAPS = ("budget_by_owner", "limits_of_all", "owner_by_cgroup")

NVIDIA_IOCTL = ProgramSet(
    source="nvidia_ioctl.bpf.c",
    maps=(
        "node_by_major",
        "gpu_by_instance",
        "calls_by_proc",
        "client_by_handle",
        "object_by_key",
        "clients_by_file",
        "maker_by_tgid",
        "call_by_thread",
        "driver_counts",
        "vram_by_cgroup",
        "limit_by_cgroup",
        "refused_by_key",
        "is_gate_only",
        *BUDGET_MAPS,
    ),
    tables=budgets.DRIVER,
    groups={
        "life": {
            "on_task_exit": Kind.RAW_TRACEPOINT,
            "on_task_exec": Kind.RAW_TRACEPOINT,
            "on_client_gone": Kind.RAW_TRACEPOINT,
            "on_forgotten": Kind.RAW_TRACEPOINT,
        },
        "kprobe": {
            "on_ioctl": Kind.KPROBE,
            "on_ioctl_return": Kind.KPROBE,
            "on_open": Kind.KPROBE,
            "on_close": Kind.KPROBE,
        },
        "lsm": {
            "lsm__file_ioctl": Kind.LSM,
            "lsm__file_open": Kind.LSM,
            "lsm__file_free_security": Kind.LSM,
            "on_sys_return": Kind.TRACEPOINT,
        },
        # The VRAM limit, where another hook sees the calls.
        "gate": {
            "lsm__file_ioctl": Kind.LSM,
        },
        "tracepoint": {
            "on_sys_ioctl": Kind.TRACEPOINT,
            "on_sys_close": Kind.TRACEPOINT,
            "on_sys_return": Kind.TRACEPOINT,
        },
    },
    reads_files=True,
    reads_cgroups=True,
)

PID_VIEW = ProgramSet(
    source="pid_view.bpf.c",
    maps=(
        "translator_by",
        "view_counts",
        "nr_by_tgid",
        "tgid_by_nr",
        "asked_by_thread",
        "answer_by_kind",  # its entries live only while somebody holds it open
        *BUDGET_MAPS,
    ),
    tables=budgets.VIEW,
    groups={
        "kprobe": {
            "on_rm_enter": Kind.KPROBE,
            "on_rm_return": Kind.KPROBE,
            "on_ns_pid": Kind.KPROBE,
            "on_list": Kind.KPROBE,
            "on_info": Kind.KPROBE,
            "on_samples": Kind.KPROBE,
            "on_exit": Kind.RAW_TRACEPOINT,
        },
    },
    reads_pids=True,
    reads_cgroups=True,
)

DEVICE_GATE = ProgramSet(
    source="device_gate.bpf.c",
    maps=("gate_by_cgroup", "denied_by_gate", "node_by_major", "gpu_by_cap", "gate_head"),
    groups={"gate": {"gate_nvidia": Kind.CGROUP_DEVICE}},
    reads_cgroups=True,
)

SETS = {"nvidia_ioctl": NVIDIA_IOCTL, "pid_view": PID_VIEW, "device_gate": DEVICE_GATE}
