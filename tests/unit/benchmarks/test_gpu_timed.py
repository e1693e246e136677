# SPDX-License-Identifier: Apache-2.0
"""What kernels noted becomes a truth: marks, stretches, turns."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import drains, each, mixes, nature
from benchmarks.gpu.timed import Notes, Turn, offset_ns, quantiles, ran_ns, read_notes, switches_ns, turns
from benchmarks.rig import BenchError
from fairsched.errors import HostUnsupported

MARKS = 32
CAPACITY = 8
MAGIC = 0x676F6C757067


def written(
    path: Path, marks: list[tuple[int, int]], notes: list[tuple[int, int]], magic: int = MAGIC
) -> Path:
    pairs = [*marks, *[(0, 0)] * (MARKS - len(marks)), *notes, *[(0, 0)] * (CAPACITY - len(notes))]
    path.write_bytes(
        struct.pack("=QQQQ", magic, CAPACITY, len(marks), 0)
        + b"".join(struct.pack("=QQ", *pair) for pair in pairs)
    )
    return path


def test_the_first_notes_are_those_of_the_marks(tmp_path: Path) -> None:
    path = written(tmp_path / "notes", [(1000, 1300)], [(50, 51), (100, 400), (90, 95)])
    assert read_notes(path) == Notes([(1000, 1300, 50)], [(90, 95), (100, 400)], True)


def test_a_ring_that_is_full_may_have_lost_some(tmp_path: Path) -> None:
    path = written(tmp_path / "notes", [], [(at, at + 1) for at in range(1, CAPACITY + 1)])
    assert not read_notes(path).is_whole


@pytest.mark.parametrize("data", [b"", b"x" * 100])
def test_another_file_is_no_notes(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "notes").write_bytes(data)
    with pytest.raises(BenchError, match="no notes of a GPU"):
        read_notes(tmp_path / "notes")


def test_a_file_that_is_cut_short_is_no_notes(tmp_path: Path) -> None:
    path = written(tmp_path / "notes", [], [(1, 2)])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BenchError, match="no notes of a GPU"):
        read_notes(path)


def test_each_mark_bounds_the_offset_from_both_sides() -> None:
    wide, late = Notes([(1000, 1500, 100)], [], True), Notes([(1900, 2060, 1010)], [], True)
    # 900..1400 and 890..1050
    assert offset_ns([wide, late]) == (975, 75)


def test_what_overlaps_counts_once_and_the_edges_are_cut() -> None:
    stretches = [(0, 10), (20, 40), (30, 50), (35, 45), (90, 120)]
    assert ran_ns(stretches, (5, 100)) == 5 + 30 + 10
    assert ran_ns([], (5, 100)) == 0


def test_a_turn_is_what_one_ran_before_another_did() -> None:
    found = turns({0: [(0, 1000), (1005, 2000), (500_000, 500_100)], 1: [(2100, 9000)]})
    assert found == [Turn(0, 0, 2000), Turn(1, 2100, 9000), Turn(0, 500_000, 500_100)]
    assert switches_ns(found, most_ns=200_000) == [100]


def test_quantiles_of_nothing_are_none() -> None:
    assert quantiles([]) == {"count": 0}
    assert quantiles([3.0, 1.0, 2.0])["p50"] == 2.0


@pytest.mark.parametrize("command", [nature, mixes])
def test_without_a_gpu_it_is_said_what_is_missing(
    command: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def look() -> None:
        raise HostUnsupported("no GPU 0", remedy="see nvidia-smi")

    monkeypatch.setattr(each, "look_at_gpu", look)
    assert command.main([]) == 3
    assert "no GPU 0" in capsys.readouterr().err


def test_a_drawn_mix_has_its_leaves_and_their_weights() -> None:
    loads = mixes.drawn("draw:31:2")
    assert sum(load.weight for load in loads) == pytest.approx(100, abs=0.1)
    assert all(load.workload.copy_bytes == 0 for load in loads)


@pytest.mark.parametrize("name", ["nosuch", "draw:1", "draw:x:1"])
def test_a_mix_that_is_none_is_refused_with_what_there_is(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mixes.main(["--only", name]) != 0
    said = capsys.readouterr().err
    assert name in said and "draw:SEED:NUMBER" in said


def test_what_fails_costs_its_own_figures_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(_host: Any, name: str) -> dict[str, Any]:
        if name == "bad":
            raise BenchError("it broke")
        return {"name": name, "log": []}

    monkeypatch.setattr(each, "look_at_gpu", lambda: None)
    monkeypatch.setattr(each, "TimedGpu", lambda _facts: contextlib.nullcontext())
    kept = tmp_path / "kept.json"
    assert each.measure_each(["bad", "good"], measure, json_path=kept, bulky=("log",)) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ('good {"name": "good"}\n', "bad: it broke\n")
    assert json.loads(kept.read_text()) == {"good": {"name": "good", "log": []}}


def test_a_drain_ends_with_the_last_kernel_that_was_launched_before_the_hold() -> None:
    """Written at 100, frozen at 110, let go at 200 ms; each kernel takes 10 ms, every other turn is a neighbour's."""
    ms = 1_000_000
    own = [(at * ms, (at + 10) * ms) for at in (60, 80, 100, 120, 140, 205)]
    others = [(at * ms, (at + 10) * ms) for at in (70, 90, 110, 130, 150, 160, 170, 180, 190)]
    found = drains.judge([drains.Held(100 * ms, 110 * ms, 200 * ms)], own, others)
    assert found["drains_ms"] == [40]
    assert found["drain_ran_ms"]["p50"] == 20
    assert found["ran_while_freezing_ms"]["p50"] == 10
    assert found["thaw_to_kernel_ms"]["p50"] == 5
    assert found["others_ran_ratio"]["in holds"]["p50"] == pytest.approx(70 / 90)
    assert found["others_ran_ratio"]["before"]["p50"] == pytest.approx(20 / 100)


def test_who_launches_nothing_after_its_thaw_tells_nothing() -> None:
    with pytest.raises(BenchError, match="launches nothing"):
        drains.judge([drains.Held(10, 20, 30)], [(5, 25)], [])
