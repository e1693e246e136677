# SPDX-License-Identifier: Apache-2.0
"""Escalation as a part of the companion: threads, hangs, full disks, and a person who acts at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairsched.companion.escalate.audit import Audit
from fairsched.companion.escalate.desk import EscalationDesk
from fairsched.companion.escalate.model import QUEUE_DELAY, EscalationLimits, Kind, Order, Rung
from fairsched.companion.escalate.part import EscalationPart
from fairsched.companion.escalate.steps import CheckOrder, NotNow, Plan, StepFailed
from fairsched.companion.escalate.store import StateDamaged, Store
from fairsched.companion.exporter.book import TEXT
from fairsched.companion.exporter.pages import Pages
from fairsched.companion.part import Moment
from fairsched.protocol.status import StatusReport
from tests.support import wait_until
from tests.unit.companion.escalate.play import START_S
from tests.unit.companion.escalate.reports import report, tenant
from tests.unit.companion.escalate.test_books import FullDisk

LIMITS = EscalationLimits(
    (Rung("quota", 60.0), Rung("command", 60.0)), {QUEUE_DELAY: 20.0}, cool_down_s=60.0, is_dry_run=False
)


class FakeStep:
    """Does what it is told; records what it was asked."""

    timeout_s = 50.0

    def __init__(
        self, name: str, do: Callable[[], None] = lambda: None, look: Callable[[], None] = lambda: None
    ):
        self.name = name
        self.asked: list[str] = []
        self._do = do
        self._look = look

    def prepare(self, order: Order, report: StatusReport | None) -> Plan:
        self.asked.append("prepare")
        self._look()
        return Plan("do it", {"x": order.id})

    def apply(self, order: Order, plan: Plan, check_order: CheckOrder) -> str:
        self.asked.append("apply")
        self._do()
        check_order()
        self.asked.append("apply more")
        return "did it"

    def rollback(self, order: Order, report: StatusReport | None, check_order: CheckOrder) -> str:
        self.asked.append(f"rollback {dict(order.undo or {})}")
        return "took it back"


class World:
    """A part and the time it lives in."""

    def __init__(
        self, directory: Path, *steps: FakeStep, limits: EscalationLimits = LIMITS, audit: Audit | None = None
    ):
        self.directory = directory
        self.at_s = 0.0
        self.mode = "enforce"
        self.desk = EscalationDesk(limits, Store(directory), audit or Audit(directory), "companion")
        self.steps = {step.name: step for step in steps}
        self.part = EscalationPart(
            self.desk, self.steps, wall=lambda: START_S + self.at_s, clock=lambda: self.at_s
        )

    def take(self, delay_ms: float = 42.0, after_s: float = 10.0) -> Any:
        self.at_s += after_s
        chat = tenant("chat", delay_ms=delay_ms)
        seen = report([chat], wall_time_s=START_S + self.at_s, mode=self.mode)
        return self.part.take(Moment(seen))

    def take_for(self, for_s: float, delay_ms: float = 42.0) -> None:
        for _ in range(round(for_s / 10)):
            self.take(delay_ms)
            self.let_end()

    def let_end(self) -> None:
        """Wait until the thread of an order is done."""
        job = self.part._job
        if job is not None:
            wait_until(job.done.is_set, 10, "the order is carried out")

    def entries(self, event: str) -> list[Mapping[str, Any]]:
        return [entry for entry in Audit(self.directory).read() if entry["event"] == event]


def test_bad_for_three_minutes_leads_to_an_action_and_clear_for_five_to_its_end(tmp_path: Path) -> None:
    step = FakeStep("quota")
    world = World(tmp_path, step, FakeStep("command"))
    world.take_for(200)
    finding = world.take()
    assert step.asked == ["prepare", "apply", "apply more"]
    assert finding.faults == ["escalation: in force: quota; see fairsched escalation status"]
    world.take_for(700, delay_ms=5.0)
    assert step.asked[3:] == ["rollback {'x': 1}"]
    assert world.take(5.0).faults == []
    assert [(e["kind"], e["outcome"]) for e in world.entries("result")] == [
        ("apply", "done"),
        ("rollback", "rolled_back"),
    ]
    assert world.entries("note")[0]["text"].startswith("begins: queue_delay_p99_ms is 42")


def test_the_round_goes_on_while_a_step_takes_its_time(tmp_path: Path) -> None:
    free = threading.Event()
    world = World(tmp_path, FakeStep("quota", do=lambda: free.wait(30) and None), FakeStep("command"))
    for _ in range(22):
        world.take()
    assert world.desk.state.pending is not None
    assert not Store(tmp_path).lock(), "nobody else may act now"
    free.set()
    world.let_end()
    world.take()
    assert [one.step for one in world.desk.state.in_force] == ["quota"]
    store = Store(tmp_path)
    assert store.lock()
    store.unlock()


def test_a_step_that_hangs_is_given_up_and_the_next_one_is_taken(tmp_path: Path) -> None:
    free = threading.Event()
    hanging = FakeStep("quota", do=lambda: free.wait(60) and None)
    world = World(tmp_path, hanging, FakeStep("command"))
    for _ in range(60):
        world.take()
        if world.desk.state.pending is not None and world.desk.state.pending.step == "command":
            world.let_end()
    first, *rest = world.entries("result")
    assert first["outcome"] == "failed" and "hangs" in first["detail"]
    assert [one.step for one in world.desk.state.in_force] == ["quota", "command"], "what it announced counts"
    assert rest[0]["step"] == "command" and rest[0]["outcome"] == "done"
    free.set()


def test_a_step_that_was_given_up_while_it_acted_changes_nothing_more(tmp_path: Path) -> None:
    free = threading.Event()
    late = FakeStep("quota", do=lambda: free.wait(60) and None)
    world = World(tmp_path, late, FakeStep("command"))
    for _ in range(30):
        world.take()
    thread = world.part._hung["quota"]
    free.set()
    thread.join(10)
    assert not thread.is_alive() and late.asked == ["prepare", "apply"]
    assert "quota" in [one.step for one in world.desk.state.in_force], "it is taken back later"


def test_a_step_that_was_given_up_before_it_acted_does_not_act_later(tmp_path: Path) -> None:
    free = threading.Event()
    late = FakeStep("quota", look=lambda: free.wait(60) and None)
    world = World(tmp_path, late, FakeStep("command"))
    for _ in range(30):
        world.take()
    thread = world.part._hung["quota"]
    free.set()
    thread.join(10)
    assert not thread.is_alive() and late.asked == ["prepare"]
    assert "quota" not in [one.step for one in world.desk.state.in_force]


@pytest.mark.parametrize("error", [StepFailed("no"), RuntimeError("a fault of ours"), NotNow("used")])
def test_what_goes_wrong_in_a_step_leads_to_the_next(tmp_path: Path, error: Exception) -> None:
    def go_wrong() -> None:
        raise error

    other = FakeStep("command")
    world = World(tmp_path, FakeStep("quota", look=go_wrong), other)
    world.take_for(240)
    assert other.asked == ["prepare", "apply", "apply more"]
    outcome = "skipped" if isinstance(error, NotNow) else "failed"
    assert [(e["step"], e["outcome"]) for e in world.entries("result")] == [
        ("quota", outcome),
        ("command", "done"),
    ]
    assert str(error) in world.entries("result")[0]["detail"]


def test_nothing_is_done_that_cannot_be_written_down(tmp_path: Path) -> None:
    step = FakeStep("quota")
    limits = replace(LIMITS, bad_for_s=0.5)
    world = World(tmp_path, step, limits=limits, audit=FullDisk(tmp_path))
    faults = 0
    for _ in range(10):
        try:
            world.take()
        except OSError:
            faults += 1
    assert step.asked == [] and faults >= 5
    assert Store(tmp_path).lock(), "and the lock is given back"


def test_a_damaged_state_stops_everything(tmp_path: Path) -> None:
    step = FakeStep("quota")
    world = World(tmp_path, step)
    (tmp_path / "state.json").write_text("{")
    for _ in range(30):
        with pytest.raises(StateDamaged):
            world.take()
    assert step.asked == []


def test_while_a_person_acts_the_companion_does_not(tmp_path: Path) -> None:
    step = FakeStep("quota")
    world = World(tmp_path, step)
    person = Store(tmp_path)
    assert person.lock()
    for _ in range(40):
        finding = world.take()
    assert step.asked == [] and "by hand" in finding.faults[0]
    person.unlock()
    world.take_for(200)
    assert step.asked


def test_a_new_companion_remembers(tmp_path: Path) -> None:
    world = World(tmp_path, FakeStep("quota"), FakeStep("command"))
    world.take_for(220)
    assert world.desk.state.in_force
    world.part.close()
    step = FakeStep("quota")
    later = World(tmp_path, step, FakeStep("command"))
    later.at_s = world.at_s
    later.take_for(180)
    assert step.asked == [], "it is in force already, and all that went before is forgotten but that"
    later.take_for(900, delay_ms=5.0)
    assert step.asked == ["rollback {'x': 1}"]


def test_a_dry_run_looks_and_never_acts(tmp_path: Path) -> None:
    steps = FakeStep("quota"), FakeStep("command")
    world = World(tmp_path, *steps, limits=replace(LIMITS, is_dry_run=True))
    world.take_for(1200)
    world.take_for(1200, delay_ms=5.0)
    assert [step.asked for step in steps] == [["prepare"], ["prepare"]]
    assert {entry["outcome"] for entry in world.entries("result")} == {"dry_run"}
    assert world.take(5.0).faults == []


@pytest.mark.parametrize("mode", ["observe", "dry_run"])
def test_a_daemon_that_touches_nothing_makes_every_step_a_dry_run(tmp_path: Path, mode: str) -> None:
    """`fairsched run --dry-run` with escalation.dry_run: false in the file."""
    steps = FakeStep("quota"), FakeStep("command")
    world = World(tmp_path, *steps)
    world.mode = mode
    world.take_for(1200)
    assert [step.asked for step in steps] == [["prepare"], ["prepare"]]
    assert all(entry["is_dry_run"] for entry in world.entries("order"))
    assert {entry["outcome"] for entry in world.entries("result")} == {"dry_run"}
    assert mode in world.entries("note")[0]["text"] and Store(tmp_path).load().mode == mode
    world.mode = "enforce"
    world.take_for(220)
    assert steps[0].asked == ["prepare", "prepare", "apply", "apply more"]
    world.mode = mode
    world.take_for(900, delay_ms=5.0)
    assert steps[0].asked == ["prepare", "prepare", "apply", "apply more"], "what is in force stays"
    assert f"in force: quota, and stays so in mode {mode}" in world.take(5.0).faults[0]


def test_a_step_that_is_not_configured_any_more_is_skipped(tmp_path: Path) -> None:
    other = FakeStep("command")
    world = World(tmp_path, other)
    world.take_for(240)
    assert world.entries("result")[0]["outcome"] == "skipped" and other.asked == [
        "prepare",
        "apply",
        "apply more",
    ]


def test_the_end_of_the_ladder_is_a_warning(tmp_path: Path) -> None:
    world = World(tmp_path, FakeStep("quota"), FakeStep("command"))
    world.take_for(1200)
    assert world.take().faults[-1] == "escalation: the end of the ladder is reached, and it is still bad"


def test_a_rollback_is_an_order_like_any_other(tmp_path: Path) -> None:
    world = World(tmp_path, FakeStep("quota"), FakeStep("command"))
    world.take_for(220)
    world.take_for(700, delay_ms=5.0)
    kinds = [entry["kind"] for entry in world.entries("order")]
    assert kinds == [Kind.APPLY.value, Kind.ROLLBACK.value]


def test_the_exporter_is_told_level_and_outcomes_in_families_it_knows(tmp_path: Path) -> None:
    world = World(tmp_path, FakeStep("quota"), FakeStep("command"))
    assert world.part.rows() == [("fairsched_escalation_level", (), 0.0)]
    world.take_for(220)
    assert world.part.rows() == [
        ("fairsched_escalation_level", (), 1.0),
        ("fairsched_escalation_steps", ("quota", "done"), 1.0),
    ]
    pages = Pages(lambda max_age_s: report([tenant("chat")]), others=[world.part.rows])
    page = asyncio.run(pages.get(TEXT, is_packed=False)).decode()
    assert "fairsched_escalation_level 1.0\n" in page
    assert 'fairsched_escalation_steps_total{step="quota",outcome="done"} 1.0\n' in page
