# SPDX-License-Identifier: Apache-2.0
"""The Python mirror of simshm.h: struct sim_gpu and what hangs on it. A unit test compares them."""

from __future__ import annotations

import ctypes

MAGIC = 0x55504753
ABI = 6
MAX_GPUS = 16
MAX_INSTANCES = 7
MAX_TRUTHS = 4096
MAX_RESIDENCIES = 8192
MAX_SAMPLES = 72
MAX_OVERLAP = 16
MIN_SLICE_NS = 10_000
NEVER = 2**64 - 1

PHASE_IDLE, PHASE_SWITCH, PHASE_EXEC = 0, 1, 2
PHASES = ("idle", "switch", "exec")

RPC_SYNC = 6
RPC_LEASH = 7

_u32 = ctypes.c_uint32
_u64 = ctypes.c_uint64


class Spec(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 64),
        ("uuid", ctypes.c_char * 48),
        ("uuid_bytes", ctypes.c_uint8 * 16),
        ("vram_bytes", _u64),
        ("slice_ns", _u64),
        ("switch_ns", _u64),
        ("copy_bytes_per_s", _u64),
        ("copy_latency_ns", _u64),
        ("memset_bytes_per_s", _u64),
        ("sm_count", _u32),
        ("cc_major", _u32),
        ("cc_minor", _u32),
        ("pci_bus", _u32),
        ("slice_spread_ppm", _u32),
        ("slice_jitter_ppm", _u32),
        ("run_to_completion", _u32),
        ("overlap", _u32),
        ("slices", _u32),
        ("is_runlist_ordered", _u32),
        ("born_ns", _u64),
    )


class Truth(ctypes.Structure):
    _fields_ = (
        ("id", _u64),
        ("pid", _u32),
        ("region", _u32),
        ("handle", _u64),
        ("created_ns", _u64),
        ("ended_ns", _u64),
        ("exec_ns", _u64),
        ("switch_ns", _u64),
        ("copy_ns", _u64),
        ("wait_ns", _u64),
        ("waiting_since_ns", _u64),
        ("kernels", _u64),
        ("vram_bytes", _u64),
        ("peak_vram_bytes", _u64),
        ("wall_start_us", _u64),
        ("sample_count", _u64),
        ("sample_util_pct_sum", _u64),
        ("booked_util_pct_sum", _u64),
        ("booked_from", _u64),
        ("booked_until", _u64),
        ("owner", _u32),
        ("seat", _u32),
        ("is_mps_client", _u32),
        ("pad", _u32),
    )


class Residency(ctypes.Structure):
    _fields_ = (("id", _u64), ("start_ns", _u64), ("end_ns", _u64))


class Sample(ctypes.Structure):
    _fields_ = (("time_us", _u64), ("pid", _u32), ("util_pct", _u32))


class Gpu(ctypes.Structure):
    """All of struct sim_gpu before its three tables."""

    _fields_ = (
        ("magic", _u32),
        ("abi", _u32),
        ("index", _u32),
        ("gpu_count", _u32),
        ("spec", Spec),
        ("start_ns", _u64),
        ("boot_realtime_offset_ns", _u64),
        ("dead", _u32),
        ("bell", _u32),
        ("sleep", _u32),
        ("accounting_mode", _u32),
        ("accounting_on_ns", _u64),
        ("accounting_cleared_ns", _u64),
        ("next_order", _u64),
        ("lock_seq", _u32),
        ("phase", _u32),
        ("charged_ns", _u64),
        ("limit_ns", _u64),
        ("current_id", _u64),
        ("share_from_ns", _u64),
        ("share_count", _u64),
        ("copy_id", _u64),
        ("copy_from_ns", _u64),
        ("copy_end_ns", _u64),
        ("busy_ns", _u64),
        ("switch_ns", _u64),
        ("copy_ns", _u64),
        ("switches", _u64),
        ("vram_used_bytes", _u64),
        ("util_pct", _u64),
        ("residency_count", _u64),
        ("sample_count", _u64),
        ("booked_samples", _u64),
        ("truth_count", _u64),
    )


SAMPLES_OFFSET = ctypes.sizeof(Gpu)
RESIDENCIES_OFFSET = SAMPLES_OFFSET + MAX_SAMPLES * ctypes.sizeof(Sample)
TRUTHS_OFFSET = RESIDENCIES_OFFSET + MAX_RESIDENCIES * ctypes.sizeof(Residency)
GPU_BYTES = TRUTHS_OFFSET + MAX_TRUTHS * ctypes.sizeof(Truth)
