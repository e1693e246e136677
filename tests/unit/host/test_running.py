# SPDX-License-Identifier: Apache-2.0
"""What doctor learns from a daemon that runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fairsched.config import Config
from fairsched.driver.hooks import GENERATIONS, HookFacts, HookInForce
from fairsched.host.checks import checks
from fairsched.host.gather import gather
from tests.unit.host.test_host import capable_host, config


class Asked:
    """A daemon's answers, by request."""

    answers: ClassVar[dict[str, Any]] = {}

    def __init__(self, path: Path, *, timeout_s: float = 5.0) -> None:
        pass

    def request(self, name: str) -> Any:
        return self.answers[name]


def test_the_doctor_asks_a_running_daemon_which_hook_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairsched.protocol.client.ControlClient", Asked)
    said = {"driver_hook": "lsm", "driver_reason": None, "driver_refused": {"kprobe": "Invalid argument"}}
    Asked.answers = {"ping": {"pid": 7}, "status": said}
    facts = gather(Config(), try_bpf=False)
    assert facts.hook_in_force == HookInForce("lsm", None, {"kprobe": "Invalid argument"})
    every = HookFacts(frozenset(GENERATIONS[0]), True, True, True, has_btf=True, has_tracepoints=True)
    (row,) = [c for c in checks(replace(facts, hooks=every), config()) if c.name == "driver calls"]
    assert "no kprobe: Invalid argument" in row.fact and row.choice.startswith("in force")
    assert facts.daemon_mode is None, "it did not say"
    for other in ({"driver_hook": "lsm"}, {**said, "driver_hook": "fentry"}):
        Asked.answers = {"ping": {"pid": 7}, "status": other}
        assert gather(Config(), try_bpf=False).hook_in_force is None, "a daemon of another version"


@pytest.mark.parametrize(
    ("said", "level", "says"),
    [
        ({}, "ok", ("running, pid 7", "")),
        ({"mode": "enforce", "mode_reason": None}, "ok", ("running, pid 7, mode enforce", "")),
        (
            {"mode": "dry_run", "mode_reason": "--dry-run"},
            "warn",
            ("running, pid 7, mode dry_run", "--dry-run; this file on this host comes to enforce"),
        ),
        (
            {"mode": "observe", "mode_reason": None},
            "warn",
            ("running, pid 7, mode observe", "this file on this host comes to enforce"),
        ),
    ],
)
def test_the_doctor_says_the_mode_that_a_running_daemon_is_in(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, Any], level: str, says: tuple[str, str]
) -> None:
    monkeypatch.setattr("fairsched.protocol.client.ControlClient", Asked)
    Asked.answers = {"ping": {"pid": 7}, "status": said}
    found = gather(Config(), try_bpf=False)
    host = capable_host(
        daemon_pid=7, daemon_mode=found.daemon_mode, daemon_mode_reason=found.daemon_mode_reason
    )
    (row,) = [check for check in checks(host, config()) if check.name == "daemon"]
    assert (row.level, (row.fact, row.choice)) == (level, says)
    mine = replace(host, is_root=False, capabilities=frozenset())
    (row,) = [check for check in checks(mine, config()) if check.name == "daemon"]
    assert (row.level, row.fact) == ("ok", says[0]), "who is not root finds less"
