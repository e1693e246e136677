# SPDX-License-Identifier: Apache-2.0
"""The round of the companion's parts, and the daemon's end of it."""

from __future__ import annotations

import os
import socket
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest

from fairsched.companion import __main__ as companion
from fairsched.companion.keeper import CompanionKeeper, Said, wishes
from fairsched.companion.part import Finding, Moment, Node
from fairsched.config import Config, from_bytes
from fairsched.errors import ConfigError, ControlError
from fairsched.protocol.status import (
    CompanionStatus,
    DecisionRecord,
    SliStatus,
    TokenRate,
    status_from_plain,
    to_plain,
)
from tests.unit.protocol import fakes

SECOND_NS = 1_000_000_000
FINDING = Finding(SliStatus(is_fair=True), {"chat": TokenRate(51.5, 0.01)}, ["a page is empty"])


@dataclass
class Noted:
    """A part that remembers its moments."""

    interval_s: float = 1.0
    wants_decisions: bool = False
    answer: Finding | None = None
    is_broken: bool = False
    name: str = "noted"
    moments: list[Moment] = field(default_factory=list)
    closed: int = 0

    def take(self, moment: Moment) -> Finding | None:
        self.moments.append(moment)
        if self.is_broken:
            raise RuntimeError("boom")
        return self.answer

    def close(self) -> None:
        self.closed += 1
        if self.is_broken:
            raise RuntimeError("boom")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "s")


def test_each_part_has_its_own_pace(tmp_path: Path, node: Node) -> None:
    quick, slow = Noted(1.0), Noted(10.0)
    with fakes.serving(tmp_path / "s"):
        pair = companion.Companion(node, [quick, slow])
        for now_s in (100.0, 100.5, 101.0, 102.0, 110.0):
            pair.step(now_s)
    assert (len(quick.moments), len(slow.moments)) == (4, 2)
    assert quick.moments[0].report == status_from_plain(to_plain(fakes.status()))


def test_a_part_sees_each_decision_once_and_knows_that_the_first_moment_has_a_gap(
    tmp_path: Path, node: Node
) -> None:
    part = Noted(wants_decisions=True)
    with fakes.serving(tmp_path / "s"):
        alone = companion.Companion(node, [part])
        for now_s in (100.0, 101.0, 102.0):
            alone.step(now_s)
    assert [moment.is_gapless for moment in part.moments] == [False, True, True]
    # the fake status is of a moment between its two decisions, so one of them is new, and new only once
    assert [list(moment.decisions) for moment in part.moments] == [[], [fakes.thaw()], []]


def test_decisions_that_could_not_be_had_are_asked_for_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    times_ns, asked = iter((5, 6, 7, 8)), list[int]()

    def decisions(since_ns: int) -> tuple[list[DecisionRecord], bool]:
        asked.append(since_ns)
        if len(asked) == 1:
            raise ControlError("the daemon is busy", remedy="ask again")
        return [], True

    monkeypatch.setattr(node, "report", lambda max_age_s: replace(fakes.status(), t_ns=next(times_ns)))
    monkeypatch.setattr(node, "decisions", decisions)
    part = Noted(wants_decisions=True)
    alone = companion.Companion(node, [part])
    for now_s in (100.0, 101.0, 102.0, 103.0):
        alone.step(now_s)
    assert asked == [5, 5, 7], "from where it had got to"
    assert [moment.is_gapless for moment in part.moments] == [False, True, True]


def test_a_broken_part_is_named_and_the_others_go_on(tmp_path: Path, node: Node) -> None:
    broken, well = Noted(is_broken=True, name="broken"), Noted(answer=FINDING)
    daemon = fakes.FakeDaemon()
    with fakes.serving(tmp_path / "s", daemon):
        pair = companion.Companion(node, [broken, well])
        pair.step(100.0)
        broken.is_broken = False
        pair.step(101.0)
        broken.is_broken = True
        pair.close()
    assert [told["faults"] for told in daemon.told] == [
        ["broken: boom", "a page is empty"],
        ["a page is empty"],
    ]
    assert daemon.told[1]["tokens"] == {"chat": to_plain(TokenRate(51.5, 0.01))}
    assert (broken.closed, well.closed) == (1, 1)


def test_a_daemon_that_does_not_answer_is_no_fault_of_a_part(node: Node) -> None:
    part = Noted()
    alone = companion.Companion(node, [part])
    alone.step(100.0)
    assert part.moments == []


def test_scrapes_in_the_same_second_ask_the_daemon_once(tmp_path: Path, node: Node) -> None:
    daemon = fakes.FakeDaemon()
    with fakes.serving(tmp_path / "s", daemon):
        assert node.report(max_age_s=60) is node.report(max_age_s=60)
        assert daemon.asked == ["status"]
        assert node.report(max_age_s=0) is not None
    assert daemon.asked == ["status", "status"]


def test_the_round_ends_with_its_input() -> None:
    read, write = os.pipe()
    os.close(write)
    companion.Companion(Node(Path("/nowhere")), []).run(read)
    os.close(read)


def config(text: str) -> Config:
    return from_bytes(text.encode(), "test.yaml")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_without_a_wish_there_is_no_companion() -> None:
    assert wishes(Config()) == {}
    keeper = CompanionKeeper(Config())
    keeper.refresh(Config(), 0)
    assert keeper.status() is None


def test_an_address_that_is_taken_keeps_no_daemon_from_starting_and_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wanted = config(f"metrics: {{listen: ':{taken.getsockname()[1]}'}}")
        keeper = CompanionKeeper(wanted)
    keeper.stop()
    assert "cannot listen on" in caplog.text
    assert "free the address" in caplog.text


def test_a_daemon_does_not_start_with_an_address_that_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match="there is no port 70000"):
        CompanionKeeper(config("metrics: {listen: ':70000'}"))


def test_it_exports_is_replaced_when_it_dies_and_ends_with_its_keeper(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    port = free_port()
    wanted = config(f"metrics: {{listen: ':{port}'}}\ncontrol: {{socket: {tmp_path}/s}}")
    daemon = fakes.FakeDaemon()
    daemon.config = wanted
    keeper = CompanionKeeper(wanted)

    def pid() -> int:
        status = keeper.status()
        assert status is not None and status.pid is not None
        return status.pid

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                return b"fairsched_build_info" in answer.read()
        except OSError:
            return False

    with fakes.serving(tmp_path / "s", daemon):
        keeper.refresh(wanted, 0)
        wait_until(answers, 30, "the first answers")
        first = pid()
        os.kill(first, 9)

        def is_missed() -> bool:
            keeper.refresh(wanted, SECOND_NS)
            return keeper.status() == CompanionStatus(pid=None, starts=1)

        wait_until(is_missed, 30, "its death is noticed, and it is not started again at once")
        keeper.refresh(wanted, SECOND_NS)
        assert is_missed()
        keeper.refresh(wanted, 3 * SECOND_NS)
        wait_until(answers, 30, "the second answers")
        assert pid() != first
        keeper.refresh(Config(), 4 * SECOND_NS)
        assert keeper.status() is None
        wait_until(lambda: not answers(), 30, "it leaves when nothing is wanted of it")
    keeper.stop()


def test_one_that_does_not_leave_is_killed_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    """People are frozen meanwhile: neither the look that sends it away nor those after it may wait."""
    stubborn = tmp_path / "stubborn"
    stubborn.write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    stubborn.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stubborn))
    port = free_port()
    wanted, other = (
        config(f"metrics: {{listen: ':{port}'}}\nlog: {{level: {level}}}") for level in ("info", "debug")
    )
    keeper = CompanionKeeper(wanted)
    keeper.refresh(wanted, 0)
    first = keeper.status()
    assert first is not None and first.pid is not None
    keeper.refresh(other, SECOND_NS)
    keeper.refresh(other, SECOND_NS + SECOND_NS // 2)
    os.kill(first.pid, 0)
    assert keeper.status() == CompanionStatus(pid=None, starts=1), "its port may be in use until it has gone"

    def is_followed() -> bool:
        keeper.refresh(other, 2 * SECOND_NS)
        status = keeper.status()
        return status is not None and status.starts == 2

    wait_until(is_followed, 30, "it is killed, and another is started")
    keeper.stop(timeout_s=0.1)


def test_the_last_words_of_one_that_ended_stand_until_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    wanted = config(f"metrics: {{listen: ':{free_port()}'}}\ncontrol: {{socket: {tmp_path}/s}}")
    keeper = CompanionKeeper(wanted)

    def end(now_s: int) -> None:
        status = keeper.status()
        assert status is not None and status.pid is not None
        os.waitid(os.P_PID, status.pid, os.WEXITED | os.WNOWAIT)
        keeper.refresh(wanted, now_s * SECOND_NS)

    keeper.refresh(wanted, 0)
    keeper.told({"faults": ["companion: cannot listen"]}, 0)
    end(1)
    assert keeper.said(30 * SECOND_NS) == Said(faults=("companion: cannot listen",))
    keeper.refresh(wanted, 40 * SECOND_NS)
    assert keeper.said(40 * SECOND_NS) == Said(), "another one is about to speak"
    end(41)
    assert keeper.said(42 * SECOND_NS).faults == ("companion: it ended with status 1",)
    keeper.refresh(Config(), 43 * SECOND_NS)
    assert keeper.said(43 * SECOND_NS) == Said(), "nobody misses it"


def test_one_that_keeps_dying_is_started_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    wanted = config(f"metrics: {{listen: ':{free_port()}'}}\ncontrol: {{socket: {tmp_path}/s}}")
    keeper = CompanionKeeper(wanted)
    started_s = []
    for now_s in range(200):
        before = keeper.status()
        keeper.refresh(wanted, now_s * SECOND_NS)
        after = keeper.status()
        assert after is not None
        if after.starts != (before.starts if before else 0):
            started_s.append(now_s)
        if after.pid is not None:
            os.waitid(os.P_PID, after.pid, os.WEXITED | os.WNOWAIT)
    gaps = [later - earlier for earlier, later in pairwise(started_s)]
    assert gaps[:5] == [2, 3, 5, 9, 17]
    assert max(gaps) <= 61


def test_what_it_said_is_forgotten_when_it_is_old() -> None:
    keeper = CompanionKeeper(Config())
    keeper.told(to_plain(FINDING), 5 * SECOND_NS)
    assert keeper.said(6 * SECOND_NS) == Said(FINDING.slis, FINDING.tokens, ("a page is empty",))
    assert keeper.said(15 * SECOND_NS) == Said()


@pytest.mark.parametrize("finding", [{"faults": "x"}, {"slis": 3}, {"tokens": {"chat": 3}}])
def test_what_is_no_finding_is_refused(finding: dict[str, object]) -> None:
    keeper = CompanionKeeper(Config())
    with pytest.raises((AttributeError, TypeError, ValueError)):
        keeper.told(finding, 0)
    assert keeper.said(1) == Said()
