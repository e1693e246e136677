# SPDX-License-Identifier: Apache-2.0
"""What status says besides numbers: the reasons it gives are those of this daemon, now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairsched import reporting
from fairsched.gpu import Gpu
from fairsched.ledger import Ledger
from fairsched.model import ActionKind, Confidence, Hold, Reason, ReasonCode, Source
from fairsched.reporting import Vitals
from fairsched.status import DecisionRecord, TenantGpuStatus

S = 1_000_000_000


def sensors(**values: Any) -> Any:
    default: dict[str, Any] = {
        "source": Source.EBPF,
        "reason": None,
        "probe": None,
        "account": None,
        "nvml": None,
    }
    return SimpleNamespace(**{**default, **values})


def probe(**counts: int) -> SimpleNamespace:
    return SimpleNamespace(libraries=["libcuda.so.1"], counts=lambda: counts)


def warnings(mode: str = "enforce", **values: Any) -> list[str]:
    vitals = Vitals(0, 0, mode, None, 100, None, 0, 0)
    return list(reporting._warnings(vitals, cast(Any, SimpleNamespace(error=None)), sensors(**values)))


def test_all_is_well_and_nothing_is_said() -> None:
    assert warnings(probe=probe(ctx_full=0)) == []


def test_to_ask_for_holds_where_samples_are_all_there_is_is_warned_of() -> None:
    (said,) = warnings(source=Source.NVML, reason="bcc is not installed")
    assert "nobody is held although the mode is enforce" in said
    assert "doctor" in said
    for mode in ("observe", "dry_run"):
        assert warnings(mode, source=Source.NVML) == []


@pytest.mark.parametrize(
    "what", ["ctx_full", "use_full", "proc_full", "handle_full", "edge_dropped", "clock_range"]
)
def test_what_bpf_could_not_count_is_said(what: str) -> None:
    assert warnings(probe=probe(**{what: 3, "dep_dropped": 5})) == [f"BPF counted {what}: 3"]


def turns(**unsure: bool) -> SimpleNamespace:
    """An account of GPUs that are in doubt or not; their anchors hit in half of the cases."""
    slots = {int(name[3:]): SimpleNamespace(is_unsure=is_unsure) for name, is_unsure in unsure.items()}
    return SimpleNamespace(
        turns=slots,
        hit_ratios=lambda: dict.fromkeys(slots, 0.5),
        is_replay_trusted=lambda slot: slot == 2,
    )


def test_a_gpu_whose_turns_cannot_be_followed_is_named_and_that_nobody_is_held_there() -> None:
    gpus = (Gpu("GPU-a"), Gpu("GPU-b"))
    said = warnings(account=turns(gpu0=False, gpu1=True, gpu2=False), gpus=gpus)
    assert said == [
        "GPU-a: the time-slice replay agrees in 50% of cases; using the clock",
        "GPU-b: takes turns in a way the account cannot follow; nobody is held there",
    ]
    assert warnings(account=turns(gpu2=False), gpus=gpus) == []


def record(tenant: str, t_ns: int, held_ns: int | None) -> DecisionRecord:
    action = ActionKind.HOLD if held_ns is None else ActionKind.THAW
    return DecisionRecord(
        t_ns=t_ns,
        wall_time_s=0.0,
        action=action,
        tenant=tenant,
        reason=Reason(ReasonCode.DEADLINE),
        held_ns=held_ns,
        deadline_ns=None,
        is_dry_run=False,
        error=None,
    )


def test_what_is_on_record_is_told_apart_by_tenant() -> None:
    ledger = Ledger()
    ledger.total_ns = {("chat", "GPU-a"): 1, ("chat", "GPU-b"): 2, ("train", "GPU-a"): 3}
    records = [
        record("chat", 1 * S, S),
        record("chat", 11 * S, 3 * S),
        record("train", 12 * S, None),
        record("chat", 13 * S, S),
        record("chat", 14 * S, None),
    ]
    past = reporting._Past.of(ledger, records, 20 * S)
    assert past.total_ns == {"chat": {"GPU-a": 1, "GPU-b": 2}, "train": {"GPU-a": 3}}
    assert past.last == {"chat": records[4], "train": records[2]}
    assert past.recently_held_ns == {"chat": 2 * S}, "of the second only what is within ten seconds"


def test_a_hold_that_goes_on_counts_as_far_as_it_lies_in_the_last_ten_seconds() -> None:
    holds = {"chat": Hold("chat", 18 * S, 0, is_ours=True), "train": Hold("train", S, 0, is_ours=True)}
    applier = cast(Any, SimpleNamespace(is_dry_run=False, holds=holds))
    past = reporting._Past(recently_held_ns={"chat": S})
    shown = {
        name: reporting._held_ms_per_s(name, applier, past, 20 * S) for name in ("chat", "train", "other")
    }
    assert shown == {"chat": 300, "train": 1000, "other": 0}


def test_the_queue_delays_of_a_tenants_processes_are_added_up() -> None:
    delays = [
        (SimpleNamespace(cgroup_id=group), SimpleNamespace(bucket=bucket))
        for group, bucket in ((1, [1, 0, 2]), (2, [5, 5, 5]), (3, [9, 9, 9]), (1, [1, 1, 1]))
    ]
    watched = sensors(probe=SimpleNamespace(delays=lambda: delays))
    tree = cast(Any, SimpleNamespace(tenant_of={1: "chat", 2: "train"}.get))
    assert reporting._delays(watched, tree) == {"chat": [2, 1, 3], "train": [5, 5, 5]}


@pytest.mark.parametrize(
    ("confidence", "is_sampled", "says"),
    [
        (Confidence.HIGH, False, None),
        (Confidence.LOW, False, "launches without a call that proves completion: observed, not held"),
        (Confidence.LOW, True, "NVML samples only: observed, not held"),
    ],
)
def test_the_note_names_why_a_tenant_is_not_held(
    confidence: Confidence, is_sampled: bool, says: str | None
) -> None:
    assert reporting._note(TenantGpuStatus("GPU-a", confidence=confidence), is_sampled=is_sampled) == says
    assert reporting._note(None, is_sampled=is_sampled) is None
