# SPDX-License-Identifier: Apache-2.0
"""The section escalation: its errors name file, key and remedy; from it come limits and steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fairsched.companion.__main__ import parts_of
from fairsched.companion.escalate.ladder import limits_of, steps_of
from fairsched.companion.escalate.mig import LabelMigStep, NvmlMigStep
from fairsched.companion.escalate.model import QUEUE_DELAY, TOKEN_CV, Order, Outcome, Result, Rung
from fairsched.companion.escalate.steps import carry_out
from fairsched.companion.keeper import wishes
from fairsched.companion.part import Node
from fairsched.config import Config, InvalidConfig, from_bytes, render
from fairsched.errors import ConfigError
from tests.unit.companion.escalate.play import Play, succeed
from tests.unit.companion.escalate.reports import report, tenant

ALL = {
    "enabled": True,
    "ladder": ["quota", "command", "mig", "evict"],
    "command": {"run": ["/bin/true", "a b"]},
    "mig": {"profiles": ["3g.20gb", "3g.20gb"], "gpus": [0]},
    "evict": {"labels": {"example.org/busy": "true"}},
}


def config(section: Any) -> Config:
    return from_bytes(yaml.safe_dump({"escalation": section}).encode(), "f.yaml")


def test_by_default_nothing_is_done_and_enabled_alone_only_writes_down() -> None:
    assert not Config().escalation.enabled
    assert config({"enabled": True}).escalation.dry_run


def test_every_key_survives_being_shown_and_read_again() -> None:
    wanted = config(ALL)
    assert from_bytes(render(wanted).encode(), "again") == wanted


@pytest.mark.parametrize(
    ("section", "key", "says"),
    [
        ({"enabled": True, "ladder": []}, "escalation.ladder", "nothing would ever be done"),
        ({"ladder": ["evict", "evict"]}, "escalation.ladder", "evict is on it twice"),
        ({"ladder": ["reboot"]}, "escalation.ladder[0]", "must be"),
        (
            {"enabled": True, "queue_delay_p99_ms": None, "token_rate_cv": None},
            "escalation.enabled",
            "both thresholds are null",
        ),
        ({"clear_ratio": 1.0}, "escalation.clear_ratio", "between bad and clear"),
        ({"clear_ratio": 0.0}, "escalation.clear_ratio", "nothing clear"),
        ({"token_rate_cv": 0.0}, "escalation.token_rate_cv", "always exceeded"),
        ({"mig": {"profiles": ["big"]}}, "escalation.mig.profiles", "not a MIG profile"),
        (
            {"mig": {"profiles": ["1g.5gb"], "label": "all-1g.5gb"}},
            "escalation.mig.label",
            "profiles are given too",
        ),
        ({"mig": {"gpus": ["MIG-x"]}}, "escalation.mig.gpus", "not a GPU"),
        ({"ladder": ["command"]}, "escalation.command.run", "there is none"),
        ({"command": {"run": "reboot"}}, "escalation.command.run", "no shell"),
        ({"command": {"run": ["reboot"]}}, "escalation.command.run", "not an absolute path"),
        ({"command": {"run": ["/bin/x", 1]}}, "escalation.command.run", "quotes"),
        ({"quota": {"step": "20%"}}, "escalation.quota.step", "max_raise"),
        ({"quota": {"step": 0.0}}, "escalation.quota.step", "0.5 %"),
        ({"evict": {"labels": {"bad label": "x"}}}, "escalation.evict.labels", "name of a label"),
        ({"evict": {"labels": {"a": True}}}, "escalation.evict.labels", "value of a label"),
        ({"kubernetes": {"kubeconfig": "admin.conf"}}, "escalation.kubernetes.kubeconfig", "absolute path"),
        ({"max_actions_per_hour": 0}, "escalation.max_actions_per_hour", "1 or more"),
        ({"queue_delay_p99_ms": 0.0}, "escalation.queue_delay_p99_ms", "more than 0"),
    ],
)
def test_what_is_wrong_is_said_with_file_key_and_remedy(section: Any, key: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says) as caught:
        config(section)
    assert caught.value.key == key and caught.value.file.startswith("f.yaml") and caught.value.remedy


def test_a_misspelt_key_of_a_step_is_told_its_right_name() -> None:
    with pytest.raises(InvalidConfig, match="unknown key") as caught:
        config({"evict": {"lables": {}}})
    assert caught.value.remedy == "did you mean 'labels'?"


def test_limits_follow_the_section() -> None:
    found = limits_of(
        config({**ALL, "token_rate_cv": "7%", "queue_delay_p99_ms": None, "for_s": 60}).escalation
    )
    assert found.thresholds == {TOKEN_CV: 0.07} and found.bad_for_s == 60 and found.is_dry_run
    assert [rung.step for rung in found.ladder] == ALL["ladder"]
    assert found.ladder[0] == Rung("quota", 300.0, 5, 3600.0)
    assert limits_of(Config().escalation).thresholds == {QUEUE_DELAY: 20.0, TOKEN_CV: 0.05}


def test_steps_follow_the_section(tmp_path: Path) -> None:
    steps = steps_of(config(ALL), daemon=None)  # type: ignore[arg-type]
    assert list(steps) == ALL["ladder"]
    assert isinstance(steps["mig"], NvmlMigStep)
    by_label = config({**ALL, "mig": {"label": "all-1g.10gb"}})
    assert isinstance(steps_of(by_label, daemon=None)["mig"], LabelMigStep)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"escalation\.command\.run"):
        steps_of(Config(), daemon=None, only=("command",))  # type: ignore[arg-type]


def test_the_default_ladder_is_mig_pod_quota_and_passes_over_what_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a layout for MIG and without a cluster, a tenant is helped by the third step, at once."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    wanted = config({"enabled": True, "dry_run": False})
    steps = steps_of(wanted, daemon=None)  # type: ignore[arg-type]
    assert list(steps) == ["mig", "evict", "quota"]

    def answer(order: Order) -> Result:
        if order.step == "quota":
            return succeed(order)
        return carry_out(steps[order.step], order, report([tenant("chat")]), lambda undo: None)

    play = Play(limits_of(wanted.escalation), answer)
    play.see_for(40.0, 300, every_s=10.0)
    assert play.orders() == [("apply", "mig"), ("apply", "evict"), ("apply", "quota")]
    mig, evict, _ = (action.result for action in play.actions)
    assert mig.outcome is evict.outcome is Outcome.SKIPPED
    assert "escalation.mig.profiles" in mig.detail
    assert "no service account here" in evict.detail


def test_the_companion_escalates_when_it_is_told_to_and_starts_anew_when_that_changes() -> None:
    assert wishes(Config()) == {}
    one, other = config({"enabled": True}), config({"enabled": True, "for_s": 60})
    assert wishes(one) and wishes(one) != wishes(other)
    node = Node(Path("/nowhere"))
    assert [part.name for part in parts_of(one, node)] == ["slis", "escalation"]
    assert parts_of(Config(), node) == []
