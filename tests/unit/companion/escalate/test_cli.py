# SPDX-License-Identifier: Apache-2.0
"""``fairsched escalation``: a screen of 80 columns, JSON, and steps by hand that leave the right traces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click.testing
import pytest

from fairsched.cli import cli
from fairsched.cli.escalation import render_history, render_status
from fairsched.companion.escalate.audit import Audit
from fairsched.companion.escalate.model import State, StepInForce
from fairsched.companion.escalate.store import Store
from fairsched.errors import FairschedError
from tests.unit.companion.escalate.play import LIMITS, START_S, Play
from tests.unit.protocol.fakes import serving


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A configuration whose command writes down what it is told."""
    out = tmp_path / "told"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ncat >{out}\nexit $(cat {tmp_path}/status 2>/dev/null || echo 0)\n")
    program.chmod(0o755)
    section = {"ladder": ["command"], "command": {"run": [str(program)], "undo": True}}
    document = {"state_dir": str(tmp_path / "state"), "run_dir": str(tmp_path), "escalation": section}
    (tmp_path / "config.yaml").write_text(json.dumps(document))
    return tmp_path


def run(place: Path, *words: str, status: int = 0) -> str:
    arguments = ["escalation", *words, "--config", str(place / "config.yaml")]
    done = click.testing.CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == status, done.output
    return done.stdout


def books(place: Path) -> tuple[State, list[dict[str, Any]]]:
    directory = place / "state/escalation"
    return Store(directory).load(), Audit(directory).read()


def test_a_step_by_hand_is_a_dry_run_unless_it_is_asked_for_real(place: Path) -> None:
    assert run(place, "run", "command").startswith("command: dry_run: would run")
    assert not (place / "told").exists() and not (place / "state").exists()


def test_a_step_for_real_is_done_written_down_and_taken_back(place: Path) -> None:
    assert run(place, "run", "command", "--for-real").startswith("command: done: the command did it")
    assert json.loads((place / "told").read_text())["action"] == "apply"
    state, entries = books(place)
    assert [one.step for one in state.in_force] == ["command"] and len(state.actions_s) == 1
    assert [entry["event"] for entry in entries] == ["order", "result"]
    assert entries[0]["by"].startswith("by hand, uid ")
    assert "in force for" in run(place, "status")
    run(place, "rollback", "1")
    assert json.loads((place / "told").read_text())["action"] == "rollback"
    assert books(place)[0].in_force == ()
    assert run(place, "rollback") == "nothing is in force\n"


def test_a_failure_is_the_exit_status(place: Path) -> None:
    (place / "status").write_text("3")
    assert "failed with exit status 3" in run(place, "run", "command", "--for-real", status=1)
    (place / "status").write_text("75")
    assert "skipped" in run(place, "run", "command", "--for-real", status=1)
    assert books(place)[0].in_force == ()


def test_by_hand_a_step_is_told_what_it_has_in_force_as_well(place: Path) -> None:
    run(place, "run", "command", "--for-real")
    for words in ((), ("--for-real",)):
        order = json.loads(run(place, "run", "command", "--json", *words))["order"]
        assert [one["document"]["id"] for one in order["earlier"]] == [1]


def test_json_for_every_command(place: Path) -> None:
    done = json.loads(run(place, "run", "command", "--for-real", "--json"))
    assert done["result"]["outcome"] == "done" and done["order"]["step"] == "command"
    shown = json.loads(run(place, "status", "--json"))
    assert shown["level"] == 1 and shown["is_dry_run"] and shown["state"]["in_force"][0]["step"] == "command"
    assert [entry["event"] for entry in json.loads(run(place, "history", "--json"))] == ["order", "result"]


def test_while_the_companion_acts_nobody_else_does(place: Path) -> None:
    other = Store(place / "state/escalation")
    assert other.lock()
    with pytest.raises(FairschedError, match="carries out an order"):
        run(place, "run", "command", "--for-real")
    with pytest.raises(FairschedError, match="carries out an order"):
        run(place, "rollback")
    other.unlock()
    assert not (place / "told").exists()


def test_an_order_that_is_not_in_force_cannot_be_taken_back(place: Path) -> None:
    with pytest.raises(FairschedError, match="order 9 is not in force"):
        run(place, "rollback", "9")


def test_without_history_that_is_said(place: Path) -> None:
    assert run(place, "history") == "nothing was ordered yet\n"


def test_whom_it_helps_is_the_tenant_that_is_named(place: Path) -> None:
    with serving(place / "fairsched.sock"):
        run(place, "run", "command", "--for-real", "--tenant", "batch")
    told = json.loads((place / "told").read_text())
    assert told["tenant"] == "batch" and told["status"]["daemon_version"] == "0.1.0"


def test_the_screen_has_80_columns_and_says_what_is_going_on() -> None:
    play = Play()
    play.see_for(42.0, 5400)
    play.see_for(42.0, 60)
    long = replace(play.state.in_force[0], detail="x " * 90, is_dry_run=True, failed_rollbacks=2)
    state = replace(play.state, in_force=(long, *play.state.in_force[1:]))
    lines = render_status(True, LIMITS, state, play.wall_s)
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "escalation: acts; ladder: quota, evict, mig" in text
    assert "queue_delay_p99_ms: bad for" in text and "(dry run): order 1, quota" in text
    assert "2 rollbacks failed" in text
    watched = " ".join(render_status(True, LIMITS, replace(State(), mode="observe"), START_S))
    assert "escalation: dry run, since the daemon's mode is observe" in watched
    calm = " ".join(render_status(False, LIMITS, State(), START_S))
    assert "escalation: off" in calm and "no episode" in calm and "nothing is in force" in calm
    ended = replace(State(), rung=3, in_force=(StepInForce(1, "mig", START_S, False),))
    assert any(
        line.startswith("! the end of the ladder") for line in render_status(True, LIMITS, ended, START_S)
    )


def test_history_reads_as_sentences(place: Path) -> None:
    run(place, "run", "command", "--for-real")
    Audit(place / "state/escalation").write("note", START_S, {"text": "begins: x is 42", "by": "companion"})
    lines = render_history(books(place)[1])
    assert max(map(len, lines)) <= 80
    text = "\n".join(line[16:] for line in lines)
    assert "order 1 command: by hand [by hand, uid" in text and "1 command: done: the command did it" in text
    assert "begins: x is 42" in text
