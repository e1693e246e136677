# SPDX-License-Identifier: Apache-2.0
"""How far the daemon's account is from the truth: every kind of work alone and mixed, scheduled and not."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.rig import Reading, Rig, RunningDaemon, TenantLoad, cpu_pressure_s, read_together
from benchmarks.stats import relative_error, shares
from fairsched.simgpu import PRESETS, Worker

MODES = ("observe", "enforce")
MIN_SHARE_RATIO = 0.1
UNSEEABLE = frozenset({"poll", "nosync"})
"""Kinds that never call anything that proves completion."""

_TRAINERS = replace(PRESETS["trainer"], processes=3)


@dataclass(frozen=True)
class Case:
    """Tenants side by side."""

    name: str
    loads: tuple[TenantLoad, ...]
    is_late: bool = False
    """The tenants are older than the daemon: their contexts were created unseen."""

    @property
    def is_hostile(self) -> bool:
        return any(load.workload.kind in UNSEEABLE for load in self.loads)


def _load(name: str, weight: float = 1.0) -> TenantLoad:
    """The preset of that name; ``trainers`` is one of three processes. Trainers are of class batch."""
    workload = _TRAINERS if name == "trainers" else PRESETS[name]
    return TenantLoad(name, workload, weight, "batch" if workload.kind == "trainer" else "latency")


def _mix(*names: str, name: str | None = None, is_late: bool = False) -> Case:
    """Weights n, n-1, ... 1, so that enforcing has something to do."""
    loads = tuple(_load(one, len(names) - number) for number, one in enumerate(names))
    return Case(name or "+".join(names), loads, is_late)


ALONE = tuple(Case(name, (_load(name),)) for name in (*PRESETS, "trainers"))
MIXES = (
    _mix("decode", "prefill", "trainer"),
    _mix("decode", "trainers"),
    _mix("decode", "trainers", name="late", is_late=True),
    _mix("burst", "graph", "trainer"),
    _mix("decode", "longkernel"),
    _mix("decode", "graph", "prefill", "burst", "trainers", "longkernel", name="six"),
    _mix("decode", "trainer", "poll"),
    _mix("decode", "trainer", "nosync"),
)
Group = tuple[Case, ...]
"""Cases that share a daemon, to save its start. What confuses it must not spoil what comes after."""
GROUPS: tuple[Group, ...] = (
    tuple(case for case in ALONE if not case.is_hostile),
    tuple(case for case in ALONE if case.is_hostile),
    *((case,) for case in MIXES),
)


def is_only_asked(group: Group) -> bool:
    """Nothing in it can be accounted: all that counts is whether the daemon knows."""
    return all(load.workload.kind in UNSEEABLE for case in group for load in case.loads)


SERIES = tuple(
    (mode, group) for mode in MODES for group in GROUPS if mode == "observe" or not is_only_asked(group)
)
"""What is measured, in order. One that cannot be seen is never held, so alone it is not measured twice."""


@dataclass(frozen=True)
class TenantError:
    """One tenant in one case."""

    case: str
    mode: str
    tenant: str
    kind: str
    counts_for: str
    """The figure it belongs to: account, others (beside a hostile one), confidence, unsure, or small."""
    share_ratio: float
    truth_s: float
    account_s: float
    error_ratio: float | None
    confidence: Mapping[str, int] = field(default_factory=dict)
    """Samples of ``status``, one a second, by what they said."""

    @property
    def low_ratio(self) -> float | None:
        """Part of the samples that knew anything in which it was not to be trusted."""
        known = self.confidence.get("low", 0) + self.confidence.get("high", 0)
        return self.confidence.get("low", 0) / known if known else None


def classify(kind: str, is_hostile: bool, share_ratio: float, low_ratio: float | None) -> str:
    """Which figure an error counts for."""
    if kind in UNSEEABLE:
        return "confidence"
    if share_ratio < MIN_SHARE_RATIO:
        return "small"
    if is_hostile:
        return "others"
    return "account" if low_ratio is not None and low_ratio < 0.5 else "unsure"


def compare(
    case: Case, mode: str, before: Reading, after: Reading, confidence: Mapping[str, Mapping[str, int]]
) -> list[TenantError]:
    """The account's growth against the truth's."""
    truth = {name: after.truth_ns[name] - before.truth_ns[name] for name in after.truth_ns}
    share = shares(truth)
    found = []
    for load in case.loads:
        name, kind = load.name, load.workload.kind
        account = after.account_ns.get(name, 0) - before.account_ns.get(name, 0)
        error = TenantError(
            case=case.name,
            mode=mode,
            tenant=name,
            kind=kind,
            counts_for="",
            share_ratio=share[name],
            truth_s=truth[name] / 1e9,
            account_s=account / 1e9,
            error_ratio=relative_error(account, truth[name]),
            confidence=dict(confidence.get(name, {})),
        )
        found.append(replace(error, counts_for=classify(kind, case.is_hostile, share[name], error.low_ratio)))
    return found


def worst(errors: Iterable[TenantError], counts_for: str) -> TenantError | None:
    """The one with the largest error; None when no case counts for the figure."""
    chosen = [e for e in errors if e.counts_for == counts_for and e.error_ratio is not None]
    return max(chosen, key=lambda e: abs(e.error_ratio or 0.0), default=None)


@dataclass(frozen=True)
class Outcome:
    """One case, measured."""

    errors: list[TenantError]
    warnings: list[str]
    """What the daemon warned of meanwhile."""
    cpu_wait_ratio: float | None
    """Part of the time in which some task of this machine waited for a CPU; see rig.cpu_pressure_s."""


def measure(
    rig: Rig, group: Group, mode: str, *, seconds: float, settle_s: float, seed: int
) -> Iterator[Outcome]:
    """The cases of a group, one after the other, beside one daemon; each is measured when it is asked for."""
    loads = [load for case in group for load in case.loads]
    if group[0].is_late:
        with rig.tenants(loads, seed) as workers, rig.daemon(mode, loads) as daemon:
            yield _watch(rig, group[0], mode, daemon, workers, seconds, settle_s)
        return
    with rig.daemon(mode, loads) as daemon:
        for case in group:
            with rig.tenants(case.loads, seed) as workers:
                yield _watch(rig, case, mode, daemon, workers, seconds, settle_s)


def _watch(
    rig: Rig,
    case: Case,
    mode: str,
    daemon: RunningDaemon,
    workers: dict[str, list[Worker]],
    seconds: float,
    settle_s: float,
) -> Outcome:
    time.sleep(settle_s)
    before = read_together(rig, daemon, workers)
    start_s, waited_s = time.monotonic(), cpu_pressure_s()
    seen: dict[str, Counter[str]] = {}
    warnings: set[str] = set()
    while (left_s := start_s + seconds - time.monotonic()) > 0:
        time.sleep(min(1.0, left_s))
        status = daemon.status()
        warnings |= set(status["warnings"])
        _note_confidence(status, seen)
    after = read_together(rig, daemon, workers)
    waited_now_s, wall_s = cpu_pressure_s(), time.monotonic() - start_s
    warnings |= set(daemon.log_lines("level=error", "Traceback"))
    return Outcome(
        compare(case, mode, before, after, seen),
        sorted(warnings),
        None if waited_s is None or waited_now_s is None else (waited_now_s - waited_s) / wall_s,
    )


def _note_confidence(status: Mapping[str, Any], seen: dict[str, Counter[str]]) -> None:
    for tenant in status["tenants"]:
        seen.setdefault(tenant["name"], Counter())[tenant["confidence"]] += 1
