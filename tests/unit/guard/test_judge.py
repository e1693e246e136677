# SPDX-License-Identifier: Apache-2.0
"""What limits come to, case by case: whom, when, in which words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fairsched.guard.allow import Allow
from fairsched.guard.breach import Act, Per, What
from fairsched.guard.hours import parse_hours, parse_maintenance
from fairsched.guard.judge import Judge
from fairsched.guard.rules import Bound, GuardRules, Project
from fairsched.guard.sample import GpuLoad, Round, Sample
from tests.unit.guard.made import T0, at, judge_of, news, process, vram

ALICE, ALSO, BOB = process(1), process(2), process(3, "bob")
HARD: dict[str, Any] = {"warnings": 2, "every_s": 20.0, "grace_s": 30.0, "is_hard": True}


def test_warnings_grace_and_end_come_one_after_the_other() -> None:
    judge = judge_of(vram(amount=10, **HARD))
    said = {}
    for t_s in range(0, 130, 10):
        (breach,) = judge.feed(at(t_s, Sample(ALICE, "GPU-a", 15)))
        if breach.is_news:
            said[t_s] = (breach.act, breach.warnings, breach.next_act, breach.next_s)
    assert said == {
        0: (Act.WARN, 1, Act.WARN, T0 + 20),
        20: (Act.WARN, 2, Act.END, T0 + 50),
        50: (Act.END, 2, Act.END, T0 + 110),
        110: (Act.END, 2, Act.END, T0 + 170),
    }


def test_without_hard_nobody_is_ever_ended() -> None:
    judge = judge_of(vram(amount=10, warnings=1, every_s=1.0, grace_s=0.0))
    acts = [one.act for t_s in range(0, 900, 10) for one in judge.feed(at(t_s, Sample(ALICE, "GPU-a", 15)))]
    assert set(acts) == {Act.WARN}


def test_the_youngest_that_is_enough_goes_alone() -> None:
    judge = judge_of(vram(amount=10, warnings=1, grace_s=10.0, is_hard=True))
    old, young, youngest = process(1), process(5), process(9)
    samples = [Sample(old, "GPU-a", 9), Sample(young, "GPU-a", 6), Sample(youngest, "GPU-a", 1)]
    judge.feed(at(0, *samples))
    (breach,) = judge.feed(at(10, *samples))
    assert (breach.act, breach.processes) == (Act.END, (young,))


def test_one_that_is_enough_goes_rather_than_two_that_are_younger() -> None:
    judge = judge_of(vram(amount=5, warnings=1, grace_s=10.0, is_hard=True))
    samples = [Sample(process(pid), "GPU-a", size) for pid, size in ((1, 5), (5, 3), (9, 2))]
    judge.feed(at(0, *samples))
    (breach,) = judge.feed(at(10, *samples))
    assert [one.pid for one in breach.processes] == [1]


def test_several_go_youngest_first_and_none_that_need_not() -> None:
    judge = judge_of(vram(amount=7, warnings=1, grace_s=10.0, is_hard=True))
    samples = [Sample(process(pid), "GPU-a", size) for pid, size in ((1, 5), (5, 4), (7, 4), (9, 1))]
    judge.feed(at(0, *samples))
    (breach,) = judge.feed(at(10, *samples))  # 7 too much: 1 + 4 + 4, of which 4 + 4 are enough
    assert [one.pid for one in breach.processes] == [7, 5]


def test_of_a_gpu_only_the_user_with_most_is_named_and_ended() -> None:
    judge = judge_of(vram(per=Per.GPU, amount=20, warnings=1, grace_s=10.0, is_hard=True))
    samples = [Sample(ALICE, "GPU-a", 9), Sample(ALSO, "GPU-a", 8), Sample(BOB, "GPU-a", 10)]
    (first,) = judge.feed(at(0, *samples))
    assert first.processes == (ALSO, ALICE)
    assert "user alice" in first.text and "bob" not in first.text
    (breach,) = judge.feed(at(10, *samples))
    assert (breach.act, breach.processes) == (Act.END, (ALSO,))


def test_nobody_is_ended_while_another_may_have_more() -> None:
    judge = judge_of(vram(per=Per.GPU, amount=20, warnings=1, grace_s=0.0, is_hard=True))
    samples = [Sample(ALICE, "GPU-a", 25), Sample(BOB, "GPU-a", None)]
    found = [one for t_s in (0, 10, 20) for one in judge.feed(at(t_s, *samples))]
    assert [(one.act, one.processes) for one in found] == [(Act.WARN, ())] * 3
    assert "at least" in found[0].text


def test_whoever_is_allowed_counts_and_stays() -> None:
    judge = judge_of(vram(amount=10, warnings=1, grace_s=10.0, is_hard=True))
    spared = process(9, cgroup="/spared/x")
    samples = [Sample(spared, "GPU-a", 9), Sample(ALICE, "GPU-a", 2)]
    judge.feed(at(0, *samples))
    (breach,) = judge.feed(at(10, *samples))
    assert (breach.used, breach.act, breach.processes) == (11, Act.END, (ALICE,))
    alone = [Sample(spared, "GPU-a", 11)]
    acts = {one.act for t_s in range(100, 400, 10) for one in judge.feed(at(t_s, *alone))}
    assert acts == {Act.WARN}


def test_whoever_may_be_allowed_by_a_digest_is_spared_until_that_had_the_time_to_be_known() -> None:
    digest = f"sha256:{'0f' * 32}"
    bound = vram(amount=10, warnings=1, grace_s=10.0, is_hard=True)
    rules = GuardRules((bound,), allow=Allow(programs=(digest,)))
    unknown, known = process(1), process(1, program_digest=digest)
    for last, acts in ((known, {Act.WARN}), (unknown, {Act.WARN, Act.END})):
        judge = Judge(rules)
        found = [
            one for t_s in range(0, 110, 10) for one in judge.feed(at(t_s, Sample(unknown, "GPU-a", 15)))
        ]
        assert {one.act for one in found} == {Act.WARN}
        found = [one for t_s in range(110, 200, 10) for one in judge.feed(at(t_s, Sample(last, "GPU-a", 15)))]
        assert {one.act for one in found} == acts


def test_a_process_on_two_gpus_is_one_process() -> None:
    judge = judge_of(
        vram(what=What.PROCESSES, amount=1), vram("some", what=What.PROCESSES, amount=1, gpus=("0", "1"))
    )
    assert judge.feed(at(0, Sample(ALICE, "GPU-a"), Sample(ALICE, "GPU-b"))) == []
    assert len(judge.feed(at(10, Sample(ALICE, "GPU-a"), Sample(ALSO, "GPU-b")))) == 2


def test_each_gpu_is_judged_by_itself_where_that_is_said() -> None:
    judge = judge_of(vram(amount=10, each_gpu=True), vram("all", amount=20))
    found = judge.feed(at(0, Sample(ALICE, "GPU-a", 12), Sample(ALSO, "GPU-b", 8)))
    assert [(one.limit, one.gpu, one.used) for one in found] == [("lim", "GPU-a", 12)]


def test_gpus_are_meant_by_index_or_uuid_and_none_is_while_the_index_is_not_known() -> None:
    judge = judge_of(vram(amount=10, gpus=("1",)), vram("uuid", amount=10, gpus=("GPU-b",)))
    sample = Sample(ALICE, "GPU-b", 11)
    assert [one.limit for one in judge.feed(at(0, sample))] == ["lim", "uuid"]
    judge = judge_of(vram(amount=10, gpus=("1",)))
    assert judge.feed(Round(T0, (sample,))) == []
    assert judge.feed(Round(T0 + 10, (sample,), {"GPU-b": GpuLoad(index=0)})) == []
    assert judge.notes() == ["lim: there is no GPU 1"]


def test_on_a_gpu_that_may_not_be_used_an_unknown_index_accuses_nobody() -> None:
    bound = Bound("own", Per.USER, What.GPUS, allowed_gpus=("0",))
    assert [
        one.processes for one in judge_of(bound).feed(at(0, Sample(ALICE, "GPU-b"), Sample(BOB, "GPU-a")))
    ] == [(ALICE,)]
    assert judge_of(bound).feed(Round(T0, (Sample(ALICE, "GPU-b"),), {"GPU-b": GpuLoad()})) == []


def test_a_limit_that_names_somebody_takes_the_place_of_one_for_all() -> None:
    everybody, named = vram(amount=10), vram("alice", amount=30, of=frozenset({"alice"}))
    samples = (Sample(ALICE, "GPU-a", 20), Sample(BOB, "GPU-a", 20))
    assert news(judge_of(everybody, named).feed(at(0, *samples))) == [("lim", "bob", Act.WARN)]
    part = replace(named, gpus=("0",))  # counts less than everybody's, which stays
    assert len(judge_of(everybody, part).feed(at(0, *samples))) == 2
    by_uid = replace(named, of=frozenset({"1000"}))
    assert news(judge_of(everybody, by_uid).feed(at(0, *samples))) == [("lim", "bob", Act.WARN)]
    other = replace(named, what=What.CONTEXTS)
    assert len(judge_of(everybody, other).feed(at(0, *samples))) == 2


def test_a_user_whose_name_is_lost_for_a_while_keeps_what_it_is_allowed() -> None:
    judge = judge_of(vram(amount=10), vram("alice", amount=30, of=frozenset({"alice"})))
    assert judge.feed(at(0, Sample(ALICE, "GPU-a", 20))) == []
    nameless = replace(ALICE, user="1000")
    assert judge.feed(at(10, Sample(nameless, "GPU-a", 20))) == []
    again = Judge(judge.rules, json.loads(json.dumps(judge.state())))
    assert again.feed(at(20, Sample(nameless, "GPU-a", 20))) == []


def test_groups_tenants_and_projects_add_up_everybody_in_them() -> None:
    one = process(1, groups=("ml",), tenant="lab/x")
    two = process(2, "bob", groups=("ml",), tenant="lab/y")
    project = Project("p", tenants=frozenset({"lab"}))
    judge = judge_of(
        *(vram(per.value, per=per, amount=10) for per in (Per.GROUP, Per.TENANT, Per.PROJECT)),
        projects=[project],
    )
    found = judge.feed(at(0, Sample(one, "GPU-a", 6), Sample(two, "GPU-b", 6)))
    assert sorted(breach.subject.text for breach in found) == ["group ml", "project p", "tenant lab"]
    assert all(breach.used == 12 for breach in found)


def test_outside_of_its_hours_everybody_of_a_subject_goes_but_the_allowed() -> None:
    hours = parse_hours(["mon 16:00-17:00"], "UTC")  # T0 is a Monday at 16:00 UTC
    bound = Bound("day", Per.USER, What.HOURS, hours=hours, warnings=1, grace_s=20.0, is_hard=True)
    judge = judge_of(bound)
    samples = (Sample(ALICE, "GPU-a"), Sample(ALSO, "GPU-b"), Sample(process(7, cgroup="/spared"), "GPU-a"))
    said = []
    for t_s in range(3540, 3640, 10):
        said += [(t_s, one.act, one.processes) for one in judge.feed(at(t_s, *samples)) if one.is_news]
    assert said == [(3600, Act.WARN, (ALSO, ALICE)), (3620, Act.END, (ALSO, ALICE))]
    assert "outside the hours of day (mon 16:00-mon 17:00, UTC)" in judge.feed(at(3700, *samples))[0].text


def maintenance(**other: Any) -> Bound:
    window = parse_maintenance("fw", "2025-11-24 16:10", "2025-11-24 16:20", "UTC", None)
    return Bound(
        "fw",
        Per.USER,
        What.MAINTENANCE,
        maintenance=window,
        warn_before_s=300.0,
        grace_s=300.0,
        warnings=1,
        is_hard=True,
        **other,
    )


def test_maintenance_is_told_before_it_begins_and_ends_who_is_there() -> None:
    judge, said = judge_of(maintenance()), []
    for t_s in range(0, 1300, 10):
        for one in judge.feed(at(t_s, Sample(ALICE, "GPU-a"))):
            if one.is_news:
                said.append((t_s, one.act, one.next_s and one.next_s - T0))
    assert said == [(300, Act.WARN, 600), (600, Act.END, 900), (900, Act.END, 1200)]
    assert (
        "begins at 2025-11-24T16:10Z" in judge_of(maintenance()).feed(at(300, Sample(ALICE, "GPU-a")))[0].text
    )


def test_maintenance_ends_nobody_before_it_begins() -> None:
    judge = judge_of(replace(maintenance(), grace_s=20.0))
    ends = [
        t_s
        for t_s in range(0, 900, 10)
        if any(one.act is Act.END for one in judge.feed(at(t_s, Sample(ALICE, "GPU-a"))))
    ]
    assert ends[0] == 600


def test_who_comes_late_into_maintenance_is_told_first() -> None:
    judge, said = judge_of(maintenance()), []
    for t_s in range(590, 1300, 10):
        for one in judge.feed(at(t_s, Sample(BOB, "GPU-a"))):
            if one.is_news:
                said.append((t_s, one.act))
    assert said == [(590, Act.WARN), (890, Act.END), (1190, Act.END)]


def test_flapping_spends_the_grace_and_an_hour_below_forgives() -> None:
    judge = judge_of(vram(amount=10, **HARD))
    acts = {}
    for number in range(40):  # over in every second round
        size = 15 if number % 2 == 0 else 5
        for one in judge.feed(at(number * 10, Sample(ALICE, "GPU-a", size))):
            if one.is_news:
                acts[number * 10] = one.act
    assert acts == {0: Act.WARN, 40: Act.WARN, 100: Act.END, 220: Act.END, 340: Act.END}
    judge.feed(at(400, Sample(ALICE, "GPU-a", 5)))
    (still,) = judge.feed(at(3900, Sample(ALICE, "GPU-a", 15)))
    assert still.warnings == 2  # the last time over was at 380
    (anew,) = judge.feed(at(7500, Sample(ALICE, "GPU-a", 15)))
    assert (anew.warnings, anew.is_news) == (1, True)


def test_an_hour_below_forgives_to_the_second() -> None:
    for back_s, warnings in ((3599, 2), (3600, 1)):
        judge = judge_of(vram(amount=10, **HARD))
        for t_s in (0, 20, *range(100, 3601, 100)):
            judge.feed(at(t_s, Sample(ALICE, "GPU-a", 15 if t_s < 100 else 5)))
        (breach,) = judge.feed(at(20 + back_s, Sample(ALICE, "GPU-a", 15)))
        assert breach.warnings == warnings


def test_time_that_nobody_saw_and_a_clock_that_is_set_spend_nothing() -> None:
    judge = judge_of(vram(amount=10, **HARD))
    moments = [0, 20, 3000, 2000, 2100, 2099]
    found = [judge.feed(at(t_s, Sample(ALICE, "GPU-a", 15)))[0] for t_s in moments]
    assert [one.act for one in found] == [Act.WARN] * 4 + [Act.END] + [Act.WARN]
    assert [one.is_news for one in found] == [True, True, False, False, True, False]
    assert found[-1].since_s <= T0 + 2099


def test_another_amount_begins_with_its_warnings() -> None:
    judge = judge_of(vram(amount=10, **HARD))
    for t_s in (0, 20, 40):
        judge.feed(at(t_s, Sample(ALICE, "GPU-a", 15)))
    state = json.loads(json.dumps(judge.state()))
    (same,) = judge_of(vram(amount=10, **HARD), state=state).feed(at(50, Sample(ALICE, "GPU-a", 15)))
    assert same.act is Act.END
    (lower,) = judge_of(vram(amount=9, **HARD), state=state).feed(at(50, Sample(ALICE, "GPU-a", 15)))
    assert (lower.act, lower.warnings) == (Act.WARN, 1)
    (anew,) = judge_of(vram(amount=10, **HARD)).feed(at(50, Sample(ALICE, "GPU-a", 15)))
    assert (anew.act, anew.warnings) == (Act.WARN, 1)


@pytest.mark.parametrize(
    "state", [{}, {"version": 1}, {"version": 2}, [], 7, {"version": 1, "t_s": "x", "begun_s": None}]
)
def test_a_broken_state_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="not the state of a judge"):
        judge_of(vram(), state=state)


def test_a_broken_part_of_a_state_is_refused() -> None:
    judge = judge_of(vram(amount=10), vram("day", what=What.GPU_SECONDS))
    for t_s in (0, 10):
        judge.feed(at(t_s, Sample(ALICE, "GPU-a", 15, 1, t_s / 2), tenants={"chat": {"GPU-a": 1.0}}))
    good = json.loads(json.dumps(judge.state()))
    judge_of(vram(amount=10), vram("day", what=What.GPU_SECONDS), state=good)
    for key in ("ladders", "ledger", "counters", "tenants", "gpus", "users"):
        for bad in (7, [[1]], {"UTC": {"x": [[1]]}}):
            with pytest.raises(ValueError, match="not the state of a judge"):
                judge_of(vram(amount=10), vram("day", what=What.GPU_SECONDS), state={**good, key: bad})


def test_only_tenants_that_are_the_subjects_alone_are_held() -> None:
    judge = judge_of(vram(amount=10, soft=Act.HOLD))
    own, shared, other = process(1, tenant="chat"), process(2, tenant="lab"), process(3, "bob", tenant="lab")
    samples = [Sample(own, "GPU-a", 9), Sample(shared, "GPU-a", 9), Sample(other, "GPU-b", 1)]
    (breach,) = judge.feed(at(0, *samples))
    assert (breach.act, breach.tenants) == (Act.HOLD, ("chat",))
    (breach,) = judge.feed(at(10, *samples[:2]))
    assert breach.tenants == ("chat", "lab")
    spared = Sample(process(4, cgroup="/spared", tenant="chat"), "GPU-a", 0)
    (breach,) = judge.feed(at(20, *samples[:2], spared))
    assert breach.tenants == ("lab",)


@pytest.mark.parametrize("has_time", [False, True])
def test_tenants_that_come_and_go_leave_nothing_behind(has_time: bool) -> None:
    judge = judge_of(vram(per=Per.TENANT), vram("day", 1e9, per=Per.TENANT, what=What.GPU_SECONDS))
    for number in range(400):
        gpu_s = 1.0 if has_time else None
        job = process(100 + number, tenant=f"job-{number}")
        judge.feed(at(100.0 * number, Sample(job, "GPU-a", 5, 1, gpu_s), Sample(ALICE, "GPU-a", 5)))
    assert len(judge._sums) < 60 and len(judge._tally._buckets) < 60


def test_a_process_whose_gpu_time_nobody_knows_keeps_its_seat() -> None:
    """Else whoever may be allowed by a digest, which may never come, is taken to be, again and again."""
    allow = Allow(programs=("sha256:" + "0" * 64,))
    judge = Judge(
        GuardRules(
            (Bound("hours", Per.USER, What.HOURS, hours=parse_hours(["00:00-00:01"], "UTC")),), (), allow
        )
    )
    found = [bool(judge.feed(at(100.0 * number, Sample(ALICE, "GPU-a", 5)))) for number in range(30)]
    assert found == [False, False, *[True] * 28]


@pytest.mark.parametrize(
    ("may", "is_over"), [("GPU-a", False), ("0", False), ("MIG-a", False), ("MIG-b", True)]
)
def test_a_mig_instance_may_be_of_the_gpu_that_is_allowed(may: str, is_over: bool) -> None:
    judge = judge_of(vram(what=What.GPUS, amount=None, allowed_gpus=(may,)))  # type: ignore[arg-type]
    seen = Round(T0, (Sample(ALICE, "MIG-a", 5),), {"MIG-a": GpuLoad(index=0)})
    assert bool(judge.feed(seen)) is is_over
