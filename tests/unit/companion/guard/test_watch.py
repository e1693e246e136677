# SPDX-License-Identifier: Apache-2.0
"""A round from the look to what is kept of it; what outlives a restart, and what is given back when looks fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fairsched.companion.guard import LOWERED_FILE, STATE_FILE
from fairsched.companion.guard.hands import Hands
from fairsched.companion.guard.lowered import Lowered
from fairsched.companion.guard.part import GuardPart, LeftPart
from fairsched.companion.guard.records import Records
from fairsched.companion.guard.slowing import Slowing
from fairsched.companion.guard.tapes import TapeLimits, Tapes
from fairsched.companion.guard.watch import Tools, Watch, WatchRules
from fairsched.companion.locked import LockedFile
from fairsched.companion.part import Moment
from fairsched.errors import ControlError, HostUnsupported
from fairsched.guard.breach import Act, Breach, Per, What
from fairsched.guard.judge import Judge
from fairsched.guard.report import GuardStatus, SubjectUse, from_plain
from fairsched.guard.rules import Bound, GuardRules
from fairsched.guard.sample import Round
from fairsched.guard.tape import play_files
from tests.support import wait_until
from tests.unit.companion.daemon import SettingsDaemon
from tests.unit.companion.guard.made import ALICE, GIB, T_S, breach, moment
from tests.unit.companion.guard.test_hands import FakeEnder
from tests.unit.companion.guard.test_slowing import CONFIG, FakeAudit
from tests.unit.protocol import fakes

USE = SubjectUse("people", ALICE, breach().what, None, 30.0 * GIB, 20.0 * GIB, is_over=True)


class FakeJudge:
    """Says what it is told to, and counts the rounds in its state."""

    def __init__(self, rules: GuardRules, state: Mapping[str, Any] | None = None) -> None:
        del rules
        if state is not None and "rounds" not in state:
            raise ValueError("no state of this judge")
        self.restored = state
        self.rounds = 0 if state is None else int(state["rounds"])
        self.breaches: list[Breach] = []
        self.error: Exception | None = None
        self.forgot = 0

    def feed(self, seen: Round) -> list[Breach]:
        del seen
        if self.error is not None:
            raise self.error
        self.rounds += 1
        return self.breaches

    def state(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def subjects(self, now_s: float) -> list[SubjectUse]:
        del now_s
        return [USE]

    def forget_warnings(self) -> None:
        self.forgot += 1

    def notes(self) -> list[str]:
        return ["people: there is no GPU 7"]


class Site:
    """A guard with everything but a GPU."""

    def __init__(
        self, directory: Path, *, daemon: SettingsDaemon | None = None, tape_bytes: int = 1 << 20
    ) -> None:
        self.directory = directory
        self.guard = directory / "state" / "guard"
        self.daemon = daemon or SettingsDaemon(directory, CONFIG)
        self.records, self.ender = Records(FakeAudit()), FakeEnder()
        self.file = LockedFile(self.guard, LOWERED_FILE)
        lowered = Lowered(self.daemon, self.file, self.records)
        slowing = Slowing(self.daemon, lowered, self.records)
        self.now_s, self.t_s, self.mode = 100.0, T_S, "enforce"
        self.error: Exception | None = None
        self.made: list[FakeJudge] = []
        hands = Hands(self.records, slowing, self.ender, is_acting=True, is_forced=lambda _: False)
        self.tools = Tools(
            self.look, lambda: self.mode, Tapes(self.guard, TapeLimits(tape_bytes)), self.records, lowered, slowing
        , hands, self.file)  # fmt: skip
        rules = WatchRules(GuardRules(), "act", 10.0, directory / "guard.json", notes=("there is no user x",))
        self.watch = Watch(rules, self.tools, self.make_judge, lambda: self.now_s)  # type: ignore[arg-type]

    def make_judge(self, rules: GuardRules, state: Mapping[str, Any] | None) -> FakeJudge:
        self.made.append(FakeJudge(rules, state))
        return self.made[-1]

    @property
    def judge(self) -> FakeJudge:
        return self.made[-1]

    def look(self) -> Round:
        if self.error is not None:
            raise self.error
        return moment(self.t_s)

    def turn(self, *breaches: Breach) -> None:
        self.judge.breaches = list(breaches)
        self.now_s += 10
        self.t_s += 10
        self.watch.turn()

    def quota(self) -> Any:
        return self.daemon.value("chat", "quota")

    def status(self) -> GuardStatus:
        return from_plain(json.loads((self.directory / "guard.json").read_text()))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_round_is_recorded_judged_and_told(site: Site) -> None:
    site.turn(breach(Act.HOLD))
    (tape,) = site.guard.glob("*.tape")
    assert [one.t_s for one in play_files([tape])] == [T_S + 10]
    found = site.status()
    assert (found.mode, found.rounds, found.held, found.tape) == ("act", 1, ("chat",), str(tape))
    assert found.is_running and found.uses == (USE,) and found.deeds[0].limit == "people"
    assert found.notes == ("there is no user x", "people: there is no GPU 7")
    assert site.watch.faults() == [
        "guard: user alice has 30.0 GiB of GPU memory, and 20.0 are allowed (people); warned once, "
        "chat slowed down"
    ]
    rows = {(name, *labels): value for name, labels, value in site.watch.rows()}
    assert rows["fairsched_guard_over", "people", "vram"] == 1
    assert rows["fairsched_guard_held_tenants",] == rows["fairsched_guard_rounds",] == 1
    assert rows["fairsched_guard_deeds", "people", "hold", "done"] == 1
    assert rows["fairsched_guard_deeds", "people", "warn", "done"] == 1


def test_what_comes_next_is_said_with_its_time(site: Site) -> None:
    site.turn(breach(next_act=Act.END, next_s=T_S + 3600))
    assert site.watch.faults()[0].endswith("; warned once, ends from 09:00:00Z on")


def test_many_breaches_leave_room_for_others_in_the_status(site: Site) -> None:
    site.turn(*(breach(limit=f"limit{number}") for number in range(20)))
    assert len(site.watch.faults()) == 9
    assert site.watch.faults()[-1] == "guard: 12 more are over a limit: fairsched guard show"


def test_the_next_one_goes_on_from_the_judges_state(site: Site, tmp_path: Path) -> None:
    site.turn()
    site.turn()
    site.watch.close()
    after = Site(tmp_path, daemon=site.daemon)
    assert after.judge.rounds == 2
    after.turn()
    assert json.loads((site.guard / STATE_FILE).read_text()) == {"rounds": 3, "mode": "act"}


def test_what_was_counted_in_a_dry_run_ends_nobody_when_it_acts(site: Site, tmp_path: Path) -> None:
    site.mode = "dry_run"
    site.turn()
    site.watch.close()
    acting = Site(tmp_path, daemon=site.daemon)
    assert acting.judge.restored == {"rounds": 1, "mode": "dry_run", "ladders": []}
    acting.turn()
    acting.watch.close()
    again = Site(tmp_path, daemon=site.daemon)
    assert again.judge.restored == {"rounds": 2, "mode": "act"}


def test_a_daemon_that_begins_to_enforce_has_all_warnings_begin_anew(site: Site) -> None:
    assert site.watch.status(T_S).acts_as is None
    site.mode = "dry_run"
    site.turn(breach(next_act=Act.END, next_s=T_S))
    assert site.watch.status(T_S).acts_as == "dry_run"
    assert "would end from" in " ".join(site.watch.faults())
    site.mode = "enforce"
    for _ in range(2):
        site.turn()
        assert site.judge.forgot == 1
    assert site.watch.status(T_S).acts_as == "act"
    site.mode = "observe"
    site.turn()
    assert site.judge.forgot == 1


def test_a_judge_that_forgets_its_warnings_warns_again() -> None:
    bound = Bound("people", Per.USER, What.VRAM, 1.0, warnings=1, grace_s=10.0, is_hard=True)
    judge = Judge(GuardRules((bound,)))
    assert [judge.feed(moment(T_S + t_s))[0].act for t_s in (0, 5)] == [Act.WARN, Act.WARN]
    judge.forget_warnings()
    (found,) = judge.feed(moment(T_S + 10))
    assert (found.act, found.warnings, found.is_news) == (Act.WARN, 1, True)


def test_the_judge_takes_a_state_without_its_warnings() -> None:
    bound = Bound("people", Per.USER, What.VRAM, 1.0, warnings=1, grace_s=10.0, is_hard=True)
    judge = Judge(GuardRules((bound,)))
    assert [judge.feed(moment(T_S))[0].warnings, judge.feed(moment(T_S + 5))[0].act] == [1, Act.WARN]
    for state, act in ((judge.state(), Act.END), ({**judge.state(), "ladders": []}, Act.WARN)):
        (found,) = Judge(judge.rules, {**state, "mode": "act"}).feed(moment(T_S + 10))
        assert found.act is act


@pytest.mark.parametrize("text", ["{", '{"other": 1}', "[1]", ""])
def test_a_state_that_is_broken_is_said_and_begun_anew(tmp_path: Path, text: str) -> None:
    directory = tmp_path / "state" / "guard"
    directory.mkdir(parents=True)
    (directory / STATE_FILE).write_text(text)
    site = Site(tmp_path)
    assert site.judge.rounds == 0
    assert any("counted anew" in fault for fault in site.watch.faults())
    site.turn()
    assert site.records.troubles == ()


def test_two_never_act_at_once_and_the_next_gives_back_what_was_left(site: Site, tmp_path: Path) -> None:
    site.turn(breach(Act.HOLD))
    assert site.quota() == 0.05
    after = Site(tmp_path, daemon=site.daemon)
    after.turn(breach(Act.HOLD))
    assert after.judge.rounds == 1 and "another guard acts here" in after.watch.faults()[0]
    site.file.unlock()  # as when it is killed
    after.error = HostUnsupported("NVML does not work", remedy="install it")
    after.turn()
    assert site.quota() is None, "before anything else, whether anybody can be looked at or not"
    after.error = None
    after.turn()
    assert after.records.troubles == ()


def test_without_a_look_for_long_it_is_said_and_all_is_given_back(site: Site) -> None:
    site.turn(breach(Act.HOLD))
    site.error = HostUnsupported("NVML does not work", remedy="install it")
    part = GuardPart(site.watch, 10.0)
    for _ in range(3):
        site.turn(breach(Act.HOLD))
        part.take(Moment(fakes.status()))
    assert site.quota() == 0.05 and not site.watch.is_lost
    assert "guard: nobody can be looked at: NVML does not work (install it)" in site.watch.faults()
    for _ in range(2):
        site.turn(breach(Act.HOLD))
    assert site.watch.is_lost
    finding = part.take(Moment(fakes.status()))
    assert finding is not None and any("no look for 50 s" in fault for fault in finding.faults)
    wait_until(lambda: site.quota() is None, 10, "it is given back")
    site.error = None
    site.turn(breach(Act.HOLD))
    assert site.quota() == 0.05 and not site.watch.is_lost


def test_a_bug_of_the_judge_ends_nothing_but_its_round(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.turn(breach(Act.HOLD))
    site.judge.error = ZeroDivisionError("bug")
    for _ in range(5):
        site.turn()
    assert "guard: a round failed: ZeroDivisionError: bug" in site.watch.faults()
    assert len([one for one in caplog.records if one.exc_info]) == 1, "once"
    assert site.watch.is_lost, "so nothing is kept for its sake"
    site.judge.error = None
    site.turn()
    assert site.records.troubles == ()


def test_a_daemon_that_leaves_is_no_fault(site: Site) -> None:
    site.error = ControlError("it is not running", remedy="start it")
    site.turn()
    assert site.watch.faults() == [] and site.judge.rounds == 0


def test_a_disk_without_room_is_said_and_judging_goes_on(site: Site) -> None:
    site.turn()
    site.tools.tapes.close()
    for path in site.guard.iterdir():
        path.unlink()
    site.guard.rmdir()
    site.guard.write_text("in the way")
    site.turn(breach())
    said = " ".join(site.watch.faults())
    assert "rounds are not recorded" in said and "is not written" in said and site.judge.rounds == 2


def test_the_end_gives_back_and_a_round_that_is_late_does_nothing_more(site: Site) -> None:
    site.turn(breach(Act.HOLD))
    site.watch.give_back("its companion ends", is_end=True)
    site.turn(breach(Act.HOLD))
    assert site.quota() is None and not (site.guard / LOWERED_FILE).exists()


def test_the_part_looks_in_a_thread_of_its_own_and_ends_with_it(site: Site) -> None:
    site.judge.breaches = [breach(Act.HOLD)]
    part = GuardPart(site.watch, 0.01).start()
    wait_until(lambda: site.judge.rounds > 2, 10, "it looks again and again")
    assert site.quota() == 0.05
    assert ("fairsched_guard_held_tenants", (), 1.0) in part.rows()
    part.close()
    assert site.quota() is None
    assert site.file.lock(), "somebody else may act"
    assert not [one for one in threading.enumerate() if one.name == "guard-look"]


def test_where_no_limit_is_kept_any_more_what_was_lowered_is_given_back(site: Site) -> None:
    site.turn(breach(Act.HOLD))
    left_file = LockedFile(site.guard, LOWERED_FILE)
    records = Records(FakeAudit())
    part = LeftPart(left_file, Lowered(site.daemon, left_file, records), records)
    assert part.take(Moment(fakes.status())) is None
    assert site.quota() == 0.05, "the other guard lives"
    site.file.unlock()
    part.take(Moment(fakes.status()))
    assert site.quota() is None
    part.close()
