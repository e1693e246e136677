# SPDX-License-Identifier: Apache-2.0
"""The step command with real programs: what they are told, what their exit status means, and how they are ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairsched.companion.escalate.command import CommandStep
from fairsched.companion.escalate.model import Kind, Outcome, Result
from fairsched.companion.escalate.steps import carry_out
from tests.support import wait_until
from tests.unit.companion.escalate.reports import given_up_after, order, report, tenant


def program(directory: Path, text: str) -> str:
    path = directory / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def take(
    run: list[str],
    *,
    limit_s: float = 10.0,
    has_undo: bool = False,
    check: Callable[[], None] = lambda: None,
    **more: Any,
) -> Result:
    step = CommandStep(run, limit_s=limit_s, has_undo=has_undo)
    return carry_out(step, order("command", **more), report([tenant("chat")]), lambda undo: None, check)


def test_it_is_told_by_json_on_standard_input(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = take([program(tmp_path, 'cat >"$1"; echo paged somebody'), str(out)])
    assert (result.outcome, result.detail) == (Outcome.DONE, "the command did it: paged somebody")
    told = json.loads(out.read_text())
    assert told["schema_version"] == 1 and told["action"] == "apply" and told["id"] == 7
    assert told["cause"] == {
        "signal": "queue_delay_p99_ms",
        "value": 42.0,
        "threshold": 20.0,
        "for_s": 180.0,
    }
    assert told["tenant"] == "chat" and told["status"]["tenants"][0]["name"] == "chat"


@pytest.mark.parametrize(
    ("text", "outcome", "says"),
    [
        ("exit 0", Outcome.DONE, "did it"),
        ("echo later; exit 75", Outcome.SKIPPED, "not now (exit status 75): later"),
        ("echo broken >&2; exit 1", Outcome.FAILED, "failed with exit status 1: broken"),
        ("kill -9 $$", Outcome.FAILED, "ended by signal 9"),
    ],
)
def test_what_the_exit_status_means(tmp_path: Path, text: str, outcome: Outcome, says: str) -> None:
    result = take([program(tmp_path, text)])
    assert result.outcome is outcome and says in result.detail and not result.is_in_force


def test_no_shell_takes_the_arguments_apart(tmp_path: Path) -> None:
    result = take([program(tmp_path, 'printf "<%s>" "$@"'), "$HOME; rm -rf x", "*", ""])
    assert result.detail.endswith("<$HOME; rm -rf x><*><>")


def test_it_gets_a_few_variables_and_none_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    result = take(["/usr/bin/env"])
    names = {
        line.partition("=")[0] for line in result.detail.removeprefix("the command did it: ").split("\n")
    }
    assert names == {"PATH", "LANG", "HOME", "FAIRSCHED_ESCALATION"}


def test_who_takes_too_long_is_ended_with_what_he_started(tmp_path: Path) -> None:
    """One child ignores SIGTERM; it is in the session, so it goes as well."""
    child = tmp_path / "child"
    run = program(tmp_path, f'(trap "" TERM; echo $$ >/dev/null; exec sleep 600) & echo $! >{child}; wait')
    began_s = time.monotonic()
    result = take([run], limit_s=0.5)
    assert result.outcome is Outcome.FAILED and result.is_in_force, "what it did before is not known"
    assert "took more than 0.5 s" in result.detail and time.monotonic() - began_s < 6
    pid = int(child.read_text())
    wait_until(lambda: not _runs(pid), 5, "the child has gone")


def _runs(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] not in "ZX"


def test_one_that_neither_reads_nor_stops_talking_does_not_block(tmp_path: Path) -> None:
    result = take([program(tmp_path, "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo the end")])
    assert result.outcome is Outcome.DONE and result.detail.endswith("the end") and len(result.detail) < 2000


@pytest.mark.parametrize("path", ["/nowhere/at-all", "/etc/passwd", "/"])
def test_what_is_no_program_is_said_before_anything_is_done(path: str) -> None:
    result = take([path], is_dry_run=True)
    assert result.outcome is Outcome.FAILED and "escalation.command.run" in result.detail


def test_a_dry_run_does_not_run_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = take([program(tmp_path, f"touch {out}")], is_dry_run=True)
    assert result.outcome is Outcome.DRY_RUN and not out.exists()


def test_it_is_called_again_to_take_it_back_where_that_is_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = [program(tmp_path, 'cat >"$1"'), str(out)]
    done = take(run, has_undo=True)
    out.unlink()
    without = take(run, kind=Kind.ROLLBACK, undo=done.undo)
    assert without.outcome is Outcome.ROLLED_BACK and not out.exists()
    back = take(run, has_undo=True, kind=Kind.ROLLBACK, undo=done.undo, id=8)
    assert back.outcome is Outcome.ROLLED_BACK
    told = json.loads(out.read_text())
    assert (told["action"], told["id"]) == ("rollback", 7), "the id of the order that is taken back"


def test_who_was_given_up_starts_no_program(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = [program(tmp_path, 'cat >"$1"'), str(out)]
    assert take(run, check=given_up_after(0)).outcome is Outcome.FAILED
    undo = {"document": {"id": 7}}
    take(run, has_undo=True, kind=Kind.ROLLBACK, undo=undo, check=given_up_after(0))
    assert not out.exists()
