# SPDX-License-Identifier: Apache-2.0
"""Rogue rules name the rogues of simulated traces, and nobody else. Tuned on seeds 1 to 5; asserted on others."""

from __future__ import annotations

from fairsched.guard.finding import Worst
from fairsched.guard.rogue import RogueRules
from tests.unit.guard.honest import HONEST
from tests.unit.guard.honest_too import HONEST_TOO, OPEN
from tests.unit.guard.rogues import ROGUE
from tests.unit.guard.traces import Maker, Trace

SEEDS = range(1001, 1013)


def named(trace: Trace) -> set[tuple[str, int, int]]:
    rules, worst = RogueRules(), Worst()
    for moment in trace.rounds():
        worst.feed(moment.t_s, rules.feed(moment))
    return {verdict.process.key for verdict in worst.verdicts()}


def test_there_are_enough_kinds() -> None:
    assert len(HONEST) >= 40
    assert len(ROGUE) >= 20


def test_rogues_are_named_and_nobody_else() -> None:
    found, missed, accused, left = list[str](), list[str](), list[str](), list[str]()
    for seed in SEEDS:
        for kind, make in {**HONEST, **ROGUE}.items():
            trace = make(Maker(seed, kind))
            rogues = {actor.process.key for actor in trace.actors if actor.is_rogue}
            who = named(trace)
            (accused if who - rogues else left).append(f"{kind} ({seed})")
            if rogues:
                (found if rogues <= who else missed).append(f"{kind} ({seed})")
    assert len(found) / (len(found) + len(missed)) >= 0.95, missed
    assert len(accused) / (len(accused) + len(left)) <= 0.01, accused


def test_the_same_seed_makes_the_same_trace() -> None:
    kind = "a miner that comes and goes"
    first, second = (list(ROGUE[kind](Maker(7, kind)).rounds()) for _ in range(2))
    assert first == second
    assert first != list(ROGUE[kind](Maker(8, kind)).rounds())


def test_honest_work_that_another_hand_invented_is_not_named() -> None:
    """The rules were not tuned on it; what they are wrong about is kept with the reason."""
    assert len(HONEST_TOO) >= 25
    traces = {kind: make(Maker(2001, kind)) for kind, make in HONEST_TOO.items()}
    assert [kind for kind, trace in traces.items() if named(trace)] == []
    for kind, (make, _why) in OPEN.items():
        assert named(make(Maker(2001, kind))), f"{kind}: then it is open no more"
