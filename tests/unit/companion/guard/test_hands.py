# SPDX-License-Identifier: Apache-2.0
"""What is told, and whom the hands have ended: one at a time, only what this round asks for, and nothing unwritten."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fairsched.companion.guard import LOWERED_FILE
from fairsched.companion.guard.ending import EndOrder, EndResult
from fairsched.companion.guard.hands import Hands
from fairsched.companion.guard.lowered import Lowered
from fairsched.companion.guard.records import Records
from fairsched.companion.guard.slowing import Slowing
from fairsched.companion.locked import LockedFile
from fairsched.guard.breach import Act, Breach, What
from tests.unit.companion.daemon import SettingsDaemon
from tests.unit.companion.guard.made import GIB, T_S, breach, moment, process
from tests.unit.companion.guard.test_slowing import CONFIG, FakeAudit

END = breach(Act.END)
OTHER_END = breach(Act.END, limit="hours", what=What.HOURS)


@dataclass
class FakeEnder:
    """Is at it until it is told what came of it."""

    orders: list[EndOrder] = field(default_factory=list)
    result: EndResult | None = None
    is_busy: bool = False

    def start(self, order: EndOrder) -> None:
        assert not self.is_busy
        self.orders.append(order)
        self.is_busy = True

    def collect(self) -> EndResult | None:
        result, self.result = self.result, None
        self.is_busy = self.is_busy and result is None
        return result

    def finish(self, text: str = "1 of 1 ended", **changes: Any) -> None:
        self.result = EndResult(self.orders[-1], text, **changes)


class Made:
    def __init__(self, directory: Path, *, is_acting: bool = True) -> None:
        self.audit, self.ender = FakeAudit(), FakeEnder()
        self.records = Records(self.audit)
        self.daemon = SettingsDaemon(directory, CONFIG)
        lowered = Lowered(self.daemon, LockedFile(directory / "guard", LOWERED_FILE), self.records)
        slowing = Slowing(self.daemon, lowered, self.records)
        self.hands = Hands(
            self.records, slowing, self.ender, is_acting=is_acting, is_forced=lambda one: one.limit == "hours"
        )
        self.t_s = T_S

    def round(self, *breaches: Breach, mode: str = "enforce") -> None:
        self.t_s += 10
        self.hands.carry_out(breaches, moment(self.t_s), mode)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_a_warning_is_told_once_where_people_look(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    made.round(breach())
    made.round(breach(is_news=False))
    assert made.audit.did == ["warned"]
    (entry,) = made.audit.entries
    assert (entry["subject"], entry["uid"], entry["text"], entry["is_dry"]) == (
        "user alice",
        1001,
        breach().text,
        False,
    )
    assert dict(made.records.counts) == {("people", "warn", "done"): 1}
    assert caplog.records[0].getMessage().startswith("guard=warn outcome=done limit=people")
    assert [deed.t_s for deed in made.records.deeds] == [T_S + 10]


def test_a_warning_is_told_where_the_audit_cannot_be_written(made: Made) -> None:
    made.audit.is_full = True
    made.round(breach())
    assert made.records.counts["people", "warn", "done"] == 1
    assert made.records.troubles == ("the audit log cannot be written (make room on its disk)",)
    made.audit.is_full = False
    made.round(breach())
    assert made.records.troubles == ()


def test_names_cannot_forge_a_line_of_the_log(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    made.round(breach(text="user \x1b[2J\nlevel=info from=x has 3"))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "\n" not in line and "\x1b" not in line


def test_ends_are_carried_out_one_after_the_other_and_only_if_still_asked_for(made: Made) -> None:
    made.round(END, OTHER_END)
    assert [one.breach.limit for one in made.ender.orders] == ["people"]
    made.round(breach(Act.END, is_news=False), breach(Act.END, is_news=False, limit="hours", what=What.HOURS))
    assert len(made.ender.orders) == 1, "it is at it"
    made.ender.finish(pids=(100,))
    made.round(breach(Act.END, is_news=False))
    assert len(made.ender.orders) == 1, "the other is under its limit by now"
    assert [(deed.outcome, deed.pids) for deed in made.records.deeds] == [("1 of 1 ended", (100,))]
    made.round(OTHER_END)
    assert (made.ender.orders[-1].is_forced, made.ender.orders[-1].is_dry) == (True, False)


def test_an_end_is_begun_once_for_each_time_that_it_is_news(made: Made) -> None:
    made.round(END)
    made.ender.finish()
    for _ in range(3):
        made.round(breach(Act.END, is_news=False))
    assert len(made.ender.orders) == 1
    made.round(END)
    assert len(made.ender.orders) == 2
    assert not made.ender.orders[0].is_forced


def test_what_was_refused_is_tried_again_while_it_is_asked_for_and_said_once(made: Made) -> None:
    made.round(END)
    for _ in range(3):
        made.ender.finish("the audit log cannot be written", is_refused=True)
        made.round(breach(Act.END, is_news=False))
    assert len(made.ender.orders) == 4
    assert made.records.counts == {("people", "end", "refused"): 1}
    assert made.records.troubles == ("nobody is ended: the audit log cannot be written",)
    made.ender.finish()
    made.round(breach(Act.END, is_news=False))
    assert made.records.troubles == ()
    assert made.records.counts["people", "end", "done"] == 1


def test_an_end_that_waited_is_no_more_than_is_needed_by_then(made: Made) -> None:
    less = breach(Act.HOLD, is_news=False, used=25.0 * GIB)
    others = breach(Act.HOLD, is_news=False, processes=(process(101),))
    for later in (less, others):
        made.round(END)
        made.ender.finish("the audit log cannot be written", is_refused=True)
        made.round(later)
        made.round(breach(Act.HOLD, is_news=False))
    assert len(made.ender.orders) == 2
    made.round(END)
    made.ender.finish("the audit log cannot be written", is_refused=True)
    made.round(breach(Act.HOLD, is_news=False, used=31.0 * GIB, processes=(process(101), process())))
    assert [one.breach for one in made.ender.orders[3:]] == [END]


def test_a_refusal_is_forgotten_with_its_limit(made: Made) -> None:
    made.round(END)
    made.ender.finish("the audit log cannot be written", is_refused=True)
    made.round(END)
    made.round()
    made.ender.finish("the audit log cannot be written", is_refused=True)
    made.round()
    made.round()
    assert made.records.troubles == () and len(made.ender.orders) == 2


@pytest.mark.parametrize(("is_acting", "mode"), [(False, "enforce"), (True, "dry_run")])
def test_a_dry_run_writes_down_what_it_would_do(tmp_path: Path, is_acting: bool, mode: str) -> None:
    made = Made(tmp_path, is_acting=is_acting)
    hold = breach(Act.HOLD, limit="hours", what=What.HOURS)
    made.round(breach(limit="soft"), hold, END, mode=mode)
    assert made.ender.orders[0].is_dry
    made.ender.finish("would end 100 (python)", pids=(100,), plan={"targets": [1], "left": []})
    made.round(mode=mode)
    assert made.audit.did == ["warned", "warned", "would hold", "would end"]
    assert [entry["is_dry"] for entry in made.audit.entries] == [False, False, True, True]
    assert made.audit.entries[-1]["targets"] == [1]
    assert [(deed.act, deed.is_dry) for deed in made.records.deeds] == [
        (Act.WARN, False),
        (Act.WARN, False),
        (Act.HOLD, True),
        (Act.END, True),
    ]
    assert not made.daemon.settings.overrides.tenants


@pytest.mark.parametrize("is_refused", [False, True])
def test_an_end_that_a_dry_run_waited_for_is_not_done_when_it_acts(made: Made, is_refused: bool) -> None:
    made.round(END, *(() if is_refused else (OTHER_END,)), mode="dry_run")
    made.ender.finish("nobody can be looked at", is_refused=is_refused)
    made.round(breach(is_news=False), breach(is_news=False, limit="hours", what=What.HOURS))
    assert [order.is_dry for order in made.ender.orders] == [True]


def test_an_end_without_processes_ends_nobody(made: Made) -> None:
    made.round(breach(Act.END, processes=()))
    assert made.ender.orders == []
