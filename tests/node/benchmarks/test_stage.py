# SPDX-License-Identifier: Apache-2.0
"""What is recorded is what happened, under every policy; and whatever ends a performance, nothing is left of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from benchmarks.fair.controllers import RIVALS, controller
from benchmarks.fair.recording import Recording
from benchmarks.fair.scenario import Play, Scenario
from benchmarks.fair.stage import Stage
from benchmarks.rig import BenchError
from tests.node.benchmarks.plays import (
    PATIENCE_S,
    SeenRig,
    Theatre,
    cgroup_of,
    cgroups,
    child_with,
    held,
    state_of,
    users_of,
)
from tests.support import wait_until

MS = 1_000_000
S = 1000 * MS
SECONDS = 2.5
# One is on both GPUs, one comes and goes while it is measured, one is capped so that every policy holds somebody.
STAGED = """
settle_s: 1
gpus: [{}, {}]
tenants:
  capped:
    quota: 0.2
    loads: [&decode {kernels: 20, kernel_us: 250, spread_ratio: 0.1, cpu_us: 500}]
  team:
    weight: 2
    children:
      both: {loads: [*decode, {<<: *decode, gpu: 1}]}
      late: {start_s: 1.8, stop_s: 2.8, loads: [{<<: *decode, gpu: 1}]}
strangers: [{<<: *decode, gpu: 1}]
"""
LEAVES = ("capped", "team/both", "team/late")
PAIRS = {("capped", 0), ("team/both", 0), ("team/both", 1), ("team/late", 1)}
DRAINED_NS = 80 * MS
"""After that nothing is left of a decoder's queue of one step."""
SAMPLED_NS = 20 * MS
LOOKED_NS = 50 * MS
"""Far longer than a look at the stage takes, unless somebody else has the processor."""


def longest_gap_ns(recording: Recording, near_ns: int | None = None) -> int:
    """Between two samples: for so long nobody looked, and what is dated by a look may be off by as much. ``near_ns``:
    a tenth of a second before and after it."""
    moments = [sample.at_ns for sample in recording.samples]
    return max(
        later - earlier
        for earlier, later in pairwise(moments)
        if near_ns is None or earlier - 100 * MS < near_ns < later + 100 * MS
    )


def staged() -> Play:
    return Play("staged", Scenario.model_validate(yaml.safe_load(STAGED)))


@dataclass
class Performance:
    """A recording, and what was seen behind the stage meanwhile."""

    policy: str
    rig: SeenRig | None = None
    recording: Recording | None = None
    over_ns: int = 0
    """All of it has ended."""
    cgroups: dict[int, set[str]] = field(default_factory=dict)
    """Owner tag -> cgroups of its processes, less the rig's prefix."""

    def look(self, rig: SeenRig, _done: float) -> None:
        for truth in rig.host.truth(sync=False):
            path = cgroup_of(truth.pid)
            if truth.is_alive and path is not None:
                start = rig.cgroup_path("")
                assert path.startswith(start)
                self.cgroups.setdefault(truth.owner, set()).add(path.removeprefix(start))


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def theatre(patch: pytest.MonkeyPatch, build_dir: Path) -> Theatre:
    return Theatre(patch, build_dir)


@pytest.fixture(scope="module", params=["none", "fairsched", *RIVALS])
def performance(request: pytest.FixtureRequest, theatre: Theatre) -> Performance:
    one = Performance(request.param)
    one.recording = theatre.play(staged(), one.policy, SECONDS, one.look)
    one.over_ns = time.monotonic_ns()
    one.rig = theatre.rig
    return one


@pytest.fixture
def recording(performance: Performance) -> Recording:
    assert performance.recording is not None
    return performance.recording


def test_the_recording_says_what_was_played(performance: Performance, recording: Recording) -> None:
    assert (recording.scenario, recording.policy, recording.seed) == ("staged", performance.policy, 1)
    assert recording.leaves == LEAVES
    # To read the account takes longer where others have the processor.
    late_s = longest_gap_ns(recording) / 1e9
    assert SECONDS <= recording.seconds < SECONDS + 0.5 + late_s
    assert set(recording.specs) == {*LEAVES, "team"}
    # Nobody died, no stay was lost; a daemon that has just begun may say what it is not sure of.
    assert [note for note in recording.notes if "ended" in note or "overwritten" in note] == []


def test_samples_cover_the_measured_part_without_a_gap(recording: Recording) -> None:
    moments = [sample.at_ns for sample in recording.samples]
    assert moments == sorted(moments)
    assert moments[0] <= recording.start_ns
    assert moments[-1] >= recording.end_ns
    assert len(moments) >= 20 * SECONDS, "far fewer than every 20 ms: more than a busy machine explains"
    for earlier, later in zip(recording.samples, recording.samples[1:], strict=False):
        assert all(a <= b for a, b in zip(earlier.busy_ns, later.busy_ns, strict=True))
        assert all(later.exec_ns[pair] >= ns for pair, ns in earlier.exec_ns.items())


def test_stays_add_up_to_the_execution_time(recording: Recording) -> None:
    inside = [s for s in recording.samples if recording.start_ns <= s.at_ns <= recording.end_ns]
    first, last = inside[0], inside[-1]
    for leaf, gpu in PAIRS:
        ran_ns = last.exec_ns[leaf, gpu] - first.exec_ns.get((leaf, gpu), 0)
        stayed_ns = sum(
            max(0, min(stay.end_ns, last.at_ns) - max(stay.start_ns, first.at_ns))
            for stay in recording.stays
            if (stay.leaf, stay.gpu) == (leaf, gpu)
        )
        assert ran_ns > 50 * MS, (leaf, gpu)
        assert stayed_ns == pytest.approx(ran_ns, rel=0.01), (leaf, gpu)


def test_all_that_ran_has_an_owner_but_the_stranger(recording: Recording) -> None:
    for sample in recording.samples:
        assert set(sample.exec_ns) <= PAIRS
    last = recording.samples[-1]
    assert set(last.exec_ns) == PAIRS
    owned_ns = [sum(ns for (_, on), ns in last.exec_ns.items() if on == gpu) for gpu in (0, 1)]
    assert owned_ns[0] == pytest.approx(last.busy_ns[0], rel=1e-3)
    assert last.busy_ns[1] - owned_ns[1] > 200 * MS


def test_tenants_are_in_the_cgroups_of_their_paths(performance: Performance) -> None:
    assert performance.cgroups == {
        0: {"stranger0"},
        1: {"capped"},
        2: {"team/both"},
        3: {"team/late"},
    }


def test_every_process_logs_its_steps(performance: Performance, recording: Recording) -> None:
    assert {leaf: len(logs) for leaf, logs in recording.steps.items()} == {
        "capped": 1,
        "team/both": 2,
        "team/late": 1,
    }
    for leaf, logs in recording.steps.items():
        begun_ns, ended_ns = recording.present_ns[leaf]
        for log in logs:
            assert len([step for step in log if recording.start_ns < step.end_ns <= recording.end_ns]) > 5
            # At the end all are ended, which takes as long as others want the processors.
            is_over_ns = recording.end_ns + 1000 * MS if ended_ns < recording.end_ns else performance.over_ns
            assert all(step.end_ns <= is_over_ns for step in log)
        assert begun_ns < ended_ns


def test_a_tenant_is_there_from_its_start_to_its_stop(recording: Recording) -> None:
    begun_ns, stopped_ns = recording.present_ns["team/late"]
    assert recording.start_ns < begun_ns < stopped_ns < recording.end_ns
    # It is there once its processes have been started, which takes the longer the more others want to run;
    # it is stopped a second after they began to be.
    slack_ns = max(LOOKED_NS, longest_gap_ns(recording))
    assert 0.2 * S < stopped_ns - begun_ns < 1.0 * S + slack_ns
    stays = [stay for stay in recording.stays if stay.leaf == "team/late"]
    assert min(stay.start_ns for stay in stays) > begun_ns - 1.0 * S, (
        "a process works before the last is started"
    )
    assert all(stay.end_ns < stopped_ns + slack_ns for stay in stays)
    for leaf in ("capped", "team/both"):
        assert recording.present_ns[leaf][0] < recording.start_ns
        assert recording.present_ns[leaf][1] == recording.end_ns


def test_holds_are_recorded_where_a_policy_holds_and_nothing_runs_in_them(recording: Recording) -> None:
    if recording.policy == "none":
        assert recording.held == ()
        return
    inside = [hold for hold in recording.held if hold.start_ns < recording.end_ns > recording.start_ns]
    assert "capped" in {hold.leaf for hold in inside}
    for hold in recording.held:
        assert hold.leaf in LEAVES
        assert hold.start_ns < hold.end_ns
    long = [hold for hold in inside if hold.end_ns - hold.start_ns > 1.2 * DRAINED_NS]
    for hold in long:
        stays = [s for s in recording.stays if s.leaf == hold.leaf and s.end_ns > hold.start_ns + DRAINED_NS]
        # A hold is dated by a clock and a count that are read a moment apart, longer when we lose the processor.
        slack_ns = max(3 * MS, longest_gap_ns(recording, hold.end_ns) - SAMPLED_NS)
        assert not [s for s in stays if s.start_ns < hold.end_ns - slack_ns], hold
    if recording.policy in ("window-sigstop", "token"):  # the other's period is hardly longer than a drain
        assert long


def test_only_fairsched_is_asked_for_an_account(recording: Recording) -> None:
    if recording.policy != "fairsched":
        assert recording.accounts == ()
        return
    moments = [reading.at_ns for reading in recording.accounts]
    assert len(moments) >= 4
    assert moments == sorted(moments)
    slack_ns = max(LOOKED_NS, longest_gap_ns(recording))
    assert min(abs(at - recording.start_ns) for at in moments) < slack_ns
    assert abs(moments[-1] - recording.end_ns) < slack_ns
    first, last = recording.accounts[0], recording.accounts[-1]
    for leaf in ("capped", "team/both"):
        assert last.gpu_time_ns[leaf] > first.gpu_time_ns[leaf]
        assert last.truth_ns[leaf] > first.truth_ns[leaf]
        assert last.confidence[leaf] in ("high", "low")
        on = [gpu for name, gpu in PAIRS if name == leaf]
        truth_ns = sum(recording.samples[-1].exec_ns[leaf, gpu] for gpu in on)
        assert last.truth_ns[leaf] == pytest.approx(truth_ns, rel=0.2)


def test_what_a_policy_costs_is_told_where_there_is_one(recording: Recording) -> None:
    if recording.policy == "none":
        assert (recording.cpu_ratio, recording.rss_bytes) == (None, None)
        return
    assert recording.cpu_ratio is not None and recording.rss_bytes is not None
    # The kernel counts in steps of 10 ms: a rival that only looks every 100 ms may have used none of them.
    assert recording.cpu_ratio < 2
    assert recording.cpu_ratio > 0 or recording.policy in RIVALS
    assert recording.rss_bytes > 5_000_000


def test_nothing_is_left_of_a_performance(performance: Performance) -> None:
    assert performance.rig is not None
    performance.rig.assert_nothing_left()


# ---- performances that end before their time ----


class Boom(Exception):
    """What may go wrong on the way."""


@pytest.mark.parametrize("policy", ["fairsched", "window-sigstop"])
def test_nothing_is_left_after_an_error_in_the_middle(theatre: Theatre, policy: str) -> None:
    def look(rig: SeenRig, done: float) -> None:
        assert cgroups(rig.prefix) and users_of(rig.sim_dir), "or the checks below would find nothing ever"
        if done > 0.4:
            raise Boom

    with pytest.raises(Boom):
        theatre.play(staged(), policy, SECONDS, look)
    theatre.rig.assert_nothing_left()


def test_a_daemon_that_was_killed_ends_the_performance(theatre: Theatre) -> None:
    def look(_rig: SeenRig, done: float) -> None:
        if done > 0.4:
            child_with("run", "--config").kill()

    with pytest.raises(BenchError, match="the daemon ended with status 9"):
        theatre.play(staged(), "fairsched", SECONDS, look)
    theatre.rig.assert_nothing_left()


@pytest.mark.parametrize("rival", RIVALS)
def test_a_rival_that_was_killed_leaves_nobody_held(build_dir: Path, rival: str) -> None:
    play = staged()
    specs = [gpu.spec() for gpu in play.scenario.gpus]
    with SeenRig(*specs, build_dir=build_dir) as rig, contextlib.ExitStack() as undo:
        stage = Stage(rig, play, 1, undo)
        there = stage.directories().values()
        with controller(rival).running(rig, play, stage.directories()) as control:
            stage.open()
            (process,) = control.processes()
            wait_until(lambda: any(map(held, there)), PATIENCE_S, "somebody is held")
            process.kill()
            wait_until(lambda: state_of(process.pid) == "Z", PATIENCE_S, "the rival is dead")
            assert any(map(held, there)), "nobody else lets them go"
            with pytest.raises(BenchError, match="ended with -9"):
                control.check()
        assert not any(map(held, there))
        before = exec_ns(rig)
        wait_until(lambda: all(exec_ns(rig)[o] > before[o] for o in (1, 2)), PATIENCE_S, "all go on")
    rig.assert_nothing_left()


def exec_ns(rig: SeenRig) -> dict[int, int]:
    """By owner."""
    found: dict[int, int] = {}
    for truth in rig.host.truth(sync=False):
        found[truth.owner] = found.get(truth.owner, 0) + truth.exec_ns
    return found
