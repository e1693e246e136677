# SPDX-License-Identifier: Apache-2.0
"""The mirror of abi.h in ctypes: same names, same order, same padding.

abi.h is the one truth. tests/unit/bpf/test_abi.py compares sizes, offsets and constants with gcc's,
tests/node/bpf with bcc's. Comments and units: see abi.h.
"""

from __future__ import annotations

import ctypes
import enum

ABI_VERSION = 1
MAX_GPUS = 32
MAX_CTXS = 1024
MAX_STREAMS = 64
DELAY_BUCKETS = 40
EDGE_PAGES = 256
NO_SLOT = 0xFFFFFFFF
NO_GPU = 0xFFFF
ORDINAL_UNSEEN = 0xFFFFFFFF
TIGHT_NS = 100_000
PAUSE_NS = 500_000
TIGHT_LAUNCHES = 2
COMEBACK_NS = 250_000_000
CLOCK_SHIFT = 56
CLOCK_MASK = (1 << CLOCK_SHIFT) - 1

COMPUTE = 0
COPY = 1
ENGINES = 2


class CtxFlag(enum.IntFlag):
    LIVE = 1
    UNSEEN = 2
    GPU_GUESSED = 4


class Count(enum.IntEnum):
    CTX_FULL = 0
    USE_FULL = 1
    PROC_FULL = 2
    HANDLE_FULL = 3
    CLOCK_RACE = 4
    CLOCK_RANGE = 5
    EDGE_DROPPED = 6
    STREAM_SHARED = 7
    CALL_LOST = 8
    BAD_READ = 9
    GPU_GUESSED = 10
    EVENT_UNKNOWN = 11
    DEP_DROPPED = 12


class EdgeKind(enum.IntEnum):
    OPEN = 1
    CLOSE = 2
    PROC_NEW = 3
    PROC_EXIT = 4
    GPU_IDLE = 5
    PROGRESS = 6
    CTX_NEW = 7
    CTX_GONE = 8
    RESUBMIT = 9


_u8, _u16, _u32, _u64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64


class Busy(ctypes.Structure):
    _fields_ = (
        ("streams", _u64),
        ("v_open_ns", _u64),
        ("open_ns", _u64),
        ("gpu_time_ns", _u64),
        ("wall_ns", _u64),
        ("bursts", _u64),
    )


class Ctx(ctypes.Structure):
    _fields_ = (
        ("handle", _u64),
        ("cgroup_id", _u64),
        ("tgid", _u32),
        ("generation", _u32),
        ("gpu", _u16),
        ("flags", _u16),
        ("ordinal", _u32),
        ("submitted", _u64),
        ("completed", _u64),
        ("counted", _u64),
        ("synced", _u64),
        ("last_call_ns", _u64),
        ("waited_ns", _u64),
        ("tight", _u64),
        ("stream_used", _u64),
        ("blocking", _u64),
        ("busy", Busy * ENGINES),
    )


class Clock(ctypes.Structure):
    _fields_ = (
        ("word", _u64 * ENGINES),
        ("busy_ns", _u64 * ENGINES),
        ("busy_open_ns", _u64 * ENGINES),
        ("wake_on_idle", _u32),
        ("pad", _u32),
    )


class UseKey(ctypes.Structure):
    _fields_ = (("cgroup_id", _u64), ("tgid", _u32), ("gpu", _u32))


class Use(ctypes.Structure):
    _fields_ = (
        ("gpu_time_ns", _u64),
        ("copy_time_ns", _u64),
        ("wait_ns", _u64),
        ("bursts", _u64),
        ("launches", _u64),
    )


class DelayKey(ctypes.Structure):
    _fields_ = (("cgroup_id", _u64), ("gpu", _u32), ("pad", _u32))


class Delay(ctypes.Structure):
    _fields_ = (("bucket", _u64 * DELAY_BUCKETS), ("sum_ns", _u64))


class Edge(ctypes.Structure):
    _fields_ = (
        ("t_ns", _u64),
        ("cgroup_id", _u64),
        ("arg", _u64),
        ("seq", _u64),
        ("slot", _u32),
        ("generation", _u32),
        ("tgid", _u32),
        ("gpu", _u16),
        ("kind", _u8),
        ("engine", _u8),
    )


class DevKey(ctypes.Structure):
    _fields_ = (("tgid", _u32), ("ordinal", _u32))


class Uuid(ctypes.Structure):
    _fields_ = (("bytes", _u8 * 16),)


class DrainArgs(ctypes.Structure):
    _fields_ = (("slot", _u64), ("generation", _u64), ("v_end_ns", _u64), ("engine", _u64))


STRUCTS: dict[str, type[ctypes.Structure]] = {
    "fs_busy": Busy,
    "fs_ctx": Ctx,
    "fs_clock": Clock,
    "fs_use_key": UseKey,
    "fs_use": Use,
    "fs_delay_key": DelayKey,
    "fs_delay": Delay,
    "fs_edge": Edge,
    "fs_dev_key": DevKey,
    "fs_uuid": Uuid,
    "fs_drain_args": DrainArgs,
}


def clock_n(word: int) -> int:
    """Busy contexts in a clock word."""
    return word >> CLOCK_SHIFT


def clock_v(word: int, now_ns: int) -> int:
    """V in ns at ``now_ns``, modulo 2^56; twin of clock_v() in clock.h."""
    n = clock_n(word)
    return ((word & CLOCK_MASK) + (now_ns // n if n else 0)) & CLOCK_MASK


def clock_since(a: int, b: int) -> int:
    """a - b in clock arithmetic, 0 when b is ahead; twin of clock_since() in clock.h."""
    d = (a - b) & CLOCK_MASK
    return 0 if d >> (CLOCK_SHIFT - 1) else d
