# SPDX-License-Identifier: Apache-2.0
"""What the measurements of single calls share: the program that calls, the command, the choice of a kind."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cost import __main__ as kinds
from benchmarks.cost import gate, harness, probe
from benchmarks.rig import BenchError
from fairsched.errors import HostUnsupported

DOUBLES = "import sys\nfor line in sys.stdin: print(*(2 * float(w) for w in line.split()), flush=True)"


def test_a_caller_answers_each_question() -> None:
    with harness.calling([sys.executable, "-c", DOUBLES]) as caller:
        assert caller.ask(1, 2.5) == [2.0, 5.0]
        assert caller.ask(3) == [6.0]


def test_a_caller_that_ended_is_an_error() -> None:
    with harness.calling([sys.executable, "-c", "pass"]) as caller, pytest.raises((BenchError, OSError)):
        caller.ask(1)


def test_programs_are_named_after_their_sources(tmp_path: Path) -> None:
    assert harness.compiled("ioctl_caller.c", tmp_path) == tmp_path / "ioctl_caller"
    assert (tmp_path / "ioctl_caller").stat().st_mode & 0o100
    with pytest.raises(BenchError, match=r"no_such\.c does not compile"):
        harness.compiled("no_such.c", tmp_path)


@pytest.mark.parametrize(
    ("result", "status"),
    [({}, 0), ({"bar": {"is_met": True}}, 0), ({"bar": {"is_met": False}}, 1)],
)
def test_a_result_is_shown_written_and_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], result: dict[str, Any], status: int
) -> None:
    output = tmp_path / "out.json"
    assert harness.command(lambda: result, lambda found: f"on {found['cpus']}", output) == status
    kept = json.loads(output.read_text())
    assert capsys.readouterr().out == f"on {kept['cpus']}\n"
    assert {key: kept[key] for key in result} == result


def test_what_fails_is_said_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> dict[str, Any]:
        raise HostUnsupported("no BPF", remedy="another kernel")

    assert harness.command(run, str, tmp_path / "out.json") == HostUnsupported.exit_status
    assert "no BPF" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_kind_is_chosen_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(kinds, "KINDS", {"gate": lambda argv: asked.append(list(argv)) or 0})
    assert kinds.main(["gate", "--rounds", "1"]) == 0
    assert asked == [["--rounds", "1"]]
    assert kinds.main(["--help"]) == 0
    assert "pid-view" in capsys.readouterr().out
    assert kinds.main(["nothing"]) == kinds.main([]) == 2


def test_the_gates_table_has_a_line_per_open() -> None:
    opens = {"GPU of its own": {"without_us": 1.0, "with_us": 1.5}}
    times = dict.fromkeys(("rules_us", "rules_again_us", "attach_us", "detach_us", "release_us"), 1000.0)
    lines = gate.render({**times, "opens": opens}).splitlines()
    assert lines[0].split() == ["1000", "rules", "written", "1.0", "ms,", "changed", "1.0", "ms"]
    assert lines[-1].split() == ["GPU", "of", "its", "own", "1.00", "1.50", "+0.50"]


def test_what_a_probe_adds_is_shown_per_program() -> None:
    cost = probe.ProbeCost("empty", {"none": [100.0], "at_0": [500.0], "at_10": [200.0]})
    shown = probe.render({"programs": [cost.to_plain()]}).splitlines()
    assert shown[-1].split() == ["empty", "100", "500", "200", "0.250"]
