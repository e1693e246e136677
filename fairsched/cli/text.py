# SPDX-License-Identifier: Apache-2.0
"""Numbers and reasons as words. Pure functions; None is "n/a", never 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fairsched.base.printable import printable
from fairsched.base.text import NOT_KNOWN, counted, percent
from fairsched.model import MisbehaviourKind, Reason, ReasonCode

if TYPE_CHECKING:
    from fairsched.protocol.status import GpuStatus, MisbehaviourStatus, VramStatus


_REASONS = {
    ReasonCode.OVER_ENTITLEMENT: "it is ahead of its share",
    ReasonCode.OVER_QUOTA: "it used up its quota",
    ReasonCode.DEEP_QUEUE: "it queued what its turn was for at once",
    ReasonCode.MEASURING: "another tenant has the GPU for a moment, to measure what its work costs",
    ReasonCode.CAUGHT_UP: "the others caught up",
    ReasonCode.GPU_IDLE: "the GPU would have idled",
    ReasonCode.LAST_WITH_DEMAND: "nobody else wants the GPU",
    ReasonCode.DEADLINE: "the longest allowed hold was reached",
    ReasonCode.LOW_CONFIDENCE: "its account is not reliable enough",
    ReasonCode.EXEMPT: "it is exempt",
    ReasonCode.NO_DEMAND: "it has no work left",
    ReasonCode.SHUTDOWN: "fairsched stopped, or changed its mode",
    ReasonCode.FOREIGN: "somebody else paused it",
    ReasonCode.OVER_VRAM: "it has more GPU memory than its limit",
    ReasonCode.CONTRADICTED: "the GPU was idle though the account had it busy",
}


def milliseconds(value_ms: float | None, *, signed: bool = False) -> str:
    """Three significant figures at most: 0.42, 4.2, 42, 4200."""
    if value_ms is None:
        return NOT_KNOWN
    size = abs(value_ms)
    digits = 2 if 0 < size < 1 else 1 if 0 < size < 10 else 0
    return f"{value_ms:{'+' if signed else ''}.{digits}f}"


def with_unit(number: str, unit: str) -> str:
    """``4.2 ms``; what is not known has no unit."""
    return number if number == NOT_KNOWN else f"{number} {unit}"


def duration(seconds: float) -> str:
    """``4 s``, ``3 min 20 s``, ``2 h 13 min``, ``5 d 2 h``."""
    whole = int(seconds)
    for size, unit, below, below_unit in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit}" + (f" {rest} {below_unit}" if rest else "")
    return f"{whole} s"


def gibibytes(value: int | None) -> str:
    return NOT_KNOWN if value is None else f"{value / 2**30:.1f}"


def short_size(value: int | None) -> str:
    """``18.0G``, and below a tenth of a GiB ``33M``."""
    if value is None:
        return NOT_KNOWN
    if value < 2**30 // 10:
        return f"{-(-value // 2**20)}M" if value else "0"
    return f"{value / 2**30:.1f}G"


def short_uuid(uuid: str) -> str:
    """``GPU-5f2c1a90-...`` as ``GPU-5f2c1a90``; MIG UUIDs alike, and old ones as ``MIG-5f2c1a90/1/0``."""
    if uuid.startswith("MIG-GPU-"):
        return f"MIG-{uuid[8:16]}/{uuid.partition('/')[2]}"
    head, _, tail = uuid.partition("-")
    return f"{head}-{tail.split('-')[0][:8]}" if tail else uuid[:12]


def gpu_name(gpu: GpuStatus) -> str:
    """The model; of a MIG instance its size."""
    return gpu.name or "" if gpu.parent_uuid is None else f"MIG {gpu.mig_profile or ''}".rstrip()


def gpu_index(gpu: GpuStatus) -> str:
    """As people number it."""
    return gpu.index_text


def short_command(command: str | None) -> str:
    """Without the directory of the program: there is little room."""
    if command is None:
        return NOT_KNOWN
    program, blank, words = command.partition(" ")
    return printable((program.rpartition("/")[2] or program) + blank + words)


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def cut_name(name: str, width: int) -> str:
    """Of a tenant, with both its ends: the namespace is at the one, and pods of one job differ at the other."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}…{name[len(name) - end :]}"


def reason_words(code: ReasonCode) -> str:
    """Without numbers."""
    return _REASONS[code]


def reason_text(reason: Reason) -> str:
    """``it is ahead of its share: used 31.0%, entitled 25.0% of GPU-5f2c1a90, lag -62 ms``."""
    parts: list[str] = []
    if reason.used_ratio is not None:
        parts.append(f"used {percent(reason.used_ratio)}%")
    if reason.entitlement_ratio is not None:
        parts.append(f"entitled {percent(reason.entitlement_ratio)}%")
    if parts and reason.gpu is not None:
        parts[-1] += f" of {short_uuid(reason.gpu)}"
    if reason.lag_ns is not None:
        limit = "" if reason.threshold_ns is None else f" (limit {_ms(-abs(reason.threshold_ns))})"
        parts.append(f"lag {milliseconds(reason.lag_ns / 1e6, signed=True)} ms{limit}")
    if reason.outstanding_ns:
        parts.append(f"{_ms(reason.outstanding_ns)} still queued count as used")
    if reason.vram_bytes is not None:
        of = "" if reason.vram_limit_bytes is None else f" of {gibibytes(reason.vram_limit_bytes)}"
        where = "" if reason.gpu is None else f" on {short_uuid(reason.gpu)}"
        parts.append(f"{gibibytes(reason.vram_bytes)}{of} GiB{where}")
    numbers = ", ".join(parts)
    return _REASONS[reason.code] + (f": {numbers}" if numbers else "")


_MISBEHAVIOURS = {
    MisbehaviourKind.ENDLESS: "endless GPU work",
    MisbehaviourKind.UNSEEN: "unseen GPU work",
    MisbehaviourKind.MOVING: "leaving its cgroup, with GPU work",
}
_ACTIONS = {
    "warn": "observed, not held",
    "terminate": "being terminated",
    "would_terminate": "would be terminated in mode enforce",
}


def misbehaviour_text(one: MisbehaviourStatus, now_s: float) -> str:
    """``endless GPU work on GPU-5f2c1a90 for 12 s, being terminated: 4 contexts have completed ...``"""
    lasted = duration(max(0.0, now_s - one.since_s))
    is_held = one.kind is MisbehaviourKind.MOVING and one.action == "warn"
    action = "held when it is there" if is_held else _ACTIONS.get(one.action, one.action)
    return f"{_MISBEHAVIOURS[one.kind]} on {short_uuid(one.gpu)} for {lasted}, {action}: {one.detail}"


_VRAM_ACTIONS = {
    "warn": "warned of only",
    "hold": "held again and again",
    "terminate": "the process that has most is being terminated",
    "would_hold": "would be held in mode enforce",
    "would_terminate": "the process that has most would be terminated in mode enforce",
}


def vram_text(one: VramStatus, now_s: float) -> tuple[bool, str]:
    """Whether it is beyond the limit, and ``GPU memory on GPU-5f2c1a90: 3.1 of 8.0 GiB, 2 allocations refused``."""
    refused = f", {counted(one.refused, 'allocation')} refused" if one.refused else ""
    text = f"{gibibytes(one.used_bytes)} of {gibibytes(one.limit_bytes)} GiB{refused}"
    if one.over_since_s is None:
        return False, f"GPU memory on {short_uuid(one.gpu)}: {text}"
    lasted = duration(max(0.0, now_s - one.over_since_s))
    action = _VRAM_ACTIONS.get(one.action or "warn", one.action)
    pid = "" if one.pid is None else f" (pid {one.pid})"
    return True, f"beyond its GPU memory on {short_uuid(one.gpu)} for {lasted}, {action}{pid}: {text}"


def _ms(value_ns: int) -> str:
    return f"{milliseconds(value_ns / 1e6)} ms"


def table(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Columns as wide as their widest cell, two spaces apart; `right` columns are right-aligned."""
    aligned = set(right)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column in aligned else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
