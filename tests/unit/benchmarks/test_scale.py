# SPDX-License-Identifier: Apache-2.0
"""The model of programs and GPUs, what is read from a stopwatch, and what is judged by it."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import scale, scale_figures, scale_maps
from benchmarks.bars import missed
from benchmarks.machine import ROOT
from benchmarks.scale_daemon import ACTIONS, LATE, Lap, Stopwatch, read_laps
from benchmarks.scale_figures import BARS, Cell, growth, judge, summarise
from benchmarks.scale_world import SLICE_NS, SWITCH_NS, Gpu, Step, World
from fairsched.bpf import abi

MS = 1_000_000
S = 1_000_000_000


class Log:
    """Remembers what a World says."""

    def __init__(self) -> None:
        self.frozen: set[int] = set()
        self.events: list[tuple[str, int, int]] = []

    def is_frozen(self, key: int) -> bool:
        return key in self.frozen

    def submitted(self, key: int, t_ns: int, launches: int) -> None:
        self.events.append(("submit", key, t_ns))

    def completed(self, key: int, t_ns: int) -> None:
        self.events.append(("done", key, t_ns))

    def count(self, what: str, key: int) -> int:
        return sum(event[:2] == (what, key) for event in self.events)


def play(world: World, until_ns: int, from_ns: int = 0) -> None:
    for now_ns in range(from_ns, until_ns, MS // 2):
        world.advance(now_ns)


# ---- the GPU ----


def test_one_alone_runs_without_a_pause() -> None:
    gpu = Gpu()
    gpu.submit(1, 5, 7 * MS)
    assert gpu.advance(S) == (5 + 7 * MS, 1)
    assert gpu.busy == 0


def test_two_take_turns_and_pay_for_each_switch() -> None:
    gpu = Gpu()
    gpu.submit(1, 0, 3 * MS)
    gpu.submit(2, 0, 1 * MS)
    assert gpu.advance(S) == (SLICE_NS + SWITCH_NS + 1 * MS, 2)
    assert gpu.advance(S) == (SLICE_NS + SWITCH_NS + 1 * MS + SWITCH_NS + 1 * MS, 1)


def test_advancing_in_small_steps_or_at_once_is_the_same() -> None:
    def finish(step_ns: int) -> list[tuple[int, int]]:
        gpu, found = Gpu(), []
        for key in (1, 2, 3):
            gpu.submit(key, 0, key * 3 * MS)
        for t_ns in range(0, 30 * MS, step_ns):
            while (done := gpu.advance(t_ns)) is not None:
                found.append(done)
        return found

    assert finish(MS // 3) == finish(29 * MS)
    assert len(finish(29 * MS)) == 3


# ---- the programs ----


def test_everybody_gets_the_same_and_the_gpu_is_never_idle() -> None:
    log = Log()
    play(World(4, 1, log, start_ns=0, most_busy=250), 4 * S)
    done = [log.count("done", key) for key in range(4)]
    assert max(done) - min(done) <= 3
    # 5 ms of work per step, and a switch for each slice of 2 ms
    assert sum(done) == pytest.approx(4000 / (5 + 3 * 0.1), rel=0.05)


def test_programs_are_spread_over_the_gpus() -> None:
    log = Log()
    play(World(4, 4, log, start_ns=0, most_busy=250), S)
    # alone: 5 ms of work and .5 ms of thought
    assert all(log.count("done", key) == pytest.approx(1000 / 5.5, rel=0.05) for key in range(4))


def test_no_more_are_busy_than_a_clock_can_count_and_all_get_their_turn() -> None:
    log = Log()
    play(World(6, 1, log, start_ns=0, most_busy=2), S)
    busy = most = 0
    for what, _, _ in log.events:
        busy += 1 if what == "submit" else -1
        most = max(most, busy)
    assert most == 2
    assert min(log.count("done", key) for key in range(6)) >= 20


def test_a_frozen_program_says_nothing_until_it_is_let_go() -> None:
    log = Log()
    world = World(2, 1, log, start_ns=0, most_busy=250)
    play(world, S)
    log.frozen.add(1)
    before = (log.count("done", 1), log.count("submit", 1))
    play(world, 2 * S, S)
    assert (log.count("done", 1), log.count("submit", 1)) == before
    assert world.waiting == 1
    log.frozen.clear()
    play(world, 3 * S, 2 * S)
    assert log.count("done", 1) > before[0] + 50


def test_the_first_step_is_short() -> None:
    log = Log()
    play(World(1, 1, log, start_ns=0, most_busy=250, step=Step(spread_ratio=0.0)), 20 * MS)
    times = [t_ns for what, _, t_ns in log.events if what == "done"]
    assert times[0] == Step().launch_ns
    assert times[1] - times[0] == Step().think_ns + 20 * Step().launch_ns


# ---- the maps ----


def test_a_map_is_known_by_its_shape() -> None:
    text = (
        "pos:\t0\nflags:\t02\nmap_type:\t2\nkey_size:\t4\nvalue_size:\t248\nmax_entries:\t2048\nmap_id:\t7\n"
    )
    assert scale_maps.shape_of(text) == scale_maps.SHAPES["contexts"]
    assert len(set(scale_maps.SHAPES.values())) == len(scale_maps.SHAPES)


def test_shapes_of_hashes_are_those_of_the_abi() -> None:
    header = (Path(scale.ROOT) / "bpf/abi.h").read_text()
    source = (Path(scale.ROOT) / "bpf/maps.h").read_text()
    assert f"#define FS_MAX_USES {scale_maps.SHAPES['uses'][3]}" in header
    assert (
        f"BPF_HASH(delay_by_key, struct fs_delay_key, struct fs_delay, {scale_maps.SHAPES['delays'][3]})"
        in source
    )


def test_the_program_copies_a_whole_edge() -> None:
    code = scale_maps.edge_writer(17)
    insns = [struct.unpack("<BBhi", code[i : i + 8]) for i in range(0, len(code), 8)]
    stored = sorted(offset for opcode, _, offset, _ in insns if opcode == 0x7B)
    size = ctypes.sizeof(abi.Edge)
    assert stored == list(range(-size, 0, 8))
    assert [imm for opcode, _, _, imm in insns if opcode == 0x18] == [17]
    assert insns[-1][0] == 0x95


def test_a_clock_stepped_here_tells_the_same_v_before_and_after() -> None:
    clock = abi.Clock()
    for t_ns, delta in ((S, 1), (2 * S, 1), (3 * S, 1), (5 * S, -1), (8 * S, -1), (9 * S, -1)):
        v_ns, n = scale_maps.Injector._step_clock(clock, delta, t_ns)
        word = clock.word[abi.COMPUTE]
        assert abi.clock_n(word) == n + delta
        assert abi.clock_v(word, t_ns) == pytest.approx(v_ns, abs=1)
    # 1 s alone, 1/2 + 2/3 + 3/2 in company, 1 alone
    assert abi.clock_v(clock.word[abi.COMPUTE], 10 * S) == pytest.approx(
        (1 + 1 / 2 + 2 / 3 + 3 / 2 + 1) * S, rel=1e-6
    )


# ---- the stopwatch ----


def test_laps_survive_the_file(tmp_path: Path) -> None:
    class Loop:
        def tick(self, much: int) -> int:
            return much + 1

    watch = Stopwatch()
    watch.wrap(Loop, "tick", "tick")
    watch.note(LATE, 7)
    assert Loop().tick(1) == 2
    watch.write(tmp_path / "times")
    late, tick = read_laps(tmp_path / "times")
    assert (late.kind, late.wall_ns, tick.kind) == (LATE, 7, "tick")
    assert tick.wall_ns >= tick.cpu_ns >= 0
    assert tick.begin_ns >= late.begin_ns


def test_a_part_that_fails_is_a_lap_too() -> None:
    class Loop:
        def tick(self) -> None:
            raise RuntimeError

    watch = Stopwatch()
    watch.wrap(Loop, "tick", "tick")
    with pytest.raises(RuntimeError):
        Loop().tick()
    assert len(watch._laps) == 4


def laps(*wall_ms: float) -> list[Lap]:
    found = []
    for number, ms in enumerate(wall_ms):
        found.append(Lap("tick", number * S, round(ms * MS), round(ms * MS / 2)))
        found.append(Lap(LATE, number * S, round(ms * MS / 10), 0))
        found.append(Lap(ACTIONS, number * S, 3, 0))
    return found


def test_only_what_began_in_the_window_counts() -> None:
    found = summarise(laps(100.0, 1.0, 2.0, 3.0, 100.0), S, 4 * S)
    assert (found["ticks"], found["tick_p50_ms"], found["tick_max_ms"]) == (3, 2.0, 3.0)
    assert (found["tick_cpu_p50_ms"], found["actions_per_s"]) == (1.0, 3.0)
    assert found["late_p99_ms"] == pytest.approx(0.3)
    assert found["parts"]["tick"]["cpu_ratio"] == pytest.approx(0.001)


def test_a_daemon_that_did_not_tick_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="no values"):
        summarise(laps(1.0), 2 * S, 3 * S)


# ---- the judgement ----


def cell(gpus: int, tenants: int, p99_ms: float, cpu: float = 0.01, is_injected: bool = True) -> Cell:
    numbers = summarise(laps(1.0, 2.0), 0, 2 * S)
    numbers |= {"tick_p50_ms": p99_ms / 2, "tick_p99_ms": p99_ms}
    return Cell(
        gpus=gpus,
        tenants=tenants,
        is_injected=is_injected,
        **numbers,
        status_ms=1.0,
        cpu_ratio={"daemon": cpu, "guardian": cpu / 2},
        rss_bytes={"daemon": 50_000_000},
        start_s=5.0,
        steps_per_s=100.0,
        edges_per_s=200.0,
        sure=tenants,
        seen=tenants,
        cpu_wait_ratio=0.0,
    )


def every(p99_ms: Sequence[float]) -> list[Cell]:
    return [
        cell(gpus, tenants, ms) for gpus in (1, 8) for tenants, ms in zip((4, 64, 1000), p99_ms, strict=True)
    ]


def test_growth_tells_linear_from_quadratic() -> None:
    assert growth((10, 3.0), (1000, 300.0)) == pytest.approx(1.0)
    assert growth((10, 3.0), (1000, 30_000.0)) == pytest.approx(2.0)


def test_a_linear_daemon_meets_every_bar_and_a_quadratic_one_does_not() -> None:
    assert missed(BARS, judge(every((0.3, 0.6, 9.0)))) == []
    assert missed(BARS, judge(every((0.1, 0.1, 9.9)))) == [
        "growth_p50_1",
        "growth_p99_1",
        "growth_p50_8",
        "growth_p99_8",
    ]
    assert missed(BARS, judge(every((0.9, 0.9, 10.1)))) == ["tick_p99_ms_1x1000", "tick_p99_ms_8x1000"]


def test_a_small_part_that_grows_quadratically_is_found_in_a_large_sum() -> None:
    parts = {
        64: {"walk": {"cpu_max_ms": 0.5, "cpu_mean_ms": 0.1}, "decide": {"cpu_mean_ms": 1.0}},
        1000: {
            "walk": {"cpu_max_ms": 0.5 * (1000 / 64) ** 2, "cpu_mean_ms": 0.1},
            "decide": {"cpu_mean_ms": 5.0},
        },
    }
    cells = [replace(cell(8, tenants, tenants / 100), parts=parts[tenants]) for tenants in (64, 1000)]
    assert missed(BARS, judge(cells)) == ["growth_part_8"]
    assert judge(cells)["growth_part_8"] == pytest.approx(2.0)


def test_helpers_count_as_the_daemon() -> None:
    values = judge([cell(8, 64, 1.0, cpu=0.04)])
    assert values["cpu_ratio_8x64"] == pytest.approx(0.06)
    assert missed(BARS, values) == ["cpu_ratio_8x64"]


def test_what_was_not_measured_has_no_value() -> None:
    values = judge([cell(1, 1000, 5.0), cell(1, 64, 9.0, is_injected=False)])
    assert values["tick_p99_ms_1x1000"] == 5.0
    assert values["growth_p99_1"] is None
    assert values["cpu_ratio_8x64"] is None


def test_the_tables_fit_a_terminal() -> None:
    cells = [replace(one, tick_max_ms=1234.5, actions_per_s=999.9) for one in every((1.0, 30.0, 200.0))]
    cells.append(cell(1, 4, 1.0, is_injected=False))
    tables = [
        scale_figures.cell_table(cells),
        scale_figures.part_table(cells),
        scale_figures.bar_table(judge(cells)),
    ]
    assert max(len(line) for table in tables for line in table) <= 80


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: sudo make setup")
    scale_figures.plot(every((1.0, 3.0, 9.0)), tmp_path / "scale.png")
    assert (tmp_path / "scale.png").read_bytes()[:4] == b"\x89PNG"


# ---- the command ----


def test_an_unknown_cell_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert scale.main(["--only", "9x9"]) == 2
    assert "8x1000" in capsys.readouterr().err


def test_a_run_takes_five_minutes_at_most() -> None:
    assert scale.estimate_s(scale.Plan()) <= 5 * 60
    assert scale.Plan().seconds >= 10


def test_every_part_that_is_measured_is_there_to_be_measured() -> None:
    """In a process of its own: the stopwatch stays on what it is put on."""
    program = "from benchmarks.scale_daemon import Stopwatch, instrument; instrument(Stopwatch())"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
