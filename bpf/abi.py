# SPDX-License-Identifier: Apache-2.0
"""The mirror of abi.h in ctypes: same names, same order, same padding.

abi.h is the one truth. tests/unit/bpf/test_abi.py compares sizes, offsets and constants with gcc's,
tests/node/bpf with bcc's. Comments and units: see abi.h.
"""

from __future__ import annotations

import ctypes
import enum
from typing import Any, TypeAlias

ABI_VERSION = 1
MAX_GPUS = 32
MAX_SLOTS = 64
MAX_CTXS = 2048
MAX_STREAMS = 64
KEPT_GRAPHS = 16
DELAY_BUCKETS = 100
EDGE_PAGES = 256
NO_SLOT = 0xFFFFFFFF
NO_GPU = 0xFFFF
ORDINAL_UNSEEN = 0xFFFFFFFF
TIGHT_NS = 100_000
PAUSE_NS = 500_000
TIGHT_LAUNCHES = 2
COMEBACK_NS = 250_000_000
FOLLOW_NS = 50_000_000
MAX_PROCS = 8192
MAX_OWNERS = 4096
MARK_PLACES = 16384
STRANGERS = 0
ENTRY_TABLES = 10
MAX_DEVS = 65536
MAX_CLIENTS = 8192
MAX_OBJECTS = 131072
MAX_CALLERS = 16384
MAX_VRAM_CGROUPS = 8192
GPU_UNKNOWN = 32
GPUS_HELD = 33
MAX_FILE_CLIENTS = 16
MAX_MAJOR = 4096
MAX_GATES = 16384
MAX_GATE_LEVELS = 32
MAX_CAPS = 8192
GATE_WORDS = 4
GATE_MAGIC = 0x66736761746531
MAX_CGROUP_DEPTH = 12
MAX_LIMIT_CGROUPS = 32
MAX_LIMIT_LEVELS = 3
CLOCK_SHIFT = 52
CLOCK_MASK = (1 << CLOCK_SHIFT) - 1
MAX_VIEW_PIDS = 16384
MAX_VIEW_OLDER = 8192
MAX_VIEW_CALLS = 512
VIEW_LIST_MAX = 950
VIEW_INFO_MAX = 200
VIEW_SAMPLES_MAX = 72
VIEW_NO_PID = 0xFFFFFFFF
VIEW_NOBODY = 0x7FFFFFFF

COMPUTE = 0
COPY = 1
ENGINES = 2


class CtxFlag(enum.IntFlag):
    LIVE = 1
    UNSEEN = 2
    GPU_GUESSED = 4
    PRIMARY = 8


class Node(enum.IntEnum):
    GPU = 1
    UVM = 2
    CAPS = 3
    OTHER = 4


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
    STREAM_FULL = 13
    THREAD_FULL = 14
    STACK_DEEP = 15
    SLOT_LOST = 16
    EXIT_MISSED = 17
    OVER_BUDGET = 18


class Table(enum.IntEnum):
    CONTEXTS = 0
    PROCESSES = 1
    CLIENTS = 2
    OBJECTS = 3
    CALLERS = 4
    THREADS = 5
    CGROUPS = 6
    PIDS = 7
    CALLS = 8
    ORDINALS = 9
    EDGES = 10


class Room(enum.IntEnum):
    NONE = 0
    OWN = 1
    SHARED = 2


class DriverCount(enum.IntEnum):
    OBJECTS_MADE = 0
    OBJECTS_GONE = 1
    BAD_READ = 2
    CALL_FULL = 3
    CALL_LOST = 4
    CLIENT_FULL = 5
    OBJECT_FULL = 6
    FILE_FULL = 7
    OVER_BUDGET = 8
    CALLER_FULL = 9
    UNSEEN = 10
    GPU_UNKNOWN = 11
    TOO_DEEP = 12
    REPLACED = 13
    RACE = 14
    BAD_SIZE = 15
    BLIND = 16
    VRAM_FULL = 17
    DEEP_CGROUP = 18
    FOREIGN = 19


class Entry(enum.IntEnum):
    OBJECT = 0
    FILE = 1
    MAKER = 2
    CALLS = 3
    THREAD = 4
    CGROUP = 5


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


class ViewKind(enum.IntEnum):
    LIST = 0
    INFO = 1
    SAMPLES = 2


class ViewBy(enum.IntEnum):
    UNDECIDED = 0
    US = 1
    DRIVER = 2


class ViewCount(enum.IntEnum):
    LISTS = 0
    INFOS = 1
    SAMPLES = 2
    HIDDEN = 3
    BOOK_FULL = 4
    CALL_FULL = 5
    BAD_READ = 6
    BAD_WRITE = 7
    BAD_NUMBER = 8
    RETURN_LOST = 9
    CONFLICT = 10
    CHANGED = 11
    OVER_BUDGET = 12


class GateFlag(enum.IntFlag):
    ALL = 1


_u8, _u16, _u32, _u64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
_i64 = ctypes.c_int64
_CHARGED = (("owner", _u32), ("room", _u32))
"""Whose entry it is."""
_Kind: TypeAlias = "type[ctypes._SimpleCData[Any]] | type[ctypes.Array[Any]]"


def _of(kind: _Kind, names: str) -> tuple[tuple[str, _Kind], ...]:
    """Fields of one kind."""
    return tuple((name, kind) for name in names.split())


class Busy(ctypes.Structure):
    _fields_ = _of(_u64, "streams v_open_ns open_ns gpu_time_ns wall_ns bursts")


class Ctx(ctypes.Structure):
    _fields_ = (
        *_of(_u64, "handle cgroup_id"),
        *_of(_u32, "tgid generation"),
        *_of(_u16, "gpu flags"),
        ("ordinal", _u32),
        *_of(_u64, "submitted completed proven counted synced last_call_ns waited_ns tight"),
        *_of(_u64, "stream_used blocking asked charged_id"),
        *_CHARGED,
        *_of(_u64, "followed_ns muted"),
        ("busy", Busy * ENGINES),
    )


class GraphLaunch(ctypes.Structure):
    _fields_ = [("seq", _u64), ("handle", _u64)]


class Graphs(ctypes.Structure):
    _fields_ = [("total", _u64), ("generation", _u32), ("pad", _u32), ("latest", GraphLaunch * KEPT_GRAPHS)]


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
    _fields_ = _of(_u64, "gpu_time_ns copy_time_ns wait_ns bursts launches")


class DelayKey(ctypes.Structure):
    _fields_ = (("cgroup_id", _u64), ("gpu", _u32), ("pad", _u32))


class Delay(ctypes.Structure):
    _fields_ = (("bucket", _u64 * DELAY_BUCKETS), ("sum_ns", _u64))


class Edge(ctypes.Structure):
    _fields_ = (
        *_of(_u64, "t_ns cgroup_id arg seq"),
        *_of(_u32, "slot generation tgid"),
        ("gpu", _u16),
        *_of(_u8, "kind engine"),
    )


class DevKey(ctypes.Structure):
    _fields_ = (("tgid", _u32), ("ordinal", _u32))


class Uuid(ctypes.Structure):
    _fields_ = (("bytes", _u8 * 16),)


class Budget(ctypes.Structure):
    _fields_ = (
        ("used", _u64 * ENTRY_TABLES),
        ("refused", _u64 * len(Table)),
        ("refused_ns", _u64 * len(Table)),
        ("edges_ns", _u64),
    )


class Limits(ctypes.Structure):
    _fields_ = (
        *_of(_u64 * ENTRY_TABLES, "reserve ceiling shared shared_used"),
        *_of(_u64, "edge_ns edge_burst_ns turn_ns mark_bits"),
    )


class DrainArgs(ctypes.Structure):
    _fields_ = (("slot", _u64), ("generation", _u64), ("v_end_ns", _u64), ("engine", _u64))


class SlotArgs(ctypes.Structure):
    _fields_ = (("slot", _u64), ("generation", _u64))


class ObjectKey(ctypes.Structure):
    _fields_ = (("client", _u32), ("handle", _u32))


class Object(ctypes.Structure):
    _fields_ = (
        *_of(_u64, "serial parent_serial"),
        *_of(_i64, "vram_bytes computes contexts"),
        *_of(_u32, "parent class gpu is_group"),
        *_CHARGED,
    )


class Held(ctypes.Structure):
    _fields_ = (("vram_bytes", _i64), ("contexts", _i64))


class Client(ctypes.Structure):
    _fields_ = (
        *_of(_u64, "serial file file_serial cgroup_id is_gone"),
        *_of(_u32, "tgid handle"),
        *_CHARGED,
        ("held", Held * GPUS_HELD),
        ("above", _u64 * MAX_CGROUP_DEPTH),
        ("freed", _i64 * MAX_GPUS),
    )


class CgroupVram(ctypes.Structure):
    _fields_ = (("bytes", _i64 * MAX_GPUS), *_of(_u64, "begun ended"), *_CHARGED)


class VramLimit(ctypes.Structure):
    _fields_ = (("bytes", _u64), ("above", _u64), ("tenant", _u64), ("cgroup", _u64 * MAX_LIMIT_CGROUPS))


class RefusalKey(ctypes.Structure):
    _fields_ = (("tenant", _u64), ("gpu", _u32), ("pad", _u32))


class Refusal(ctypes.Structure):
    _fields_ = _of(_u64, "refused t_ns asked_bytes held_bytes tgid")


class File(ctypes.Structure):
    _fields_ = (("serial", _u64), ("client", _u64 * MAX_FILE_CLIENTS), *_CHARGED)


class Maker(ctypes.Structure):
    _fields_ = (("gone_ns", _u64), *_CHARGED, *_of(_u32, "is_partial pad"))


class Caller(ctypes.Structure):
    _fields_ = (("cgroup_id", _u64), ("tgid", _u32), ("pad", _u32))


class Calls(ctypes.Structure):
    _fields_ = (*_of(_u64, "ioctls failed time_ns opens"), *_CHARGED)


class Inode(ctypes.Structure):
    _fields_ = (("device", _u64), ("inode", _u64))


class GoneArgs(ctypes.Structure):
    _fields_ = (("client", _u64), ("serial", _u64))


class ForgottenArgs(ctypes.Structure):
    _fields_ = _of(_u64, "entry key more serial")


class PidKey(ctypes.Structure):
    _fields_ = (("ns", _u32), ("pid", _u32))


class PidNr(ctypes.Structure):
    _fields_ = (("nr", _u32), *_CHARGED, ("pad", _u32))


class Gate(ctypes.Structure):
    _fields_ = (("gpus", _u64 * GATE_WORDS), ("flags", _u32), ("pad", _u32))


class GateHead(ctypes.Structure):
    _fields_ = (("magic", _u64), ("owner", _u64), ("build", _u8 * 16), ("denied", _u64), ("blind", _u64))


STRUCTS: dict[str, type[ctypes.Structure]] = {
    "fs_busy": Busy,
    "fs_ctx": Ctx,
    "fs_graph_launch": GraphLaunch,
    "fs_graphs": Graphs,
    "fs_clock": Clock,
    "fs_use_key": UseKey,
    "fs_use": Use,
    "fs_delay_key": DelayKey,
    "fs_delay": Delay,
    "fs_edge": Edge,
    "fs_dev_key": DevKey,
    "fs_uuid": Uuid,
    "fs_budget": Budget,
    "fs_limits": Limits,
    "fs_drain_args": DrainArgs,
    "fs_slot_args": SlotArgs,
    "fs_object_key": ObjectKey,
    "fs_object": Object,
    "fs_held": Held,
    "fs_client": Client,
    "fs_cgroup_vram": CgroupVram,
    "fs_vram_limit": VramLimit,
    "fs_refusal_key": RefusalKey,
    "fs_refusal": Refusal,
    "fs_file": File,
    "fs_caller": Caller,
    "fs_maker": Maker,
    "fs_calls": Calls,
    "fs_inode": Inode,
    "fs_gone_args": GoneArgs,
    "fs_forgotten_args": ForgottenArgs,
    "fs_pid_key": PidKey,
    "fs_pid_nr": PidNr,
    "fs_gate": Gate,
    "fs_gate_head": GateHead,
}


def clock_n(word: int) -> int:
    """Busy contexts in a clock word."""
    return word >> CLOCK_SHIFT


def clock_v(word: int, now_ns: int) -> int:
    """V in ns at ``now_ns``, modulo 2^52; twin of clock_v() in clock.h."""
    n = clock_n(word)
    return ((word & CLOCK_MASK) + (now_ns // n if n else 0)) & CLOCK_MASK


def clock_since(a: int, b: int) -> int:
    """a - b in clock arithmetic, 0 when b is ahead; twin of clock_since() in clock.h."""
    d = (a - b) & CLOCK_MASK
    return 0 if d >> (CLOCK_SHIFT - 1) else d
