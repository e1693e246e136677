# SPDX-License-Identifier: Apache-2.0
"""``fairsched audit rogue`` on tapes: screens of 80 columns, JSON, the report of a week."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fairsched.cli import rogue
from fairsched.cli.audit import command
from fairsched.errors import FairschedError
from fairsched.guard.sample import Round
from fairsched.guard.tape import Recorder, TapeError, play_files
from tests.unit.guard.honest import HONEST
from tests.unit.guard.rogues import ROGUE
from tests.unit.guard.traces import Maker

MINER = "a miner among trainers"
EVIL = "./xmrig \x1b[2J -o stratum+tcp://pool:3333 " + "x" * 200


def rounds(kind: str, **about: Any) -> list[Round]:
    made = {**HONEST, **ROGUE}[kind](Maker(77, kind)).rounds()
    return [
        replace(
            one,
            samples=tuple(
                sample._replace(process=replace(sample.process, **about)) for sample in one.samples
            ),
        )
        for one in made
    ]


def tape(path: Path, moments: Sequence[Round], last_s: float | None = None) -> Path:
    """``last_s``: when the last round is said to have been."""
    shift = 0.0 if last_s is None else last_s - moments[-1].t_s
    with open(path, "w", encoding="utf-8") as file:
        recorder = Recorder(file)
        for one in moments:
            recorder.write(replace(one, t_s=one.t_s + shift))
    return path


def run(*arguments: object, config: str = "{}") -> Result:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "c.yaml")
        path.write_text(f"reclaim: {config}\n", encoding="utf-8")
        done = CliRunner().invoke(command, ["rogue", "-c", str(path), *map(str, arguments)])
    if "--json" not in arguments:
        assert all(len(line) <= 80 for line in done.output.splitlines()), done.output
    return done


def test_a_tape_is_judged(tmp_path: Path) -> None:
    path = tape(tmp_path / "a", rounds(MINER))
    shown = run("--replay", path).output.splitlines()
    assert shown[0].startswith("looked at 6 processes on 6 GPUs for 24 min")
    assert "1 of them reported (score 0.6 or more)" in " ".join(" ".join(shown[:2]).split())
    assert shown[-2].split() == ["SCORE", "PID", "TENANT", "USER", "RULES", "COMMAND"]
    assert "miner,no_progress" in shown[-1]


def test_the_evidence_is_shown_and_what_a_tenant_wrote_steers_no_terminal(tmp_path: Path) -> None:
    path = tape(
        tmp_path / "a", rounds("a miner by name, at a pool", command=EVIL, user="a\nb", tenant="t" * 90)
    )
    for arguments in ([], ["--explain"]):
        shown = run("--replay", path, *arguments).output
        assert "\x1b" not in shown
        assert "\na" not in shown
    assert "is connected to port 3333, which pools use" in " ".join(shown.split())


def test_those_below_the_score_are_explained_and_not_reported(tmp_path: Path) -> None:
    path = tape(tmp_path / "a", rounds("trainer that never dips"))
    assert "none of them reported" in run("--replay", path).output
    shown = run("--replay", path, "--explain").output
    assert "below that score, and not reported:" in shown
    assert "0.30" in shown
    assert "1 of them reported" in run("--replay", path, "--min-score", "0.3").output


def test_json_and_the_configuration(tmp_path: Path) -> None:
    path = tape(tmp_path / "a", rounds(MINER))
    (one,) = json.loads(run("--replay", path, "--json").output)["reported"]
    assert one["findings"][0]["kind"] == "miner"
    assert one["process"]["start_ticks"]
    for config in (
        "{rules: {miner: {score: 0}}}",
        "{allow: {cgroups: [/gpu.slice/research]}}",
        "{min_score: 99%}",
    ):
        assert json.loads(run("--replay", path, "--json", config=config).output)["reported"] == [], config


def test_a_bad_configuration_accuses_nobody(tmp_path: Path) -> None:
    """Without its allow-list an innocent might be named."""
    done = run("--replay", tape(tmp_path / "a", rounds(MINER)), config="{allow: {names: [python]}}")
    assert isinstance(done.exception, FairschedError)
    assert done.output == ""


def test_several_tapes_go_on_from_each_other(tmp_path: Path) -> None:
    moments = rounds("a miner that calls itself python")
    halves = [moments[: len(moments) // 2], moments[len(moments) // 2 :]]
    paths = [tape(tmp_path / str(n), half) for n, half in enumerate(halves)]
    shown = json.loads(run("--replay", paths[0], "--replay", paths[1], "--json").output)
    assert shown["rounds"] == len(moments)


def test_a_week_by_tenant_user_and_rule(tmp_path: Path) -> None:
    guard = tmp_path / "guard"
    guard.mkdir()
    now = time.time()
    tape(guard / "mon.tape", rounds(MINER), now - 86400)
    tape(guard / "tue.tape", rounds("memory for nothing", user="eve"), now - 60)
    old = tape(guard / "old.tape", rounds("one program of three users"), now - 9 * 86400)
    os.utime(old, (now - 9 * 86400,) * 2)
    tape(guard / "long.tape", rounds("one program of three users"), now - 8 * 86400)
    with open(guard / "tue.tape", "a", encoding="utf-8") as file:
        file.write("{}\n")
    config = f"{{}}\nstate_dir: {tmp_path}"
    shown = run("--weekly", config=config)
    assert "2 of them reported" in shown.output
    assert "left out from there on" in shown.output
    rows = {
        (one["user"], one["rule"]): one for one in json.loads(run("--weekly", "--json", config=config).stdout)
    }
    assert set(rows) == {("ann", "miner"), ("ann", "no_progress"), ("eve", "idle_hoarder")}
    assert rows["ann", "miner"]["processes"] == 1


def test_without_a_tape_it_says_how_to_make_one(tmp_path: Path) -> None:
    done = run("--weekly", config=f"{{}}\nstate_dir: {tmp_path}")
    assert isinstance(done.exception, FairschedError)
    assert "audit rogue --for 1d --every 30s --record" in done.exception.remedy


def test_ways_exclude_each_other(tmp_path: Path) -> None:
    assert run("--weekly", "--replay", tape(tmp_path / "a", [])).exit_code == 2


@pytest.mark.parametrize("every", ["61s", "5m"])
def test_looks_too_far_apart_for_anything_to_last_are_refused(every: str) -> None:
    done = run("--for", "1h", "--every", every)
    assert done.exit_code == 2
    assert "60 s at most" in done.output


class Node:
    """Stands for a collector: rounds that were made before."""

    def __init__(self, moments: list[Round]) -> None:
        self._moments = iter(moments)

    def look(self) -> Round:
        return next(self._moments)


def test_what_is_looked_at_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = rounds(MINER)
    monkeypatch.setattr(rogue, "_collector", lambda _place: Node(moments))
    path = tmp_path / "guard" / "a.tape"
    done = run("--for", "0.02s", "--every", "0.01s", "--record", path)
    assert "note: no_progress, miner, evasion may need up to 5 min" in done.output
    played = list(play_files([path]))
    assert 1 <= len(played) <= 3
    assert played[0].samples == moments[0].samples
    assert path.stat().st_mode & 0o777 == 0o600
    again = run("--for", "0.01s", "--record", path)
    assert isinstance(again.exception, FairschedError), "an older tape is never written over"


def test_an_interrupted_look_shows_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Node):
        def look(self) -> Round:
            try:
                return super().look()
            except StopIteration:
                raise KeyboardInterrupt from None

    monkeypatch.setattr(rogue, "_collector", lambda _place: Interrupted(rounds(MINER)))
    done = run("--for", "1d", "--every", "0.0001s")
    assert "1 of them reported" in " ".join(done.output.split())


def test_a_tape_of_rounds_too_far_apart_says_that_it_can_find_nothing(tmp_path: Path) -> None:
    moments = rounds("a launch that does not end")
    apart = [replace(one, t_s=moments[0].t_s + 130.0 * number) for number, one in enumerate(moments)]
    done = run("--replay", tape(tmp_path / "apart", apart))
    text = " ".join(done.output.split())
    count = len(apart) - 1
    assert done.exit_code == 0
    assert f"note: {count} of {count} rounds come more than 2 min after the one before" in text
    assert "none of them reported" in text
    assert json.loads(run("--replay", tmp_path / "apart", "--json").stdout)["gaps"] == count
    one = run("--replay", tape(tmp_path / "one", apart[:1]))
    assert "there is one round on it" in one.output
    (tmp_path / "empty").write_text("")
    assert "there is no round on it" in run("--replay", tmp_path / "empty").output
    assert "note" not in run("--replay", tape(tmp_path / "near", moments)).output


@pytest.mark.parametrize(
    "line",
    [
        {"t": "soon", "samples": []},
        {"t": None, "samples": []},
        {"t": 10**400, "samples": []},
        {"t": 1, "gpus": {"GPU-0": ["much"]}, "samples": []},
        {"t": 1, "samples": [[0, "GPU-0", "much"]]},
        {"t": 1, "samples": [[0, "GPU-0", -1]]},
        {"t": 1, "samples": [[0, "GPU-0", True]]},
        {"t": 1, "samples": [[0, ["GPU-0"], 1]]},
        {"t": 1, "samples": [[0, "GPU-0", 1, 1, 1, 1, 1, "no"]]},
        {"t": 1, "samples": [[0, "GPU-0", 1, 1, 1, 1, 1, None, ["http"]]]},
        {"process": 1, "pid": "seven", "start_ticks": 1},
        {"process": 1, "pid": 7, "start_ticks": 1, "command": 7},
        {"process": 1, "pid": 7, "start_ticks": 1, "groups": [7]},
        {"process": 1, "pid": 7, "start_ticks": 1, "started_s": "noon"},
    ],
)
def test_values_of_another_kind_are_refused_with_their_line(tmp_path: Path, line: dict[str, Any]) -> None:
    first = {"process": 0, "pid": 7, "start_ticks": 70}
    path = tmp_path / "tape"
    path.write_text("".join(json.dumps(one) + "\n" for one in (first, line, {"t": 2, "samples": []})))
    done = run("--replay", path)
    assert isinstance(done.exception, TapeError)
    assert f"{path}:2: not a line of a recording" in str(done.exception)
