# SPDX-License-Identifier: Apache-2.0
"""Who has a context and is gone is found within a round, and nobody else."""

from __future__ import annotations

import pytest

from fairsched.base.process import ProcessId
from fairsched.observe import life
from fairsched.observe.life import ROUND_NS, LifeWatch

LOOK_NS = 200_000_000


class Node:
    """The processes there are: when each pid's was started, and how many were asked about."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: dict[int, int] = {}
        self.asked = 0
        monkeypatch.setattr(life.ProcessId, "of", self._of)

    def _of(self, pid: int) -> ProcessId | None:
        self.asked += 1
        return ProcessId(pid, self.started[pid]) if pid in self.started else None


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


def look(watch: LifeWatch, pids: set[int], now_ns: int) -> set[int]:
    if watch.is_due(now_ns):
        watch.begin(pids, now_ns)
    return watch.gone()


def test_the_living_are_not_gone_and_the_dead_are(node: Node) -> None:
    watch = LifeWatch()
    node.started = {1: 10}
    assert look(watch, {1, 2}, 0) == {2}
    assert look(watch, {1}, ROUND_NS) == set()
    del node.started[1]
    assert look(watch, {1}, 2 * ROUND_NS) == {1}


def test_who_has_the_pid_of_a_dead_one_does_not_stand_for_it(node: Node) -> None:
    watch = LifeWatch()
    node.started = {1: 10}
    assert look(watch, {1}, 0) == set()
    node.started = {1: 20}
    assert look(watch, {1}, ROUND_NS) == {1}
    assert look(watch, {1}, 2 * ROUND_NS) == set(), "what it has by then is its own"


def test_a_process_without_contexts_is_forgotten(node: Node) -> None:
    watch = LifeWatch()
    node.started = {1: 10}
    look(watch, {1}, 0)
    look(watch, set(), ROUND_NS)
    node.started = {1: 20}
    assert look(watch, {1}, 2 * ROUND_NS) == set()


def test_no_call_looks_at_more_than_a_portion_and_all_have_their_turn(node: Node) -> None:
    watch, pids = LifeWatch(), set(range(1, 301))
    found: set[int] = set()
    for number in range(5):
        before = node.asked
        found |= look(watch, pids, number * LOOK_NS)
        assert node.asked - before <= 64
    assert found == pids


def test_between_two_rounds_nobody_is_asked_about(node: Node) -> None:
    watch = LifeWatch()
    look(watch, {1, 2}, 0)
    before = node.asked
    assert look(watch, {1, 2}, LOOK_NS) == set()
    assert node.asked == before
