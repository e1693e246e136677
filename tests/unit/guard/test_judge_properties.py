# SPDX-License-Identifier: Apache-2.0
"""What holds for every judge and recording: nobody innocent, nothing too soon, the same live, played, restarted."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.guard.breach import Act, Breach, Per, What
from fairsched.guard.judge import Judge
from fairsched.guard.ladder import BATCH_S
from fairsched.guard.report import GuardStatus, from_plain, to_plain
from fairsched.guard.rules import Bound, GuardRules
from fairsched.guard.sample import Process, Round, Sample
from fairsched.guard.tape import Recorder, play
from tests.unit.guard.made import ALLOW, GPUS, STEPS, rounds, rules

FORWARD = STEPS.filter(lambda step: step > 0)


def amount_of(bound: Bound, process: Process, moment: Round, gpu: str | None) -> float:
    """What one process has of what a bound limits."""
    gpus = {"0": "GPU-a"}
    counted = GPUS if bound.gpus is None else [gpus.get(one, one) for one in bound.gpus]
    mine = [
        one
        for one in moment.samples
        if one.process == process and one.gpu in counted and gpu in (None, one.gpu)
    ]
    if bound.what is What.PROCESSES:
        return float(bool(mine))
    return float(sum((one.vram_bytes if bound.what is What.VRAM else one.contexts) or 0 for one in mine))


def belongs(breach: Breach, process: Process, moment: Round) -> bool:
    name = breach.subject.name
    return {
        Per.USER: process.uid is not None and process.uid == breach.subject.uid,
        Per.GROUP: name in process.groups,
        Per.TENANT: process.tenant is not None and f"{process.tenant}/".startswith(f"{name}/"),
        Per.PROJECT: process.user == "alice" or (process.tenant or "").split("/")[0] == "lab",
        Per.GPU: any(one.process == process and one.gpu == name for one in moment.samples),
    }[breach.subject.per]


@settings(deadline=None, max_examples=200)
@given(rules(), rounds())
def test_nobody_is_ended_who_is_allowed_or_somebody_else_and_no_more_than_needed(
    made: GuardRules, moments: list[Round]
) -> None:
    judge = Judge(made)
    by_name = {bound.limit: bound for bound in made.bounds}
    for moment in moments:
        for breach in judge.feed(moment):
            bound = by_name[breach.limit]
            assert all(belongs(breach, one, moment) for one in breach.processes)
            if breach.act is not Act.END:
                continue
            assert breach.processes and bound.is_hard
            assert not any(ALLOW.why(one) for one in breach.processes)
            if bound.what in (What.GPUS, What.GPU_SECONDS, What.HOURS):
                continue
            assert breach.used is not None and breach.allowed is not None
            assert len({one.uid for one in breach.processes}) == 1
            gpu = breach.subject.name if bound.per is Per.GPU else breach.gpu
            gone = [amount_of(bound, one, moment, gpu) for one in breach.processes]
            assert all(gone)
            excess = breach.used - breach.allowed
            assert excess > 0
            if sum(gone) >= excess:
                assert all(sum(gone) - one < excess for one in gone), "one of them need not go"


@settings(deadline=None, max_examples=200)
@given(rules(), rounds())
def test_nobody_is_held_whose_tenant_has_somebody_else(made: GuardRules, moments: list[Round]) -> None:
    judge = Judge(made)
    for moment in moments:
        for breach in judge.feed(moment):
            for tenant in breach.tenants:
                there = {
                    one.process
                    for one in moment.samples
                    if one.process.tenant is not None and f"{one.process.tenant}/".startswith(f"{tenant}/")
                }
                assert there and all(belongs(breach, one, moment) for one in there)
                assert not any(ALLOW.why(one) for one in there)
                if breach.subject.per is Per.GPU and breach.allowed is not None:
                    assert len({one.uid for one in there}) == 1


@settings(deadline=None, max_examples=200)
@given(rules(), rounds(FORWARD))
def test_nothing_comes_sooner_than_warnings_and_grace_allow(made: GuardRules, moments: list[Round]) -> None:
    judge = Judge(made)
    by_name = {bound.limit: bound for bound in made.bounds}
    warned: dict[tuple[object, ...], list[float]] = defaultdict(list)
    ended: dict[tuple[object, ...], float] = {}
    for moment in moments:
        for breach in judge.feed(moment):
            key, bound = (breach.limit, breach.what, breach.subject, breach.gpu), by_name[breach.limit]
            if breach.act is Act.END:
                assert breach.is_news
                assert len(warned[key]) >= bound.warnings
                assert round(moment.t_s, 3) - warned[key][-1] >= bound.grace_s
                assert round(moment.t_s, 3) > warned[key][-1]
                if key in ended:
                    assert round(moment.t_s, 3) - ended[key] >= max(bound.grace_s, BATCH_S)
                ended[key] = round(moment.t_s, 3)
            elif breach.is_news:
                if breach.warnings == 1:
                    warned[key] = []
                    ended.pop(key, None)
                else:
                    assert round(moment.t_s, 3) - warned[key][-1] >= bound.every_s
                warned[key].append(round(moment.t_s, 3))
                assert len(warned[key]) == breach.warnings <= bound.warnings


def fresh(moment: Round) -> Round:
    """As a live look has it: other objects each time."""
    return replace(
        moment, samples=tuple(one._replace(process=replace(one.process)) for one in moment.samples)
    )


@settings(deadline=None, max_examples=150)
@given(rules(), rounds())
def test_a_tape_comes_to_the_verdicts_of_the_day_itself(made: GuardRules, moments: list[Round]) -> None:
    file = io.StringIO()
    recorder = Recorder(file)
    live, played = Judge(made), Judge(made)
    said = []
    for moment in moments:
        said.append(live.feed(fresh(moment)))
        recorder.write(moment)
    again = [played.feed(moment) for moment in play(io.StringIO(file.getvalue()))]
    assert again == said
    assert played.state() == live.state()


@settings(deadline=None, max_examples=150)
@given(rules(), rounds(), st.sets(st.integers(0, 29)))
def test_a_restart_changes_nothing(made: GuardRules, moments: list[Round], restarts: set[int]) -> None:
    steady, restarted = Judge(made), Judge(made)
    for number, moment in enumerate(moments):
        if number in restarts:
            restarted = Judge(made, json.loads(json.dumps(restarted.state())))
        assert restarted.feed(fresh(moment)) == steady.feed(moment)
        if number == 0 or round(moment.t_s, 3) != round(moments[number - 1].t_s, 3):  # else it was left out
            assert restarted.subjects(moment.t_s) == steady.subjects(moment.t_s)


def without(sample: Sample, holes: list[bool]) -> Sample:
    return sample._replace(
        vram_bytes=None if holes[0] else sample.vram_bytes, contexts=None if holes[1] else sample.contexts
    )


@settings(deadline=None, max_examples=150)
@given(rules(), rounds(), st.data())
def test_what_is_not_known_makes_nobody_guilty(
    made: GuardRules, moments: list[Round], data: st.DataObject
) -> None:
    knows, doubts = Judge(made), Judge(made)
    holes = st.lists(st.booleans(), min_size=2, max_size=2)
    for moment in moments:
        whole = {(one.limit, one.subject, one.gpu) for one in knows.feed(moment)}
        part = replace(moment, samples=tuple(without(one, data.draw(holes)) for one in moment.samples))
        assert {(one.limit, one.subject, one.gpu) for one in doubts.feed(part)} <= whole


@settings(deadline=None, max_examples=100)
@given(rules(), rounds())
def test_what_is_told_of_subjects_agrees_with_the_breaches_and_survives_json(
    made: GuardRules, moments: list[Round]
) -> None:
    judge = Judge(made)
    for moment in moments:
        over = {(one.limit, one.what, one.subject, one.gpu): one for one in judge.feed(moment)}
        uses = judge.subjects(moment.t_s)
        told = {(one.limit, one.what, one.subject, one.gpu): one for one in uses}
        for key, breach in over.items():
            use = told[key]
            assert (use.is_over, use.used, use.warnings) == (True, breach.used, breach.warnings)
            assert (use.next_act, use.next_s, use.since_s) == (breach.next_act, breach.next_s, breach.since_s)
        status = GuardStatus("dry_run", moment.t_s, uses=tuple(uses))
        assert from_plain(json.loads(json.dumps(to_plain(status)))) == status
