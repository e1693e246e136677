# SPDX-License-Identifier: Apache-2.0
"""No trick that can be seen or held pays, and those that cannot are found, named and acted on.

Each shipped hostile scenario is played with our daemon, for as long as it says: what is asked here is that the trick
does not pay, the bar of 2 points is for the benchmark and its seeds. That it is a trick at all is seen in the
engine's truth and in /proc while it is played; that it would pay if nobody did anything, in
tests/unit/benchmarks/test_scenario.py.
"""

from __future__ import annotations

import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.fair import controllers
from benchmarks.fair.bars import UNSURE_HELD_MS_PER_S
from benchmarks.fair.measures import Measures, measure
from benchmarks.fair.recording import Recording
from benchmarks.fair.scenario import Play, load, shipped
from benchmarks.rig import Rig
from fairsched.model import Confidence
from fairsched.policy import solo
from tests.node.benchmarks.plays import SeenRig, Theatre
from tests.node.benchmarks.sighting import HOSTILE, OWNER, Sighting
from tests.node.promptness import Stopwatch, Took

GAIN_POINTS = 6.0
"""Without a scheduler most gain 22 (one context among three that is owed a ninth) or more."""
ALWAYS_HELD = {"hostile-nosync", "hostile-graph", "hostile-queue"}
ALWAYS_MS_PER_S = 900.0
HELD_MS_PER_S = 50.0
LONGEST_MS = 550.0
"""Of the honest: half a second, and what it takes to thaw. The hostile one's cannot be told: between two of its holds
it may run for a millisecond, which nobody notices who looks from outside."""
SECONDS = 5.0
"""Of what cannot be held, and is named soon."""
TIMES = 3
BUSY_RATIO = 0.5
"""Of the time somebody waits for a processor: a machine that does other work as well."""
STORM_FAULTS = 1000
"""Of five children: one that ends at once costs two hundred. It is held for .997 of the time and still has 3,200 to
12,000 in ten plays; who forks nothing has none."""
FOUND_S = 8.0
"""The bar is 5, of the benchmark on a machine that does nothing else; 3.65 was measured there."""
HIDDEN_SETTLED_S = 1.5
"""The account begins to count on unseen work a look or two after it was found."""
COUNTED_ERROR_RATIO = 0.12
"""On a machine with nothing else to do it is .03; on a busy one an account is off for other reasons. It was .3."""
QUEUED_MS = 100.0
"""A decoder has ten, and others run beside it."""
HONEST_HELD_MS_PER_S = 40
"""Of two equal decoders the one that is ahead is held for 5 to 20."""
MEASURED_MS_PER_S = solo.LONGEST_NS / 1e6 / SECONDS
"""And once, for up to half a second, while what the launches of the other one cost is measured."""
HONEST = ("honest1", "honest2")
S = 1_000_000_000
NAMES = [path.stem for path in shipped() if path.stem.startswith("hostile-")]
ALWAYS_PLAYED = {"hostile-processes", "hostile-queue"}
"""In every run; the others are long in the sum."""


def _wants_always(recording: Recording) -> float:
    """Part of the time in which one of its contexts ran or could have run, until it was first held."""
    held_ns = min(
        (hold.start_ns for hold in recording.held if hold.leaf == HOSTILE), default=recording.end_ns
    )
    key = (HOSTILE, 0)
    inside = [s for s in recording.samples if key in s.exec_ns and s.at_ns <= held_ns]
    first, last = inside[0], inside[-1]
    grown_ns = last.exec_ns[key] + last.wait_ns[key] - first.exec_ns[key] - first.wait_ns[key]
    return grown_ns / (last.at_ns - first.at_ns)


def _longest_drain_ms(recording: Recording) -> float:
    """The most it has executed while it was held: what it had queued before. Of the first holds, that is; later its
    grants end before much is queued."""
    key = (HOSTILE, 0)
    inside = [sample for sample in recording.samples if key in sample.exec_ns]
    at_ns, exec_ns = [sample.at_ns for sample in inside], [sample.exec_ns[key] for sample in inside]
    return max(
        float(np.interp(hold.end_ns, at_ns, exec_ns) - np.interp(hold.start_ns, at_ns, exec_ns)) / 1e6
        for hold in recording.held
        if hold.leaf == HOSTILE
    )


def _steps(recording: Recording) -> int:
    return sum(map(len, recording.steps[HOSTILE]))


Evidence = Callable[[Sighting, Recording], bool]
EVIDENCE: dict[str, Evidence] = {
    "hostile-child-cgroups": lambda seen, _: len(seen.cgroups - {""}) >= 3,
    "hostile-contexts": lambda seen, _: seen.together == 8 and len({pid for pid, _ in seen.contexts}) == 1,
    "hostile-dlopen": lambda seen, _: bool(seen.libraries) and seen.libcuda not in seen.libraries,
    "hostile-feign": lambda seen, _: seen.was_told("--feign"),
    "hostile-fork-storm": lambda seen, _: len(seen.contexts) > 1 and seen.reaped_faults > STORM_FAULTS,
    "hostile-graph": lambda seen, recording: seen.kernels > 5000 * _steps(recording) > 0,
    "hostile-move": lambda seen, _: any(
        name.endswith("-b") for name in seen.ran_in
    ),  # it began in the other one
    "hostile-nosync": lambda seen, recording: seen.was_told("--wait none") and _wants_always(recording) > 0.8,
    "hostile-pinned": lambda seen, _: seen.naps > 5000,
    "hostile-processes": lambda seen, _: len({pid for pid, _ in seen.contexts}) == 8 == seen.together,
    "hostile-ptrace": lambda seen, _: bool(seen.traced),
    "hostile-query": lambda seen, _: seen.naps > 1000,
    "hostile-queue": lambda _, recording: _longest_drain_ms(recording) > QUEUED_MS,
    "hostile-short-lived": lambda seen, _: len({pid for pid, _ in seen.contexts}) >= 2 * seen.together,
    "hostile-sigcont": lambda seen, _: bool(seen.strays),
    "hostile-starve-cpu": lambda seen, _: seen.pids_together > 2 * (os.cpu_count() or 1),
    "hostile-streams": lambda seen, _: seen.was_told("--streams 16"),
}
"""That the trick was played, in what is left of the time when it is held for most of it: a storm is frozen as well.
Who waits in a call naps once per step, some hundred times; who polls, thousands. Short-lived processes follow each
other: seven to eighteen of them are met in a play, never more than three together."""


@pytest.fixture
def theatre(monkeypatch: pytest.MonkeyPatch, build_dir: Path) -> Theatre:
    return Theatre(monkeypatch, build_dir)


def test_every_hostile_scenario_is_played_here() -> None:
    assert set(EVIDENCE) == set(NAMES)


@dataclass(frozen=True)
class Played:
    """One performance of a trick."""

    seen: Sighting
    recording: Recording
    measures: Measures
    took: Took

    @property
    def gain_points(self) -> float:
        gain_points = self.measures.leaves[HOSTILE].gain_points
        assert gain_points is not None
        return gain_points


def played(theatre: Theatre, name: str) -> Played:
    seen, play = Sighting(), load(Path(name))
    watch = Stopwatch()
    recording = theatre.play(play, "fairsched", play.scenario.seconds, seen.look)
    return Played(seen, recording, measure(recording), watch.read())


def judged(theatre: Theatre, name: str) -> tuple[Played, float]:
    """The one to judge, and the limit of its gain. A trick that pays does so whenever it is played, a few seconds of
    one that does not may still look like it: where the first play does, it is the median of three.

    A daemon and neighbours that wait for a processor are late, and what a trick gains then says little of the trick:
    if that was so in all of them, twice as much will do."""
    plays = [played(theatre, name)]
    while plays[0].gain_points > GAIN_POINTS and len(plays) < TIMES:
        plays.append(played(theatre, name))
    by_gain = sorted(plays, key=lambda one: one.gain_points)
    is_busy = all(one.took.waited_s > BUSY_RATIO * one.took.wall_s for one in plays)
    return by_gain[len(plays) // 2], GAIN_POINTS * (2 if is_busy else 1)


def story(recording: Recording, measures: Measures) -> dict[str, object]:
    """For who has to find out from the log of a failed test what went on."""
    told: dict[str, object] = {"notes": recording.notes}
    for leaf, mine in measures.leaves.items():
        spells: list[tuple[float, str | None]] = []
        for one in recording.accounts:
            confidence = one.confidence.get(leaf)
            if not spells or spells[-1][1] != confidence:
                spells.append((round((one.at_ns - recording.start_ns) / S, 2), confidence))
        holds = [(hold.start_ns, hold.end_ns) for hold in recording.held if hold.leaf == leaf]
        ends = [recording.start_ns, *(end for _, end in holds)]
        free_ms = [round((start - end) / 1e6) for (start, _), end in zip(holds, ends, strict=False)]
        told[leaf] = {
            "share": mine.share_ratio,
            "entitled": mine.entitlement_ratio,
            "held_ms_per_s": mine.held_ms_per_s,
            "longest_free_ms": max(free_ms, default=None),
            "confidence_since_s": spells,
        }
    return told


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ALWAYS_PLAYED else pytest.mark.rest) for name in NAMES],
)
def test_a_trick_does_not_pay(theatre: Theatre, name: str) -> None:
    one, limit_points = judged(theatre, name)
    leaves, told = one.measures.leaves, story(one.recording, one.measures)
    assert one.seen.contexts and one.seen.exec_ns > 0, "it used the GPU"
    assert EVIDENCE[name](one.seen, one.recording), vars(one.seen)
    assert one.gain_points <= limit_points, (one.took, told)
    least_ms_per_s = ALWAYS_MS_PER_S if name in ALWAYS_HELD else HELD_MS_PER_S
    assert leaves[HOSTILE].held_ms_per_s > least_ms_per_s, told
    for leaf in HONEST:
        lasted_ms = [(hold.end_ns - hold.start_ns) / 1e6 for hold in one.recording.held if hold.leaf == leaf]
        assert max(lasted_ms, default=0.0) <= LONGEST_MS + 1000 * one.took.waited_s, (leaf, max(lasted_ms))
        assert leaves[leaf].tokens_per_s, told
        error_points = leaves[leaf].share_error_points
        assert error_points is not None and error_points >= -limit_points, told
        assert goes_on(one.recording, leaf)
    assert not one.measures.misbehaviour, "all of it can be seen and held"
    theatre.rig.assert_nothing_left()


# ---- beyond a freezer's reach, or the account's sight ----


@dataclass
class Told:
    """What the metrics said while a scenario was played, and what became of the hostile contexts."""

    port: int
    named: set[tuple[str, str]] = field(default_factory=set)
    """(tenant, kind)."""
    terminations: dict[tuple[str, str], float] = field(default_factory=dict)
    alive: int = 0
    """Hostile contexts at the last look."""
    most_alive: int = 0

    def look(self, rig: SeenRig, _done: float) -> None:
        self.alive = sum(truth.owner == OWNER and truth.is_alive for truth in rig.host.truth(sync=False))
        self.most_alive = max(self.most_alive, self.alive)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except urllib.error.URLError:
            return
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                key = (one.labels.get("tenant", ""), one.labels.get("kind", ""))
                if one.name == "fairsched_misbehaving" and one.value:
                    self.named.add(key)
                if one.name == "fairsched_terminations_total" and one.value:
                    self.terminations[key] = one.value


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        told = Told(int(probe.getsockname()[1]))
    plain = controllers.daemon_config

    def with_metrics(rig: Rig, play: Play) -> dict[str, Any]:
        return {**plain(rig, play), "metrics": {"listen": f"127.0.0.1:{told.port}"}}

    monkeypatch.setattr(controllers, "daemon_config", with_metrics)
    return told


def found_after_s(recording: Recording) -> float:
    (after_s,) = [
        one.misbehaviour_after_s
        for leaf, one in measure(recording).leaves.items()
        if one.misbehaviour_after_s is not None
    ]
    return after_s


def sure_error_ratio(recording: Recording, leaf: str, after_s: float) -> float | None:
    """Of its account, from so long after the hostile one was named, where it was sure; None where it never was."""
    named_ns = next(one.at_ns for one in recording.accounts if HOSTILE in one.misbehaviour)
    later = [one for one in recording.accounts if one.at_ns >= named_ns + after_s * S]
    said_ns = truth_ns = 0
    for one, other in pairwise(later):
        if one.confidence.get(leaf) == other.confidence.get(leaf) == Confidence.HIGH.value:
            said_ns += other.gpu_time_ns[leaf] - one.gpu_time_ns[leaf]
            truth_ns += other.truth_ns[leaf] - one.truth_ns[leaf]
    return said_ns / truth_ns - 1 if truth_ns else None


def held_on_a_guess_s(recording: Recording, leaf: str) -> float:
    """How long holds lasted in all that began while its account was unsure, as told before and after."""
    low = [
        (one.at_ns, other.at_ns)
        for one, other in pairwise(recording.accounts)
        if one.confidence.get(leaf) == other.confidence.get(leaf) == Confidence.LOW.value
    ]
    mine = [hold for hold in recording.held if hold.leaf == leaf]
    begun = [hold for hold in mine if any(begin <= hold.start_ns <= end for begin, end in low)]
    return sum(hold.end_ns - hold.start_ns for hold in begun) / S


def goes_on(recording: Recording, leaf: str) -> bool:
    """To the end."""
    late_ns = recording.end_ns - S
    return any(step.end_ns > late_ns for log in recording.steps[leaf] for step in log)


@pytest.mark.rest
@pytest.mark.parametrize(("name", "contexts"), [("beyond-endless", 4), ("beyond-endless-one", 1)])
def test_endless_kernels_are_found_named_and_ended(
    theatre: Theatre, told: Told, name: str, contexts: int
) -> None:
    recording = theatre.play(load(Path(name)), "fairsched", 15.0, told.look)
    assert measure(recording).misbehaviour == {HOSTILE: "endless"}
    assert found_after_s(recording) <= FOUND_S
    assert told.named == {(HOSTILE, "endless")}
    assert told.terminations == {(HOSTILE, "endless"): 1}
    assert told.most_alive == contexts
    assert told.alive == 0, "its contexts are gone"
    assert any(note.startswith(f"{HOSTILE}: its trick ended") for note in recording.notes)
    assert all(goes_on(recording, leaf) for leaf in HONEST)
    theatre.rig.assert_nothing_left()


@pytest.mark.rest
def test_work_past_the_exports_is_found_and_named_and_nobody_else_pays_for_it(
    theatre: Theatre, told: Told
) -> None:
    assert_is_unseen(theatre.play(load(Path("beyond-static")), "fairsched", 12.0, told.look), theatre, told)


def test_a_libcuda_under_another_name_is_found_and_named_likewise(theatre: Theatre, told: Told) -> None:
    seen = Sighting()

    def look(rig: SeenRig, done: float) -> None:
        seen.look(rig, done)
        told.look(rig, done)

    assert_is_unseen(theatre.play(load(Path("beyond-dlopen-copy")), "fairsched", 12.0, look), theatre, told)
    assert {Path(library).name for library in seen.libraries} == {"libcompute.so"}


def assert_is_unseen(recording: Recording, theatre: Theatre, told: Told) -> None:
    measures = measure(recording)
    assert measures.misbehaviour == {HOSTILE: "unseen"}
    assert found_after_s(recording) <= FOUND_S
    assert told.named == {(HOSTILE, "unseen")}
    assert told.terminations == {}
    assert told.alive == 1, "the policy says warn"
    for leaf in HONEST:
        assert goes_on(recording, leaf)
        assert measures.leaves[leaf].held_ms_per_s < HONEST_HELD_MS_PER_S + MEASURED_MS_PER_S
        assert held_on_a_guess_s(recording, leaf) == 0
        error = sure_error_ratio(recording, leaf, HIDDEN_SETTLED_S)
        assert error is None or abs(error) < COUNTED_ERROR_RATIO, error
    assert recording.accounts[-1].confidence[HOSTILE] == "low"
    theatre.rig.assert_nothing_left()


@pytest.mark.rest
def test_nobody_is_held_for_who_polls_memory_until_samples_time_it_and_it_is_not_accused(
    theatre: Theatre,
) -> None:
    seen, play = Sighting(), load(Path("hostile-pinned"))
    recording = theatre.play(
        replace(play, scenario=play.scenario.model_copy(update={"settle_s": 0.0})),
        "fairsched",
        12.0,
        seen.look,
    )
    assert seen.naps > 5000, "it polls"
    states = [(one.at_ns, one.confidence.get(HOSTILE)) for one in recording.accounts]
    unsure_ns = [at_ns for at_ns, confidence in states if confidence == "low"]
    from_ns, to_ns = unsure_ns[0], unsure_ns[-1]
    assert {confidence for at_ns, confidence in states if from_ns <= at_ns <= to_ns} == {"low"}, states
    assert states[-1][1] == "high", states
    for leaf in (HOSTILE, *HONEST):
        held_ns = sum(
            max(0, min(hold.end_ns, to_ns) - max(hold.start_ns, from_ns))
            for hold in recording.held
            if hold.leaf == leaf
        )
        assert held_ns / 1e6 <= UNSURE_HELD_MS_PER_S * (to_ns - from_ns) / S, leaf
        assert goes_on(recording, leaf)
    assert not measure(recording).misbehaviour, "polling is no offence"
    theatre.rig.assert_nothing_left()


@pytest.mark.rest
def test_who_leaves_its_cgroup_is_named_and_held_when_it_is_there(theatre: Theatre, told: Told) -> None:
    recording = theatre.play(load(Path("escape-move")), "fairsched", SECONDS, told.look)
    measures = measure(recording)
    assert measures.misbehaviour == {"mover": "moving"}
    mover = measures.leaves["mover"]
    assert mover.misbehaviour_after_s is not None and mover.misbehaviour_after_s <= FOUND_S
    assert told.named == {("mover", "moving")}
    assert told.terminations == {}
    assert mover.held_ms_per_s > HONEST_HELD_MS_PER_S
    for leaf in HONEST:
        assert goes_on(recording, leaf)
        assert measures.leaves[leaf].held_ms_per_s < HONEST_HELD_MS_PER_S + MEASURED_MS_PER_S
    theatre.rig.assert_nothing_left()
