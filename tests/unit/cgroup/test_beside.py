# SPDX-License-Identifier: Apache-2.0
"""Holds and thaws that take long are made by a thread, in order, and the loop goes on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from fairsched.base.wait import is_readable
from fairsched.cgroup import beside
from fairsched.cgroup.beside import DEAR_NS, BesideLoop
from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.journal import Journal
from fairsched.cgroup.outcome import HoldKind, HoldResult
from fairsched.cgroup.path import CgroupRef
from fairsched.errors import KernelRefused
from tests.support import FakeTree, wait_until

PATIENCE_S = 30.0


class SlowFreezer(Freezer):
    """Its dear cgroups cost processor time, and wait for a gate where the test closes it."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.dear: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.spent = threading.local()
        self.by: list[tuple[str, int, bool]] = []
        """What was done, and whether by the thread that asked."""
        self.refuses: KernelRefused | None = None
        self.now_ns = 0
        self.slept = 0
        self.waits_ns = self.is_in_line_ns = 0
        """How long the next ones take: for others, and for a processor."""

    def cost_ns(self) -> int:
        return int(getattr(self.spent, "ns", 0))

    def _work(self, what: str, cgroup_id: int) -> None:
        if cgroup_id in self.dear:
            self.spent.ns = self.cost_ns() + DEAR_NS
            self.entered.set()
            assert self.gate.wait(PATIENCE_S)
        self.now_ns += self.waits_ns + self.is_in_line_ns
        self.slept += bool(self.waits_ns)
        self.by.append((what, cgroup_id, threading.current_thread() is threading.main_thread()))
        if self.refuses is not None:
            raise self.refuses

    def hold(self, ref: CgroupRef, tenant: str, deadline_ns: int, reason: str) -> HoldResult:
        self._work("hold", ref.id)
        return super().hold(ref, tenant, deadline_ns, reason)

    def thaw(self, cgroup_id: int) -> HoldResult:
        self._work("thaw", cgroup_id)
        return super().thaw(cgroup_id)


@dataclass
class Scene:
    """``big`` is known to be dear, ``small`` is not; nobody is held."""

    fake: FakeTree
    journal: Journal
    freezer: SlowFreezer
    brake: BesideLoop
    refs: dict[str, CgroupRef] = field(default_factory=dict)

    def hold(self, name: str, deadline_s: float = 600) -> HoldKind:
        deadline_ns = time.monotonic_ns() + int(deadline_s * 1e9)
        return self.brake.hold_gang([self.refs[name]], name, deadline_ns, "x").kind

    def thaw(self, name: str) -> HoldKind:
        return self.brake.thaw(self.refs[name].id).kind

    def close_gate(self) -> None:
        self.freezer.entered.clear()
        self.freezer.gate.clear()

    def wait_entered(self) -> None:
        assert self.freezer.entered.wait(PATIENCE_S)

    def finish(self) -> list[HoldResult]:
        """Open the gate, wait until all is done; what is told meanwhile, as to a daemon that waits for it."""
        self.freezer.gate.set()
        news: list[HoldResult] = []

        def is_done() -> bool:
            is_over = not self.brake.is_busy
            if is_over or is_readable(self.brake):  # the last one may end before its bell rings
                news.extend(self.brake.settle())
            return is_over

        wait_until(is_done, PATIENCE_S, "all is done")
        return news


@pytest.fixture
def scene(fake: FakeTree, journal: Journal) -> Iterator[Scene]:
    freezer = SlowFreezer(journal)
    brake = BesideLoop(
        freezer,
        cost_clock_ns=freezer.cost_ns,
        clock_ns=lambda: freezer.now_ns,
        waits=lambda: freezer.slept,
    )
    scene = Scene(fake, journal, freezer, brake)
    for name in ("big", "small", "other"):
        scene.refs[name] = fake.make(name)
    freezer.dear = {scene.refs["big"].id}
    assert scene.hold("big") is HoldKind.HELD  # here it is learnt
    assert freezer.by[-1][2], "the first time nobody can know"
    assert scene.thaw("big") is HoldKind.THAWED
    scene.finish()
    freezer.by.clear()
    yield scene
    freezer.refuses = None
    freezer.gate.set()
    brake.close()
    for ref in scene.refs.values():
        ref.close()


def test_what_is_cheap_is_done_at_once_by_who_asks(scene: Scene) -> None:
    assert scene.hold("small") is HoldKind.HELD
    assert scene.fake.is_asked("small")
    assert scene.thaw("small") is HoldKind.THAWED
    assert not scene.fake.is_asked("small")
    assert [mine for *_, mine in scene.freezer.by] == [True, True]
    assert not scene.brake.is_busy


def test_who_asks_does_not_wait_for_what_is_dear(scene: Scene) -> None:
    scene.close_gate()
    assert scene.hold("big") is HoldKind.HELD
    scene.wait_entered()
    big = scene.refs["big"].id
    assert not scene.fake.is_asked("big"), "it is still to be done"
    assert scene.brake.held_for("big") == [big], "and meant"
    assert big in scene.brake.held, "so that a pause that is found there is ours"
    assert scene.hold("big") is HoldKind.HELD, "asked again it is nothing new"
    scene.finish()
    assert scene.fake.is_asked("big")
    (entry,) = scene.journal.entries()
    assert entry == scene.brake.holds[big]
    assert not any(mine for *_, mine in scene.freezer.by)


def test_what_is_asked_meanwhile_is_done_in_order(scene: Scene) -> None:
    scene.close_gate()
    scene.hold("big")
    scene.wait_entered()
    assert scene.hold("small") is HoldKind.HELD
    assert scene.thaw("big") is HoldKind.THAWED
    assert scene.brake.held_for("big") == []
    assert scene.brake.held_for("small") == [scene.refs["small"].id]
    assert scene.thaw("big") is HoldKind.NOT_HELD
    scene.finish()
    done = [
        (what, name) for what, one, _ in scene.freezer.by for name, ref in scene.refs.items() if ref.id == one
    ]
    assert done == [("hold", "big"), ("hold", "small"), ("thaw", "big"), ("thaw", "big")]
    assert (scene.fake.is_asked("big"), scene.fake.is_asked("small")) == (False, True)
    assert [one.tenant for one in scene.brake.holds.values()] == ["small"]


def test_a_hold_that_is_yet_to_be_made_and_ended_is_ours(scene: Scene) -> None:
    scene.close_gate()
    scene.hold("big")
    scene.wait_entered()
    scene.hold("small")
    assert scene.thaw("small") is HoldKind.THAWED
    assert scene.brake.held_for("small") == []
    assert set(scene.brake.held) == {scene.refs["big"].id, scene.refs["small"].id}, "it will be seen frozen"
    scene.finish()
    assert set(scene.brake.held) == {scene.refs["big"].id}


def test_the_reference_of_who_asked_may_be_closed_meanwhile(scene: Scene) -> None:
    """And its number be that of another cgroup, which is nobody's business here."""
    scene.close_gate()
    scene.hold("big")
    scene.wait_entered()
    scene.hold("small")
    number = scene.refs["small"].fileno()
    scene.refs["small"].close()
    with scene.fake.make("late") as late:
        assert late.fileno() == number, "else this test says nothing"
        scene.finish()
        assert (scene.fake.is_asked("small"), scene.fake.is_asked("late")) == (True, False)


def test_a_hold_that_could_not_be_made_is_told(scene: Scene) -> None:
    scene.close_gate()
    scene.hold("big")
    scene.wait_entered()
    scene.fake.write_freeze("other", "1")  # somebody else's
    scene.hold("other")
    news = scene.finish()
    told = [(one.kind, one.cgroup_id, one.tenant) for one in news if one.kind is not HoldKind.SETTLED]
    assert told == [(HoldKind.FOREIGN, scene.refs["other"].id, "other")]
    assert scene.fake.is_asked("other"), "it stays theirs"
    assert scene.refs["other"].id not in scene.brake.held


def test_a_hold_that_is_refused_is_told_and_raised(scene: Scene) -> None:
    scene.close_gate()
    scene.freezer.refuses = KernelRefused("cgroup.freeze", 5, "cannot freeze", remedy="")
    scene.hold("big")
    scene.wait_entered()
    scene.freezer.gate.set()
    wait_until(lambda: not scene.brake.is_busy, PATIENCE_S, "it is done")
    assert [(one.kind, one.tenant) for one in scene.brake.settle()] == [(HoldKind.NOT_HELD, "big")]
    assert is_readable(scene.brake), "there is more to hear"
    with pytest.raises(KernelRefused):
        scene.brake.settle()
    assert scene.brake.settle() == []
    assert scene.brake.held_for("big") == []


def test_a_deadline_is_kept_by_who_is_free_to(scene: Scene) -> None:
    scene.hold("small", 0.001)
    scene.close_gate()
    scene.hold("big")
    scene.wait_entered()
    assert scene.brake.thaw_expired(time.monotonic_ns() + 1_000_000) == []
    scene.finish()
    assert (scene.fake.is_asked("small"), scene.fake.is_asked("big")) == (False, True)


def test_a_hold_that_comes_after_its_deadline_is_none(scene: Scene) -> None:
    scene.close_gate()
    scene.hold("big")
    scene.wait_entered()
    deadline_ns = time.monotonic_ns() + 1_000_000
    scene.brake.hold_gang([scene.refs["small"]], "small", deadline_ns, "x")
    wait_until(lambda: time.monotonic_ns() > deadline_ns, PATIENCE_S, "it is past")
    news = scene.finish()
    assert [one.kind for one in news if one.tenant == "small"] == [HoldKind.EXPIRED]
    assert not scene.fake.is_asked("small")


def test_while_the_thread_is_kept_no_more_than_so_many_holds_wait_for_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "MOST", 2)
    scene.close_gate()
    scene.hold("big")
    scene.wait_entered()
    assert scene.hold("small") is HoldKind.HELD
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        assert scene.hold("other") is HoldKind.EXPIRED
        scene.brake.thaw_expired(time.monotonic_ns())
        scene.brake.forget_others([ref.id for ref in scene.refs.values()])
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert scene.brake.held_for("other") == []
    assert scene.thaw("big") is HoldKind.THAWED, "whoever is to be let go is"
    assert scene.finish() == []
    assert [scene.fake.is_asked(name) for name in ("big", "small", "other")] == [False, True, False]
    assert scene.hold("other") is HoldKind.HELD


def test_leaving_it_waits_for_what_is_done_and_thaws_all(scene: Scene) -> None:
    scene.hold("small")
    scene.close_gate()
    scene.hold("big")
    scene.wait_entered()
    scene.hold("other")  # not begun
    scene.thaw("small")  # nor this
    threading.Timer(0.05, scene.freezer.gate.set).start()
    scene.brake.close()
    done = [(what, one) for what, one, _ in scene.freezer.by]
    assert ("hold", scene.refs["big"].id) in done, "and is over"
    assert ("hold", scene.refs["other"].id) not in done
    assert not any(scene.fake.is_asked(name) for name in scene.refs)
    assert scene.journal.entries() == []
    assert scene.brake.close() == []


def test_what_is_dear_is_not_pulsed_but_let_go(scene: Scene) -> None:
    def never() -> float:
        raise AssertionError("nobody waits for it")

    scene.hold("big")
    scene.finish()
    kind = scene.brake.pulse([scene.refs["big"].id], time.monotonic_ns() + 10**12, "x", never, 1)
    assert kind is HoldKind.THAWED
    scene.finish()
    assert not scene.fake.is_asked("big")


def test_a_pulse_of_what_could_not_be_held_begins_nothing(scene: Scene) -> None:
    def never() -> float:
        raise AssertionError("nobody runs who could begin")

    scene.close_gate()
    scene.hold("big")
    scene.wait_entered()
    scene.hold("small")
    ids = scene.brake.held_for("small")
    assert ids == [scene.refs["small"].id]
    scene.freezer.refuses = KernelRefused("x", 0, "cannot freeze")
    scene.freezer.gate.set()
    wait_until(lambda: not scene.brake.is_busy, PATIENCE_S, "both were refused")
    scene.freezer.refuses = None
    for asked in (ids, []):
        assert scene.brake.pulse(asked, time.monotonic_ns() + 10**12, "x", never, 1) is HoldKind.THAWED


def test_who_asks_begins_no_thread_which_would_inherit_its_priority(
    fake: FakeTree, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: threading.Thread) -> None:
        raise AssertionError("it is there before anybody asks")

    freezer = SlowFreezer(journal)
    brake = BesideLoop(freezer, cost_clock_ns=freezer.cost_ns)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with fake.make("big") as ref:
        freezer.dear = {ref.id}
        brake.hold(ref, "big", time.monotonic_ns() + 10**12, "x")
        assert brake.pulse([ref.id], time.monotonic_ns() + 10**12, "x", lambda: 1.0, 1) is HoldKind.THAWED
        brake.close()
    assert freezer.by[-1][0] == "thaw"


def test_a_gang_of_many_is_dear_though_none_of_it_is(scene: Scene) -> None:
    refs, later_ns = [scene.refs["small"], scene.refs["other"]], time.monotonic_ns() + 10**12
    scene.freezer.dear = {scene.refs["small"].id}
    scene.brake.hold_gang(refs, "gang", later_ns, "x")
    assert not scene.brake.is_busy, "nobody can know"
    scene.freezer.dear = set()
    for ref in refs:
        scene.brake.thaw(ref.id)
        assert not scene.brake.is_busy, "each is cheap"
    scene.close_gate()
    scene.brake.hold_gang(refs, "gang", later_ns, "x")
    assert scene.brake.is_busy
    scene.finish()
    assert {name for name in scene.refs if scene.fake.is_asked(name)} == {"small", "other"}


def test_after_a_wait_for_others_nobody_waits_for_some_seconds(scene: Scene) -> None:
    scene.freezer.waits_ns = DEAR_NS
    scene.hold("small")
    assert not scene.brake.is_busy, "nobody can know"
    scene.freezer.waits_ns = 0
    scene.close_gate()
    scene.hold("big")
    scene.hold("other")
    assert scene.brake.is_busy
    scene.finish()
    assert [mine for *_, mine in scene.freezer.by] == [True, False, False]
    scene.freezer.now_ns += 9_990_000_000
    scene.freezer.waits_ns = DEAR_NS
    scene.thaw("small")
    scene.finish()
    assert not scene.freezer.by[-1][2]
    scene.freezer.waits_ns = 0
    scene.freezer.now_ns += 20_000_000
    scene.thaw("other")
    assert scene.freezer.by[-1][2], "the thread sleeps for other reasons, too"


def test_who_waits_for_a_processor_waits_for_nobody(scene: Scene) -> None:
    scene.freezer.is_in_line_ns = 10 * DEAR_NS
    scene.hold("small")
    scene.thaw("small")
    assert [mine for *_, mine in scene.freezer.by] == [True, True]


def test_once_it_is_cheap_again_it_is_done_at_once(scene: Scene) -> None:
    scene.freezer.dear = set()
    scene.hold("big")
    scene.thaw("big")
    scene.finish()
    scene.freezer.by.clear()
    scene.hold("big")
    assert [mine for *_, mine in scene.freezer.by] == [True]


def test_it_is_quiet_while_the_thread_works(scene: Scene) -> None:
    """A descriptor that stays readable would have the loop spin."""
    scene.hold("small")
    scene.brake.settle()
    scene.close_gate()
    scene.hold("big")
    scene.wait_entered()
    scene.fake.write_freeze("small", "0")  # news for the freezer, which only the thread may read
    assert not is_readable(scene.brake)
    news = scene.finish()
    assert (HoldKind.RELEASED, "small") in [(one.kind, one.tenant) for one in news]
