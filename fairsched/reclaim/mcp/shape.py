# SPDX-License-Identifier: Apache-2.0
"""Shapes what tools return: numbers and fixed words at their places, all other text below ``untrusted`` (pure).

Problem: commands, containers, tenants, users and cgroups are named by people without privilege, and an assistant reads
them. Sentences of ours name them, too ("its parent 7 (train) has not reaped it").

Approach: whatever can hold such a name is a JSON value below a key ``untrusted``. Outside of it there are numbers,
truth values, UUIDs of GPUs and words from fixed lists. Values are cleaned: no control characters, no marks that turn
the direction of writing, and no more than a length, a count and a depth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fairsched.base.printable import printable
from fairsched.protocol.status import StatusReport
from fairsched.reclaim.check import GpuCheck
from fairsched.reclaim.end import Ended
from fairsched.reclaim.holder import GpuView, Holder
from fairsched.reclaim.marks import marks_of
from fairsched.reclaim.plan import Left, Target

Plain = dict[str, Any]
MAX_TEXT = 300
MAX_ITEMS = 200
MAX_DEPTH = 8


def clean(value: Any, depth: int = 0) -> Any:
    """Any JSON value, fit to leave: texts printable and cut, lists cut, nothing nested deeply."""
    if isinstance(value, str):
        return cut(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if depth >= MAX_DEPTH:
        return "(cut: nested too deeply)"
    if isinstance(value, Mapping):
        pairs = list(value.items())[:MAX_ITEMS]
        return {cut(str(key)): clean(one, depth + 1) for key, one in pairs}
    if isinstance(value, Sequence):
        return [clean(one, depth + 1) for one in value[:MAX_ITEMS]]
    return cut(str(value))


def cut(text: str) -> str:
    """Printable, and no longer than MAX_TEXT."""
    said = printable(text[: MAX_TEXT + 1])
    return said if len(said) <= MAX_TEXT else said[: MAX_TEXT - 1] + "…"


def gpu_view(view: GpuView) -> Plain:
    return {
        "uuid": cut(view.uuid),
        "index": view.index,
        "used_bytes": view.used_bytes,
        "total_bytes": view.total_bytes,
        "unseen_bytes": view.unseen_bytes,
        "opener_pids": list(view.openers[:MAX_ITEMS]),
    }


def process(holder: Holder) -> Plain:
    """One process on one GPU."""
    status, facts = holder.status, holder.facts
    return {
        "pid": holder.pid,
        "start_ticks": None if facts is None else facts.start_ticks,
        "gpu": cut(status.gpu),
        "gpu_index": holder.gpu_index,
        "uid": None if facts is None else facts.uid,
        "parent_pid": None if facts is None else facts.parent,
        "state": None if facts is None else facts.state,
        "vram_bytes": status.vram_bytes,
        "contexts": status.contexts,
        "gpu_time_s": status.gpu_time_s,
        "idle_s": status.idle_s,
        "age_s": None if holder.age_s is None else round(holder.age_s, 1),
        "is_orphan": holder.is_orphan,
        "is_zombie": holder.has_mark("zombie"),
        "mps": holder.mps,
        "is_confirmed": holder.is_listed,
        "source": holder.source,
        "untrusted": clean(
            {
                "command": status.command,
                "user": holder.user,
                "tenant": status.tenant,
                "cgroup": status.cgroup,
                "known_as": status.known_as,
                "container_id": status.container_id,
                "pod_uid": status.pod_uid,
                "marks": marks_of(holder),
            }
        ),
    }


def target(one: Target) -> Plain:
    """Who is to end."""
    plain = one.plain()
    return {
        "pid": one.pid,
        "start_ticks": one.facts.start_ticks,
        "uid": one.facts.uid,
        "vram_bytes": one.vram_bytes,
        "gpus": [cut(has.status.gpu) for has in one.holds],
        "untrusted": clean(
            {key: plain[key] for key in ("command", "user", "tenant", "cgroup", "known_as", "why", "notes")}
        ),
    }


def left(one: Left) -> Plain:
    """Who was chosen, or belongs to one, and is not to end."""
    return {
        "pid": one.pid,
        "is_refused": one.is_refused,
        "untrusted": clean({"name": one.name, "why": one.why}),
    }


def ended(one: Ended) -> Plain:
    """What became of a target."""
    return {
        "pid": one.target.pid,
        "start_ticks": one.target.facts.start_ticks,
        "fate": one.fate.value,
        "after_s": None if one.after_s is None else round(one.after_s, 3),
        "untrusted": clean({"command": one.target.facts.command, "why": one.why}),
    }


def gpu_check(one: GpuCheck) -> Plain:
    """What a GPU says afterwards."""
    return {
        "uuid": cut(one.uuid),
        "index": one.index,
        "before_bytes": one.before_bytes,
        "after_bytes": one.after_bytes,
        "is_free": one.is_free,
        "untrusted": clean({"still": one.still, "others": one.others, "notes": one.notes}),
    }


def status(report: StatusReport) -> Plain:
    """The daemon's summary."""
    return {
        "is_daemon_running": True,
        "mode": report.mode,
        "source": None if report.source is None else report.source.value,
        "uptime_s": round(report.uptime_s, 1),
        "fairness_error_ratio": report.fairness_error_ratio,
        "gpus": [
            {
                "uuid": cut(gpu.uuid),
                "index": gpu.index,
                "busy_ratio": gpu.busy_ratio,
                "memory_used_bytes": gpu.memory_used_bytes,
                "memory_total_bytes": gpu.memory_total_bytes,
            }
            for gpu in report.gpus[:MAX_ITEMS]
        ],
        "tenants": [
            {
                "state": one.state.value,
                "weight": one.weight,
                "entitled_ratio": one.entitled_ratio,
                "used_ratio": one.used_ratio,
                "lag_ms": one.lag_ms,
                "queue_delay_p99_ms": one.queue_delay_p99_ms,
                "gpu_time_s": one.gpu_time_s,
                "held_s": one.held_s,
                "processes": one.processes,
                "confidence": one.confidence.value,
                "untrusted": clean(
                    {
                        "name": one.name,
                        "known_as": one.known_as,
                        "note": one.note,
                        "misbehaviours": [dataclasses.asdict(bad) for bad in one.misbehaviours],
                    }
                ),
            }
            for one in report.tenants[:MAX_ITEMS]
        ],
        "untrusted": clean({"warnings": report.warnings}),
    }


def audit_entry(entry: Mapping[str, Any]) -> Plain:
    """One line of the log: its number, and the rest, in which names stand everywhere."""
    rest = {key: value for key, value in entry.items() if key not in ("seq", "prev", "hash")}
    return {"seq": entry.get("seq"), "untrusted": clean(rest)}
