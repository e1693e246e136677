# SPDX-License-Identifier: Apache-2.0
"""What the stage makes of a scenario and of what it is told, on a host and with a policy that are made up."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from benchmarks import rig as rig_module
from benchmarks.fair import stage as stage_module
from benchmarks.fair.controllers import Controller, controller, let_go
from benchmarks.fair.recording import Recording
from benchmarks.fair.scenario import Play, Scenario
from benchmarks.fair.stage import Stage
from benchmarks.rig import BenchError
from fairsched.errors import ConfigError
from fairsched.simgpu import Residency
from fairsched.simgpu.node import PARENT
from tests.support import wait_until
from tests.unit.benchmarks.made_stage import Clock, FakeRig, context


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stage_module, "time", clock)
    monkeypatch.setattr(rig_module, "time", clock)
    return clock


@pytest.fixture
def rig(tmp_path: Path) -> FakeRig:
    return FakeRig(tmp_path)


@pytest.fixture
def undo() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as undo:
        yield undo


def made(text: str) -> Play:
    return Play("made", Scenario.model_validate({"settle_s": 0, **yaml.safe_load(text)}))


def staged(rig: FakeRig, undo: contextlib.ExitStack, text: str, seed: int = 1) -> Stage:
    return Stage(rig, made(text), seed, undo)  # type: ignore[arg-type]


def record(stage: Stage, control: Controller | None = None, seconds: float = 0.05) -> Recording:
    stage.open()
    return stage.record(control or Controller(), "none", seconds, lambda _done: None)


# ---- cgroups and processes ----


def test_every_inner_node_has_its_cgroup_and_all_are_removed_children_first(
    rig: FakeRig, undo: contextlib.ExitStack
) -> None:
    text = """
tenants:
  top:
    children:
      middle: {children: {deep: {loads: [{}]}, other: {loads: [{}]}}}
  flat: {loads: [{}]}
"""
    directories = staged(rig, undo, text).directories()
    assert list(directories) == ["top/middle/deep", "top/middle/other", "flat"]
    assert all(Path(directory).is_dir() for directory in directories.values())
    assert rig.removed == []
    undo.close()
    assert sorted(rig.removed) == ["flat", "top", "top/middle", "top/middle/deep", "top/middle/other"]
    order = rig.removed.index
    assert order("top/middle/deep") < order("top/middle") < order("top")
    assert list(Path(rig.mount.absolute(PARENT)).iterdir()) == []


def test_processes_have_owner_tags_names_and_seeds_of_their_own(
    rig: FakeRig, undo: contextlib.ExitStack
) -> None:
    text = """
tenants:
  a: {loads: [{processes: 2}, {}]}
  b: {loads: [{}]}
strangers: [{}]
"""
    record(staged(rig, undo, text))
    tags = {name: env.get("FAIRSCHED_SIM_OWNER") for name, _, _, env in rig.host.spawned}
    assert tags == {"stranger0.0": None, "a.0.0": "1", "a.0.1": "1", "a.1.0": "1", "b.0.0": "2"}
    left_in = {env["TMPDIR"] for *_, env in rig.host.spawned}
    assert left_in == {str(rig.directory)}, "what a killed one leaves goes with the rig"
    where = {name: path.name for name, path, _, _ in rig.host.spawned}
    assert (where["a.1.0"], where["stranger0.0"]) == ("bench-a", "bench-stranger0")
    seeds = [workload.seed for _, _, workload, _ in rig.host.spawned]
    assert len(set(seeds)) == len(seeds)


def test_a_seed_is_one_course_of_events_and_another_is_another(tmp_path: Path) -> None:
    def seeds(name: str, seed: int) -> set[int]:
        (tmp_path / name).mkdir()
        rig = FakeRig(tmp_path / name)
        with contextlib.ExitStack() as undo:
            record(staged(rig, undo, "tenants: {a: {loads: [{processes: 3}]}}", seed))
        return {workload.seed for _, _, workload, _ in rig.host.spawned}

    assert seeds("first", 1) == seeds("again", 1)
    assert not seeds("other", 2) & seeds("third", 1)


def test_cues_are_played_in_the_order_of_the_clock(rig: FakeRig, undo: contextlib.ExitStack) -> None:
    text = """
tenants:
  late: {start_s: 0.1, loads: [{}]}
  never: {start_s: 50, loads: [{}]}
  guest: {stop_s: 0.06, loads: [{}]}
  brief: {start_s: 0.03, stop_s: 0.16, loads: [{}]}
  host: {loads: [{}]}
"""
    stage = staged(rig, undo, text)
    recording = record(stage, seconds=0.25)
    assert rig.host.log == [
        ("spawn", "guest.0.0"),
        ("spawn", "host.0.0"),
        ("spawn", "brief.0.0"),
        ("kill", "guest.0.0"),
        ("spawn", "late.0.0"),
        ("kill", "brief.0.0"),
    ]
    # Who is there from the start is waited for; waiting for a later one would stop the recording.
    assert [name for name, wait in rig.host.waits.items() if wait] == ["guest.0.0", "host.0.0"]
    present = recording.present_ns
    assert set(present) == {"late", "guest", "brief", "host"}
    assert present["host"][1] == present["late"][1] == recording.end_ns
    assert present["guest"][1] < present["late"][0] < present["brief"][1] < recording.end_ns
    undo.close()
    assert {("kill", "late.0.0"), ("kill", "host.0.0")} <= set(rig.host.log)


def test_who_ends_before_its_time_is_told_and_who_was_stopped_is_not(
    rig: FakeRig, undo: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
tenants:
  dead: {loads: [{}]}
  stopped: {stop_s: 0.01, loads: [{}]}
  trickster: {loads: [{trick: endless}]}
"""
    monkeypatch.setattr(stage_module.tricks, "command", lambda *_args: ["trick"])
    rig.host.process = SimpleNamespace(poll=lambda: -9, returncode=-9, kill=lambda: None, wait=lambda: -9)
    stage = staged(rig, undo, text)
    stage.open()
    for actor in stage._actors:
        if actor.leaf == "dead":
            actor.workers[0].is_running = False  # type: ignore[misc]
    recording = stage.record(Controller(), "none", 0.05, lambda _done: None)
    assert recording.notes == ("dead: dead.0.0 ended by itself", "trickster: its trick ended with -9")


# ---- the truth ----


def test_execution_is_summed_by_owner_and_strangers_are_in_busy_only(
    rig: FakeRig, undo: contextlib.ExitStack
) -> None:
    rig.host.contexts = [
        context(1, 1, 5, 50),
        context(2, 2, 7, 70),
        context(3, 1, 11, 110),
        context(4, 0, 1000, 10),
        context(5, 99, 1000, 10),
    ]
    rig.host.busy_ns = 2023
    recording = record(staged(rig, undo, "tenants: {a: {loads: [{}]}, b: {loads: [{}]}}"))
    last = recording.samples[-1]
    assert last.exec_ns == {("a", 0): 16, ("b", 0): 7}
    assert last.wait_ns == {("a", 0): 160, ("b", 0): 70}
    assert last.busy_ns == (2023,)


def test_a_stay_of_a_context_younger_than_the_last_sample_has_an_owner(
    rig: FakeRig, undo: contextlib.ExitStack
) -> None:
    def appear() -> None:
        if not rig.host.stays:
            rig.host.contexts = [context(1, 2)]
            rig.host.stays = [Residency(1, 100, 200)]

    rig.host.on_stays = appear
    recording = record(staged(rig, undo, "tenants: {a: {loads: [{}]}, b: {loads: [{}]}}"))
    assert [(stay.leaf, stay.gpu, stay.start_ns, stay.end_ns) for stay in recording.stays] == [
        ("b", 0, 100, 200)
    ]


def test_stays_of_strangers_are_left_out_and_lost_ones_are_told(
    rig: FakeRig, undo: contextlib.ExitStack
) -> None:
    rig.host.contexts = [context(1, 1), context(2, 0)]
    rig.host.stays = [Residency(2, 1, 2), Residency(1, 2, 3), Residency(2, 3, 4)]
    rig.host.lost = 12
    recording = record(staged(rig, undo, "tenants: {a: {loads: [{}]}}"))
    assert [(stay.leaf, stay.start_ns) for stay in recording.stays] == [("a", 2)]
    assert recording.notes == ("12 stays on GPU 0 were overwritten before they were read",)


# ---- step logs ----


def test_a_step_under_way_at_the_end_is_waited_for(rig: FakeRig, undo: contextlib.ExitStack) -> None:
    # The first answer is what was logged at the end; then nothing for a while, then the step.
    rig.host.counts = lambda: iter([3, 3, 3, 4])
    recording = record(staged(rig, undo, "tenants: {a: {loads: [{}]}}"))
    assert [len(log) for log in recording.steps["a"]] == [4]
    assert len([sample for sample in recording.samples if sample.at_ns]) >= 3


def test_nobody_waits_for_the_step_of_a_dead_process(rig: FakeRig, undo: contextlib.ExitStack) -> None:
    asked = 0

    def dead() -> Iterator[int]:
        nonlocal asked
        while True:
            asked += 1
            yield 3

    rig.host.counts = dead
    stage = staged(rig, undo, "tenants: {a: {stop_s: 0.01, loads: [{}]}}")
    record(stage)
    assert asked <= 3, "once for the count, once to see that it is dead"


@pytest.mark.parametrize(
    ("load", "is_always"), [("{}", False), ("{wait: none}", True), ("{trick: sigcont}", True)]
)
def test_whose_logs_say_nothing_of_its_wants_is_taken_to_want_always(
    rig: FakeRig, undo: contextlib.ExitStack, load: str, is_always: bool
) -> None:
    stage = staged(rig, undo, f"tenants: {{a: {{start_s: 9, loads: [{load}]}}}}")
    recording = stage.record(Controller(), "none", 0.02, lambda _done: None)
    assert recording.is_always_wanting == {"a": is_always}


# ---- the account ----


class Accountant(Controller):
    """Answers in turn; the last answer for ever."""

    def __init__(self, *answers: int) -> None:
        self._answers = list(answers)
        self.asked = 0

    def account(self) -> dict[str, dict[str, Any]]:
        self.asked += 1
        value = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return {"a": {"gpu_time_ns": value, "confidence": "high", "misbehaviour": None}}


def test_the_account_is_read_just_after_it_was_booked(rig: FakeRig, undo: contextlib.ExitStack) -> None:
    rig.host.contexts = [context(1, 1, 77)]
    # Once by the clock; before the start: the same twice, then booked; at the end: the same once, then booked.
    control = Accountant(1, 1, 1, 2, 2, 3)
    recording = record(staged(rig, undo, "tenants: {a: {loads: [{}]}}"), control, seconds=0.03)
    said = [reading.gpu_time_ns["a"] for reading in recording.accounts]
    assert said[-1] == 3
    assert 2 in said
    assert recording.accounts[-1].truth_ns == {"a": 77}
    assert recording.accounts[-1].confidence == {"a": "high"}
    assert recording.accounts[-1].misbehaviour == {}


def test_an_account_that_stands_still_is_read_all_the_same(rig: FakeRig, undo: contextlib.ExitStack) -> None:
    control = Accountant(5)
    recording = record(staged(rig, undo, "tenants: {a: {loads: [{}]}}"), control)
    assert {reading.gpu_time_ns["a"] for reading in recording.accounts} == {5}
    assert len(recording.accounts) >= 2, "at the start and at the end"
    assert control.asked > 10, "it was asked again for as long as a tick may last"


@pytest.mark.parametrize(
    ("wish", "named", "least", "most"),
    [
        ("", None, 8, 12),
        ("on_misbehaviour: warn, ", None, 38, 44),
        ("on_misbehaviour: warn, ", "unseen", 8, 12),
    ],
)
def test_who_is_to_be_found_out_is_asked_after_oftener_until_it_is_named(
    rig: FakeRig, undo: contextlib.ExitStack, wish: str, named: str | None, least: int, most: int
) -> None:
    class Detective(Accountant):
        def account(self) -> dict[str, dict[str, Any]]:
            return {"a": {**super().account()["a"], "misbehaviour": named}}

    play = staged(rig, undo, f"tenants: {{a: {{{wish}loads: [{{}}]}}}}")
    assert least <= len(record(play, Detective(5), seconds=4.0).accounts) <= most


def test_a_policy_without_an_account_has_no_readings(rig: FakeRig, undo: contextlib.ExitStack) -> None:
    assert record(staged(rig, undo, "tenants: {a: {loads: [{}]}}")).accounts == ()


def test_what_a_policy_that_is_gone_says_ends_the_recording(rig: FakeRig, undo: contextlib.ExitStack) -> None:
    class Gone(Controller):
        def check(self) -> None:
            raise BenchError("it is gone")

    with pytest.raises(BenchError, match="it is gone"):
        record(staged(rig, undo, "tenants: {a: {loads: [{}]}}"), Gone())


# ---- policies ----


def test_an_unknown_policy_is_told_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="no policy 'best'") as caught:
        controller("best")
    assert "nvml-feedback" in str(caught.value.remedy)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait()


def test_letting_go_thaws_and_continues_also_what_is_below(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    def is_stopped() -> bool:
        return Path(f"/proc/{child.pid}/stat").read_text().rpartition(") ")[2][0] == "T"

    below = tmp_path / "a" / "below"
    below.mkdir(parents=True)
    (tmp_path / "a" / "cgroup.freeze").write_text("1")
    (tmp_path / "a" / "cgroup.procs").write_text(f"{2**22 + 1}\n")  # gone; no pid is that large
    (below / "cgroup.procs").write_text(f"{child.pid}\n")
    child.send_signal(signal.SIGSTOP)
    wait_until(is_stopped, 10, "it is stopped")
    let_go(str(tmp_path / "a"))
    assert (tmp_path / "a" / "cgroup.freeze").read_text() == "0"
    wait_until(lambda: not is_stopped(), 10, "it goes on")


def test_letting_go_of_a_cgroup_that_is_gone_is_nothing(tmp_path: Path) -> None:
    let_go(str(tmp_path / "gone"))
    assert not (tmp_path / "gone").exists()
