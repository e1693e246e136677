# SPDX-License-Identifier: Apache-2.0
"""The step quota on the daemon's own settings: what is raised, how far, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairsched.companion.escalate.model import Kind, Outcome, Result
from fairsched.companion.escalate.quota import QuotaStep
from fairsched.companion.escalate.steps import carry_out
from fairsched.errors import ControlError
from fairsched.protocol.status import StatusReport
from tests.unit.companion.daemon import SettingsDaemon
from tests.unit.companion.escalate.reports import batch, given_up_after, order, report, tenant

CONFIG = """
state_dir: {state}
mode: enforce
tenants:
  chat: {{weight: 1}}
  mail: {{weight: 1, min: 30%}}
  night: {{class: batch, quota: 40%}}
  team:
    children: {{web: {{weight: 3}}, cron: {{quota: 20%}}}}
"""


@pytest.fixture
def daemon(tmp_path: Path) -> SettingsDaemon:
    return SettingsDaemon(tmp_path, CONFIG)


def take(
    daemon: SettingsDaemon,
    seen: StatusReport | None,
    *,
    check: Callable[[], None] = lambda: None,
    **more: Any,
) -> Result:
    """The tenant chat suffers, unless `more` says otherwise."""
    step = QuotaStep(daemon, 0.02, 0.10)
    return carry_out(step, order("quota", **more), seen, lambda undo: None, check)


def seen() -> StatusReport:
    return report([tenant("chat"), tenant("mail"), batch("night")])


def test_a_tenant_is_guaranteed_what_it_is_owed_and_two_points_more(daemon: SettingsDaemon) -> None:
    result = take(daemon, seen())
    assert (result.outcome, result.detail) == (
        Outcome.DONE,
        "raised min of chat from 0.00% to 25.33% of a GPU",
    )
    assert daemon.value("chat", "min") == 0.2533


EQUALS = "state_dir: {state}\nmode: enforce\ntenants: {{a: {{}}, b: {{}}, c: {{}}, chat: {{}}}}\n"


def test_a_guarantee_is_never_counted_from_what_the_absence_of_others_leaves(tmp_path: Path) -> None:
    """Of four equal tenants two are idle at first, and one later: 52 % would stay when all are back."""
    daemon = SettingsDaemon(tmp_path, EQUALS)
    first = take(daemon, report([tenant("chat", entitled=0.5), tenant("a", entitled=0.5)]))
    assert daemon.value("chat", "min") == 0.27 and first.undo is not None
    take(daemon, report([tenant("chat", entitled=1 / 3)]), earlier=(first.undo,))
    assert daemon.value("chat", "min") == 0.29


@pytest.mark.parametrize(("weight", "least"), [(1.0, 0.35), (0.5, 0.34), (0.1, 0.27)])
def test_all_raises_together_keep_to_max_raise_whatever_changes_meanwhile(
    tmp_path: Path, weight: float, least: float
) -> None:
    daemon = SettingsDaemon(tmp_path, EQUALS)
    undos: list[Any] = []
    for _ in range(9):
        done = take(daemon, seen(), earlier=tuple(undos))
        if done.outcome is not Outcome.DONE:
            break
        undos.append(done.undo)
        daemon.request("tenant_set", tenant="a", values={"weight": weight})  # chat is owed more from here on
    assert least <= daemon.value("chat", "min") <= 0.35 and done.outcome is Outcome.SKIPPED
    assert "cannot be more than 35.00% (max_raise)" in done.detail
    for undo in reversed(undos):
        take(daemon, None, kind=Kind.ROLLBACK, undo=undo)
    assert daemon.value("chat", "min") is None


def test_a_quota_is_raised_by_max_raise_at_most(daemon: SettingsDaemon) -> None:
    undos: list[Any] = []
    for quota in (0.42, 0.44, 0.46, 0.48, 0.5, 0.5):
        full = report([batch("night", used=daemon.value("night", "quota"))])
        done = take(daemon, full, tenant="night", earlier=tuple(undos))
        undos += [done.undo] if done.undo else []
        assert daemon.value("night", "quota") == quota
    assert done.outcome is Outcome.SKIPPED and "50.00% (max_raise)" in done.detail


def test_raises_come_off_one_by_one_until_the_file_has_its_say_again(daemon: SettingsDaemon) -> None:
    first = take(daemon, seen())
    second = take(daemon, seen())
    assert daemon.value("chat", "min") == 0.2733
    back = take(daemon, None, kind=Kind.ROLLBACK, undo=second.undo)
    assert back.outcome is Outcome.ROLLED_BACK and daemon.value("chat", "min") == 0.2533
    take(daemon, None, kind=Kind.ROLLBACK, undo=first.undo)
    assert daemon.settings.overrides.tenants == {}
    assert daemon.value("chat", "min") is None


def test_what_an_operator_had_set_is_put_back(daemon: SettingsDaemon) -> None:
    daemon.request("tenant_set", tenant="chat", values={"min": 0.1})
    done = take(daemon, seen())
    take(daemon, None, kind=Kind.ROLLBACK, undo=done.undo)
    assert daemon.value("chat", "min") == 0.1


@pytest.mark.parametrize("before", [None, 0.1])
def test_a_raise_comes_off_a_tenant_that_a_reload_took_away(
    daemon: SettingsDaemon, before: float | None
) -> None:
    if before is not None:
        daemon.request("tenant_set", tenant="chat", values={"min": before})
    done = take(daemon, seen())
    path = daemon.settings.path
    assert path is not None
    text = path.read_text()
    path.write_text(text.replace("  chat:", "  other:"))
    daemon.settings.reload()
    back = take(daemon, None, kind=Kind.ROLLBACK, undo=done.undo)
    assert back.outcome is Outcome.ROLLED_BACK
    again = take(daemon, None, kind=Kind.ROLLBACK, undo=done.undo)
    assert ("left alone" if before else "is gone") in again.detail
    path.write_text(text)
    daemon.settings.reload()
    assert daemon.value("chat", "min") == before


@pytest.mark.parametrize("change", [{"min": 0.5}, None])
def test_what_somebody_has_changed_meanwhile_is_left_alone(daemon: SettingsDaemon, change: Any) -> None:
    done = take(daemon, seen())
    if change:
        daemon.request("tenant_set", tenant="chat", values=change)
    else:
        daemon.request("tenant_unset", tenant="chat", keys=["min"])
    before = daemon.settings.overrides
    back = take(daemon, None, kind=Kind.ROLLBACK, undo=done.undo)
    assert back.outcome is Outcome.ROLLED_BACK and "left alone" in back.detail
    assert daemon.settings.overrides == before


def test_a_tenant_at_its_quota_gets_a_higher_quota(daemon: SettingsDaemon) -> None:
    seen_ = report([batch("night", used=0.39)])
    result = take(daemon, seen_, tenant="night")
    assert result.detail == "raised quota of night from 40.00% to 42.00% of a GPU"
    assert daemon.value("night", "quota") == 0.42 and daemon.value("night", "min") is None


def test_a_tenant_far_below_its_quota_gets_a_guarantee_instead(daemon: SettingsDaemon) -> None:
    take(daemon, report([batch("night", entitled=0.2, used=0.1)]), tenant="night")
    assert (daemon.value("night", "quota"), daemon.value("night", "min")) == (0.4, 0.2533)


def test_for_a_child_the_tenant_it_belongs_to_is_raised(daemon: SettingsDaemon) -> None:
    children = [tenant("team/web", entitled=0.3), tenant("team/cron", entitled=0.1, used=0.05)]
    result = take(daemon, report(children), tenant="team/web")
    assert result.detail == "raised min of team from 0.00% to 25.33% of a GPU"


def test_a_child_at_its_own_quota_gets_a_higher_one(daemon: SettingsDaemon) -> None:
    result = take(daemon, report([tenant("team/cron", used=0.2)]), tenant="team/cron")
    assert result.detail == "raised quota of team/cron from 20.00% to 22.00% of a GPU"


def test_guarantees_never_add_up_to_more_than_there_is(tmp_path: Path) -> None:
    tenants = "tenants: {{chat: {{weight: 69}}, mail: {{weight: 31, min: 30%}}}}"
    daemon = SettingsDaemon(tmp_path, f"state_dir: {{state}}\nmode: enforce\n{tenants}\n")
    result = take(daemon, seen())
    assert result.outcome is Outcome.DONE and daemon.value("chat", "min") == 0.7, "mail has 30 %"
    result = take(daemon, seen())
    assert result.outcome is Outcome.SKIPPED and "cannot be more than 70.00%" in result.detail


def test_a_guarantee_never_exceeds_the_quota(daemon: SettingsDaemon) -> None:
    daemon.request("tenant_set", tenant="night", values={"weight": 9})
    result = take(daemon, report([batch("night", entitled=0.4, used=0.2)]), tenant="night")
    assert result.outcome is Outcome.SKIPPED and "cannot be more than 40.00%" in result.detail


@pytest.mark.parametrize(
    ("changes", "about", "says"),
    [
        ({"mode": "observe"}, {}, "not enforced"),
        ({}, {"tenant": None}, "not known which tenant"),
        ({}, {"tenant": "gone"}, "is gone"),
    ],
)
def test_what_would_have_no_effect_is_not_done(
    daemon: SettingsDaemon, changes: dict[str, Any], about: dict[str, Any], says: str
) -> None:
    result = take(daemon, report([tenant("chat")], **changes), **about)
    assert result.outcome is Outcome.SKIPPED and says in result.detail
    assert daemon.settings.overrides.tenants == {}


def test_a_dry_run_changes_nothing(daemon: SettingsDaemon) -> None:
    result = take(daemon, seen(), is_dry_run=True)
    assert result.outcome is Outcome.DRY_RUN
    assert result.detail == "would raise min of chat from 0.00% to 25.33% of a GPU"
    assert daemon.settings.overrides.tenants == {}


def test_a_daemon_that_refuses_is_a_failure_with_its_words(daemon: SettingsDaemon) -> None:
    daemon.error = ControlError("busy", remedy="wait")
    assert take(daemon, seen()).outcome is Outcome.FAILED
    daemon.error = None
    done = take(daemon, seen())
    daemon.error = ControlError("busy", remedy="wait")
    back = take(daemon, None, kind=Kind.ROLLBACK, undo=done.undo)
    assert back.outcome is Outcome.FAILED and "busy" in back.detail


def test_who_was_given_up_raises_nothing_and_takes_nothing_back(daemon: SettingsDaemon) -> None:
    assert take(daemon, seen(), check=given_up_after(0)).outcome is Outcome.FAILED
    assert daemon.settings.overrides.tenants == {}
    done = take(daemon, seen())
    take(daemon, None, kind=Kind.ROLLBACK, undo=done.undo, check=given_up_after(0))
    assert daemon.value("chat", "min") == 0.2533
