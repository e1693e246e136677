# SPDX-License-Identifier: Apache-2.0
"""Tenants are slowed down for their own limits alone, and what is lowered is given back, whoever lives to see it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fairsched.companion.guard import LOWERED_FILE
from fairsched.companion.guard.lowered import Lowered
from fairsched.companion.guard.records import Records
from fairsched.companion.guard.slowing import Slowing
from fairsched.companion.locked import LockedFile
from fairsched.errors import ControlError
from fairsched.guard.breach import Act, What
from fairsched.reclaim.audit import AuditRefused
from tests.unit.companion.daemon import SettingsDaemon
from tests.unit.companion.guard.made import ALICE, GIB, T_S, breach
from tests.unit.config.kept import set_tenant, unset_tenant

CONFIG = """
state_dir: {state}
mode: enforce
tenants:
  chat: {{}}
  mail: {{min: 30%}}
  night: {{quota: 4%}}
  boss: {{exempt: true}}
  harsh: {{on_vram_limit: terminate}}
  team: {{children: {{web: {{}}, "cron-*": {{}}}}}}
"""
HOLD = breach(Act.HOLD)


@dataclass
class FakeAudit:
    """Keeps what is written."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    is_full: bool = False

    def write(self, event: str, entry: Mapping[str, Any], summary: str) -> None:
        if self.is_full:
            raise AuditRefused("the audit log cannot be written", remedy="make room on its disk")
        assert event == "guard" and summary
        self.entries.append(dict(entry))

    @property
    def did(self) -> list[str]:
        return [str(entry["did"]) for entry in self.entries]


class Hold:
    """A guard that slows tenants down; :meth:`killed` is the next one after a kill -9."""

    def __init__(self, daemon: SettingsDaemon, directory: Path, tenant_vram: Mapping[str, int]) -> None:
        self.daemon, self.directory, self.tenant_vram = daemon, directory, tenant_vram
        self.audit = FakeAudit()
        self.records = Records(self.audit)
        self.lowered = Lowered(daemon, LockedFile(directory, LOWERED_FILE), self.records)
        self.slowing = Slowing(daemon, self.lowered, self.records, 0.05, tenant_vram)

    def killed(self) -> Hold:
        after = Hold(self.daemon, self.directory, self.tenant_vram)
        after.lowered.load()
        return after

    def step(self, *breaches: Any, mode: str = "enforce") -> None:
        self.slowing.step(breaches, mode, T_S)

    def quota(self, tenant: str = "chat") -> Any:
        return self.daemon.value(tenant, "quota")

    @property
    def record(self) -> Path:
        return self.directory / LOWERED_FILE


MakeHold = Callable[..., Hold]


@pytest.fixture
def make(tmp_path: Path) -> MakeHold:
    def hold(**tenant_vram: int) -> Hold:
        return Hold(SettingsDaemon(tmp_path, CONFIG), tmp_path / "state" / "guard", tenant_vram)

    return hold


def test_it_is_slow_while_the_limit_asks_for_it_and_no_longer(make: MakeHold) -> None:
    one = make()
    one.step(HOLD)
    assert (one.quota(), one.slowing.held) == (0.05, ("chat",))
    assert one.record.exists()
    one.step(HOLD)
    assert one.audit.did == ["lower"], "once"
    one.step(breach(Act.END, tenants=()))
    assert one.quota() == 0.05, "while its processes are ended it goes on"
    one.step(breach(Act.WARN))
    assert (one.quota(), one.slowing.held) == (None, ()), "its count has lapsed"
    assert not one.record.exists() and not one.daemon.settings.overrides.tenants
    assert one.audit.did == ["lower", "gave back"]


def test_an_end_alone_slows_nobody_down(make: MakeHold) -> None:
    one = make()
    one.step(breach(Act.END))
    assert one.quota() is None


def test_who_shares_the_tenant_with_a_newcomer_is_let_go_at_once(make: MakeHold) -> None:
    one = make()
    one.step(HOLD)
    one.step(breach(Act.HOLD, tenants=(), is_news=False))
    assert one.quota() is None
    one.step(breach(Act.HOLD, tenants=()))
    assert "nobody is slowed down" in one.records.deeds[-1].outcome


def test_two_limits_hold_until_both_are_over(make: MakeHold) -> None:
    one = make()
    other = breach(Act.HOLD, limit="hours", what=What.HOURS)
    one.step(HOLD, other)
    one.step(breach(Act.END), other)
    one.step(breach(Act.END))
    assert one.quota() == 0.05
    one.step()
    assert one.quota() is None


@pytest.mark.parametrize(
    ("tenant", "quota", "said"),
    [
        ("mail", 0.3, None),
        ("night", 0.04, "already"),
        ("boss", None, "exempt"),
        ("team/web", None, None),
        ("team/cron-1", None, "of that very name"),
        ("gone", None, "of that very name"),
    ],
)
def test_a_guarantee_is_kept_and_what_cannot_be_lowered_is_said(
    make: MakeHold, tenant: str, quota: float | None, said: str | None
) -> None:
    one = make()
    one.step(breach(Act.HOLD, tenants=(tenant,)))
    if "/" not in tenant and tenant != "gone":
        assert one.quota(tenant) == quota
    assert [said in text for text in one.records.troubles if said] == ([True] if said else [])
    assert one.slowing.held == (() if said else (tenant,))


def test_a_daemon_that_does_not_enforce_slows_nobody_down(make: MakeHold) -> None:
    one = make()
    one.step(HOLD, mode="observe")
    one.step(HOLD, mode="observe")
    assert one.quota() is None
    assert [deed.outcome for deed in one.records.deeds] == [
        "chat is not slowed down: mode is observe, and quotas are not enforced"
    ], "once"
    one.step()
    assert one.records.troubles == ()


def test_what_a_person_set_meanwhile_stays_and_is_not_lowered_again(make: MakeHold) -> None:
    one = make()
    one.step(HOLD)
    set_tenant(one.daemon.settings, "chat", {"quota": 0.5})
    for _ in range(3):
        one.step(HOLD)
    assert one.quota() == 0.5
    assert one.audit.did.count("ceded") == 1 and not one.record.exists()
    one.step()
    assert one.quota() == 0.5
    one.step(HOLD)
    assert one.quota() == 0.05, "another time it counts as any other setting"
    one.step()
    assert one.quota() == 0.5, "and is given back"


def test_a_quota_that_a_person_unset_meanwhile_is_not_lowered_again(make: MakeHold) -> None:
    one = make()
    one.step(HOLD)
    unset_tenant(one.daemon.settings, "chat", ["quota"])
    one.step(HOLD)
    one.step(HOLD)
    assert one.quota() is None


def test_after_a_kill_the_next_one_gives_back_what_was_lowered(make: MakeHold) -> None:
    one = make(mail=8 * GIB)
    set_tenant(one.daemon.settings, "chat", {"quota": 0.5})
    one.step(HOLD)
    assert (one.quota(), one.daemon.value("mail", "vram_limit")) == (0.05, 8 * GIB)
    after = one.killed()
    after.lowered.let_go("its companion has ended")
    assert (one.quota(), one.daemon.value("mail", "vram_limit")) == (0.5, None)
    assert not one.record.exists()


def test_a_kill_between_the_record_and_the_deed_takes_nothing_from_a_person(make: MakeHold) -> None:
    one = make()
    one.step(HOLD)
    unset_tenant(one.daemon.settings, "chat", ["quota"])
    set_tenant(one.daemon.settings, "chat", {"quota": 0.7})
    after = one.killed()
    after.lowered.let_go("its companion has ended")
    assert one.quota() == 0.7 and not one.record.exists()
    assert after.audit.did == ["left alone"]


@pytest.mark.parametrize("before", [None, 0.5])
@pytest.mark.parametrize("is_next", [False, True])
def test_a_tenant_that_a_reload_took_away_is_not_slow_when_it_is_back(
    make: MakeHold, is_next: bool, before: float | None
) -> None:
    one = make()
    if before is not None:
        set_tenant(one.daemon.settings, "chat", {"quota": before})
    one.step(HOLD)
    path = one.daemon.settings.path
    assert path is not None
    text = path.read_text()
    path.write_text(text.replace("  chat: {}\n", ""))
    one.daemon.settings.reload()
    if is_next:
        one = one.killed()
        one.lowered.let_go("its companion has ended")
    else:
        one.step()
    assert one.records.troubles == () and not one.record.exists()
    assert one.audit.did[-1] == "gave back"
    path.write_text(text)
    one.daemon.settings.reload()
    assert one.quota() == before


def test_a_record_that_cannot_be_understood_is_set_aside_and_said(make: MakeHold) -> None:
    one = make()
    one.directory.mkdir(parents=True)
    one.record.write_text("{")
    after = one.killed()
    assert after.lowered.changes == {} and "fairsched tenant list" in after.records.troubles[0]
    assert one.record.with_suffix(".json.damaged").exists()


def test_without_room_for_the_audit_nobody_is_slowed_down_and_giving_back_goes_on(make: MakeHold) -> None:
    one = make()
    one.audit.is_full = True
    one.step(HOLD)
    assert one.quota() is None
    assert any("make room" in text for text in one.records.troubles)
    one.audit.is_full = False
    one.step(HOLD)
    assert one.quota() == 0.05, "as soon as there is room"
    one.audit.is_full = True
    one.step()
    assert one.quota() is None


def test_without_room_for_the_record_nobody_is_slowed_down(
    make: MakeHold, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make()

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(LockedFile, "write", full)
    one.step(HOLD)
    assert one.quota() is None and one.slowing.held == ()
    assert any("cannot be written (No space left on device)" in text for text in one.records.troubles)


def test_a_daemon_that_does_not_answer_is_asked_again(make: MakeHold) -> None:
    one = make()
    one.step(HOLD)
    one.daemon.error = ControlError("it did not answer", remedy="look at its log")
    one.step()
    one.lowered.let_go("its companion ends")
    assert one.slowing.held == ("chat",) and "is not given back yet" in " ".join(one.records.troubles)
    one.daemon.error = None
    one.step()
    assert one.quota() is None and one.records.troubles == ()


def test_an_answer_that_was_lost_is_no_persons_doing(make: MakeHold, monkeypatch: pytest.MonkeyPatch) -> None:
    one = make()
    request = one.daemon.request

    def lost(name: str, **args: Any) -> Any:
        if name == "tenant_set":
            raise ControlError("it did not answer", remedy="look at its log")
        return request(name, **args)

    monkeypatch.setattr(one.daemon, "request", lost)
    one.step(HOLD)
    assert one.quota() is None and one.record.exists(), "it may have been done all the same"
    monkeypatch.setattr(one.daemon, "request", request)
    one.step(HOLD)
    assert one.quota() == 0.05 and "ceded" not in one.audit.did


def test_what_the_daemon_refuses_each_round_is_written_down_once(
    make: MakeHold, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make()
    request, asked = one.daemon.request, list[str]()

    def full(name: str, **args: Any) -> Any:
        asked.append(name)
        if name == "tenant_set":
            raise ControlError("overrides.yaml: cannot be written", remedy="make room on its disk")
        return request(name, **args)

    monkeypatch.setattr(one.daemon, "request", full)
    for _ in range(5):
        one.step(HOLD)
        assert one.slowing.held == () and "chat is not slowed down" in one.records.troubles[0]
    assert (one.audit.did, asked.count("tenant_set")) == (["lower", "refused"], 5)
    monkeypatch.setattr(one.daemon, "request", request)
    one.step(HOLD)
    assert (one.quota(), one.audit.did) == (0.05, ["lower", "refused"])
    one.step()
    one.step(HOLD)
    assert one.audit.did[2:] == ["gave back", "lower"]


def test_a_dry_run_changes_nothing_and_gives_back(make: MakeHold) -> None:
    one = make(chat=GIB)
    one.step(HOLD)
    one.slowing.pretend([HOLD], T_S)
    assert (one.quota(), one.daemon.value("chat", "vram_limit")) == (None, None)
    deed = one.records.deeds[-1]
    assert (deed.is_dry, deed.tenants, deed.subject) == (True, ("chat",), ALICE)
    assert one.audit.did[-1] == "would hold"


def test_the_kernel_refuses_beyond_the_smaller_of_two_limits(make: MakeHold) -> None:
    one = make(chat=8 * GIB, mail=8 * GIB, harsh=8 * GIB, gone=GIB)
    set_tenant(one.daemon.settings, "chat", {"vram_limit": 4 * GIB})
    set_tenant(one.daemon.settings, "mail", {"vram_limit": 16 * GIB})
    one.step()
    assert [one.daemon.value(name, "vram_limit") for name in ("chat", "mail", "harsh")] == [
        4 * GIB,
        8 * GIB,
        None,
    ]
    said = " ".join(one.records.troubles)
    assert "on_vram_limit is terminate" in said and "no tenant gone" in said
    one.step()
    assert one.audit.did == ["lower"]
    one.lowered.let_go("its companion ends")
    assert one.daemon.value("mail", "vram_limit") == 16 * GIB
