# SPDX-License-Identifier: Apache-2.0
"""``fairsched guard show`` and ``test``: screens of 80 columns and JSON, from a status, tapes and one look."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fairsched.cli import cli, guard
from fairsched.companion.guard import STATE_FILE, STATUS_FILE
from fairsched.errors import FairschedError, HostUnsupported
from fairsched.guard.breach import Act, Per, Subject, What
from fairsched.guard.forecast import Rehearsal, play_on
from fairsched.guard.hours import parse_hours
from fairsched.guard.judge import Judge
from fairsched.guard.report import Deed, GuardStatus, SubjectUse, from_plain, to_plain
from fairsched.guard.rules import Bound
from fairsched.guard.sample import Round, Sample
from fairsched.guard.tape import Recorder
from fairsched.guard.words import limit_texts
from tests.unit.guard.made import T0, at, judge_of, process, vram

EVIL = "a\x1b[2J\nb" + "c" * 100
CONFIG = """
state_dir: {0}
run_dir: {0}
guard:
  zone: Europe/Berlin
  limits:
    everybody: {{vram: 10GiB, gpu_seconds_per_day: 20h, soft: hold, hard: end, warnings: 2, grace: 1m, every: 1m}}
    nights: {{per: tenant, of: [nope], hours: ["22:00-06:00"]}}
"""
GIB = 1 << 30


def run(directory: Path, *arguments: object) -> Result:
    path = directory / "c.yaml"
    if not path.exists():
        path.write_text(CONFIG.format(directory), encoding="utf-8")
    config = () if "-c" in arguments else ("-c", path)
    done = CliRunner().invoke(cli, ["guard", *(str(one) for one in (*arguments, *config))])
    if "--json" not in arguments and done.exit_code == 0:
        assert all(len(line) <= 80 for line in done.output.splitlines()), done.output
    assert "\x1b" not in done.output
    return done


def tape(path: Path, moments: Sequence[Round]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        recorder = Recorder(file)
        for one in moments:
            recorder.write(one)
    return path


def busy(seconds: Sequence[float]) -> list[Round]:
    hog, other = process(4711, command="/x/train.py --all", tenant="chat"), process(1, "bob")
    return [at(t_s, Sample(hog, "GPU-a", 15 * GIB), Sample(other, "GPU-a", GIB)) for t_s in seconds]


def looks(monkeypatch: pytest.MonkeyPatch, moment: Round | FairschedError) -> None:
    def look(place: Any) -> Round:
        if isinstance(moment, FairschedError):
            raise moment
        return moment

    monkeypatch.setattr(guard, "_look", look)


def test_a_tape_shows_what_would_have_been_done_when_and_to_whom(tmp_path: Path) -> None:
    path = tape(tmp_path / "a.tape", busy(range(0, 600, 10)))
    shown = run(tmp_path, "test", "--replay", path).output
    flat = " ".join(shown.split())
    assert "60 rounds with 2 processes, 2025-11-24 17:00:00 to 2025-11-24 17:09:50 (Europe/Berlin)" in flat
    assert "2 warnings (2 of them with a hold), 1 batch of processes ended" in flat
    assert "there is no tenant nope" in flat
    assert (
        "17:00:00 warning 1: user alice: 15.0 GiB of GPU memory are held, and 10.0 GiB allowed by everybody"
        in flat
    )
    assert "holds chat" in shown
    assert "17:02:00 end: user alice" in flat
    assert "    pid 4711 of alice, train.py --all" in shown.splitlines()
    assert "bob" not in shown
    assert "nobody is over a limit or near it" in shown  # who was ended is gone


def test_as_json_and_only_until_a_moment(tmp_path: Path) -> None:
    path = tape(tmp_path / "guard" / "a.tape", busy(range(0, 600, 10)))
    document = json.loads(run(tmp_path, "test", "--json", "--replay").output)
    assert (document["warnings"], document["holds"], document["ends"]) == (2, 2, 1)
    assert [(one["t_s"] - T0, one["act"], one["pids"]) for one in document["news"]] == [
        (0, "hold", [4711]),
        (60, "hold", [4711]),
        (120, "end", [4711]),
    ]
    part = json.loads(run(tmp_path, "test", "--json", "--at", "2025-11-24 17:01", "--replay", path).output)
    assert (part["rounds"], part["ends"]) == (7, 0)


def test_what_is_told_is_cut_where_that_is_said(tmp_path: Path) -> None:
    path = tape(tmp_path / "a.tape", busy(range(0, 600, 10)))
    shown = run(tmp_path, "test", "--most", "1", "--replay", path).output
    assert "and 2 more: --most, or --json" in shown


def test_without_a_tape_the_remedy_is_named(tmp_path: Path) -> None:
    (tmp_path / "guard").mkdir()
    error = run(tmp_path, "test", "--replay").exception
    assert isinstance(error, FairschedError) and "--record" in error.remedy
    assert run(tmp_path, "test", "--at", "tomorrow").exit_code == 2


def test_one_look_is_judged_as_if_it_went_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, busy([0])[0])
    shown = run(tmp_path, "test").output
    flat = " ".join(shown.split())
    assert "2 processes on GPUs at 2025-11-24 17:00:00 (Europe/Berlin). If all stay as they are there" in flat
    assert "17:02:00 end: user alice" in flat
    assert "everybody user alice vram 15.0 GiB 10.0 GiB warn 2 in 60 s" in flat


def test_one_look_goes_on_from_what_was_counted_until_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, "test")  # makes the configuration
    from fairsched.config import load

    judge = Judge(load(tmp_path / "c.yaml").guard.rules())
    for moment in busy((-110, -50)):
        judge.feed(moment)
    (tmp_path / "guard").mkdir()
    (tmp_path / "guard" / STATE_FILE).write_text(json.dumps(judge.state()))
    looks(monkeypatch, busy([0])[0])
    news = json.loads(run(tmp_path, "test", "--json").output)["news"]
    assert [(one["t_s"] - T0, one["act"]) for one in news] == [(10, "end")]
    acting = tmp_path / "acting.yaml"
    acting.write_text(CONFIG.format(tmp_path).replace("guard:\n", "guard:\n  mode: act\n"), encoding="utf-8")
    news = json.loads(run(tmp_path, "test", "--json", "-c", acting).output)["news"]
    assert [one["act"] for one in news] == ["hold", "hold", "end"], (
        "who was told in a dry run is told again first"
    )
    assert [
        one["act"]
        for one in json.loads(run(tmp_path, "test", "--json", "--at", "2025-11-24 17:00").output)["news"]
    ] == [
        "hold",
        "hold",
        "end",
    ]


def test_a_moment_to_come_is_judged_by_its_hours() -> None:
    bound = Bound("day", Per.USER, What.HOURS, hours=parse_hours(["mon 16:00-17:00"], "UTC"), warnings=1)
    found = list(play_on(Rehearsal(judge_of(bound)), at(0, Sample(process(1), "GPU-a")), 86_400))
    assert [one.t_s - T0 for one in found] == [3600]


def test_the_end_of_a_day_that_is_used_up_is_foreseen() -> None:
    """Half of a GPU for a thousand seconds: an hour is used up 6,200 s later, and nobody else is ended for it."""
    bound = Bound(
        "day", Per.USER, What.GPU_SECONDS, 3600.0, warnings=2, every_s=60, grace_s=600, is_hard=True
    )
    mine = Sample(process(1, started_s=T0 - 1000), "GPU-a", gpu_time_s=500.0)
    idle = Sample(process(2, "bob", started_s=T0 - 1000), "GPU-a", gpu_time_s=0.0)
    unknown = Sample(process(3, "eve", started_s=None), "GPU-a", gpu_time_s=500.0)
    judge = judge_of(bound)
    judge.feed(at(-1000, mine._replace(gpu_time_s=0.0)))
    found = list(play_on(Rehearsal(judge), at(0, mine, idle, unknown), 86_400))
    assert [(round((one.t_s - T0) / 60), one.breach.act) for one in found] == [
        (104, Act.WARN),
        (105, Act.WARN),
        (115, Act.END),
    ]
    assert [one.pid for one in found[-1].breach.processes] == [1]


def test_a_day_that_was_used_up_ends_who_works_on_and_not_who_idles() -> None:
    bound = Bound("day", Per.USER, What.GPU_SECONDS, 10.0, warnings=1, grace_s=60, is_hard=True)
    busy_one = Sample(process(1, started_s=T0 - 1000), "GPU-a", gpu_time_s=100.0)
    idle = Sample(process(2, started_s=T0 - 1000), "GPU-a", gpu_time_s=0.0)
    judge = judge_of(bound)
    judge.feed(at(-1000, busy_one._replace(gpu_time_s=0.0), idle))
    found = list(play_on(Rehearsal(judge), at(0, busy_one, idle), 3600))
    assert [one.breach.act for one in found] == [Act.WARN, Act.END]
    assert [one.pid for one in found[-1].breach.processes] == [1]


def test_a_guard_that_would_act_says_that_the_daemon_is_in_a_dry_run(tmp_path: Path) -> None:
    for acts_as, says in (
        ("dry_run", "dry run, as the daemon's mode is"),
        ("act", "acts: it"),
        (None, "acts: it"),
    ):
        found = replace(status(), mode="act", acts_as=acts_as)
        (tmp_path / STATUS_FILE).write_text(json.dumps(to_plain(found)))
        assert f"guard: {says}" in " ".join(run(tmp_path, "show").output.split())
        assert json.loads(run(tmp_path, "show", "--json").output)["acts_as"] == acts_as


def status(**other: Any) -> GuardStatus:
    alice, evil = Subject(Per.USER, "alice", 1000), Subject(Per.TENANT, EVIL)
    now_s = time.time()
    uses = (
        SubjectUse(
            "everybody",
            alice,
            What.VRAM,
            None,
            15.0 * GIB,
            10.0 * GIB,
            True,
            True,
            now_s,
            2,
            Act.END,
            now_s + 65,
        ),
        SubjectUse("t", evil, What.CONTEXTS, "GPU-" + "x" * 40, 9.0, 10.0),
        SubjectUse("day", alice, What.GPU_SECONDS, None, 7200.0, 72_000.0),
    )
    deed = Deed(
        now_s, "everybody", alice, What.VRAM, Act.END, True, "user alice: too much", (4711,), (), "dry run"
    )
    rules = judge_of(vram(amount=10 * GIB, of=frozenset({EVIL}))).rules
    return GuardStatus(
        "dry_run",
        now_s,
        7,
        10.0,
        True,
        limit_texts(rules),
        uses,
        ("chat",),
        (deed,),
        "/x.tape",
        (EVIL,),
        **other,
    )


def test_the_status_of_a_companion_is_shown(tmp_path: Path) -> None:
    (tmp_path / STATUS_FILE).write_text(json.dumps(to_plain(status())))
    shown = run(tmp_path, "show").output
    flat = " ".join(shown.split())
    assert "dry run: it warns, and writes down what it would hold and end; 7 looks, the last 0 s ago" in flat
    assert "1 over a limit, 1 near it:" in shown
    assert "everybody user alice vram ≥ 15.0 GiB 10.0 GiB end in 6" in flat
    assert "user alice day 2 h 20 h 18 h" in flat
    assert "held now: chat" in shown
    assert "would end pid 4711: user alice: too much: dry run" in flat
    again = json.loads(run(tmp_path, "show", "--json").output)
    assert [one.subject.name for one in from_plain(again).uses] == ["alice", EVIL, "alice"]


def test_without_a_companion_one_look_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, busy([0])[0])
    old = to_plain(status()) | {"t_s": time.time() - 3600}
    (tmp_path / STATUS_FILE).write_text(json.dumps(old))
    flat = " ".join(run(tmp_path, "show").output.split())
    assert "nobody looks all the time now, this is one look" in flat
    assert "everybody user alice vram 15.0 GiB 10.0 GiB warn 2 in 60 s" in flat
    looks(monkeypatch, HostUnsupported("no driver", remedy="install it"))
    flat = " ".join(run(tmp_path, "show").output.split())
    assert "! nobody can be looked at: no driver" in flat
    assert (
        "everybody: per user: vram 10.0 GiB; gpu_seconds_per_day 20 h; 2 warnings, 60 s apart, held meanwhile"
        in flat
    )
    assert "nobody is over" not in flat


def test_a_broken_state_is_said_and_nothing_is_taken_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks(monkeypatch, busy([0])[0])
    (tmp_path / "guard").mkdir()
    (tmp_path / "guard" / STATE_FILE).write_text('{"version": 1}')
    shown = run(tmp_path, "test").output
    assert "counted anew here" in " ".join(shown.split())
