# SPDX-License-Identifier: Apache-2.0
"""Which case counts for which figure, and the comparison of account and truth."""

from __future__ import annotations

import pytest

from benchmarks import accounts
from benchmarks.accounts import GROUPS, classify
from benchmarks.rig import Reading
from fairsched.simgpu import KINDS, GpuTruth

GPU = GpuTruth(
    gpu=0,
    uuid="GPU-0",
    start_ns=0,
    as_of_ns=0,
    busy_ns=0,
    switch_ns=0,
    copy_ns=0,
    switches=0,
    vram_used_bytes=0,
    util_pct=0,
)


@pytest.mark.parametrize(
    ("kind", "is_hostile", "share", "low", "figure"),
    [
        ("decode", False, 0.5, 0.0, "account"),
        ("decode", False, 0.5, 0.8, "unsure"),
        ("decode", False, 0.5, None, "unsure"),
        ("decode", False, 0.09, 0.0, "small"),
        ("decode", True, 0.5, 0.0, "others"),
        ("poll", True, 0.5, 0.0, "confidence"),
        ("nosync", False, 0.01, None, "confidence"),
    ],
)
def test_no_error_of_a_large_tenant_escapes_all_figures(
    kind: str, is_hostile: bool, share: float, low: float | None, figure: str
) -> None:
    assert classify(kind, is_hostile, share, low) == figure


def test_every_kind_of_work_is_measured_alone_and_mixed() -> None:
    cases = [case for group in GROUPS for case in group]
    alone = {case.loads[0].workload.kind for case in cases if len(case.loads) == 1}
    mixed = {load.workload.kind for case in cases if len(case.loads) > 1 for load in case.loads}
    assert alone == mixed == set(KINDS)


def test_names_tell_cases_apart_and_tenants_of_one_daemon() -> None:
    names = [case.name for group in GROUPS for case in group]
    assert len(names) == len(set(names))
    for group in GROUPS:
        tenants = [load.name for case in group for load in case.loads]
        assert len(tenants) == len(set(tenants))


def test_what_confuses_the_account_shares_no_daemon_with_what_is_judged() -> None:
    for group in GROUPS:
        hostile = [case.is_hostile for case in group]
        assert all(hostile) or not any(hostile)
        assert len(group) == 1 or all(len(case.loads) == 1 and not case.is_late for case in group)


def test_the_growth_of_the_account_is_held_against_the_truth() -> None:
    (case,) = (c for group in GROUPS for c in group if c.name == "decode+trainer+poll")
    before = Reading(GPU, {"decode": 1000, "trainer": 0, "poll": 0}, {"decode": 900})
    after = Reading(GPU, {"decode": 2000, "trainer": 1000, "poll": 0}, {"decode": 1920, "trainer": 980})
    decode, trainer, poll = accounts.compare(case, "observe", before, after, {"poll": {"low": 3, "none": 1}})
    assert (decode.share_ratio, trainer.share_ratio) == (0.5, 0.5)
    assert decode.error_ratio == pytest.approx(0.02)
    assert trainer.error_ratio == pytest.approx(-0.02)
    assert (poll.error_ratio, poll.low_ratio) == (None, 1.0)
    assert accounts.worst([decode, trainer, poll], "others") in (decode, trainer)
    assert accounts.worst([poll], "account") is None
