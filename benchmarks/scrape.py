# SPDX-License-Identifier: Apache-2.0
"""What a scrape takes, and whether it reaches the tick: ``python -m benchmarks.scrape`` (root), ``make bench-scrape``.

The daemon is the real one, with the stopwatch of ``make bench-scale`` on its loop, its companion and exporter; what is
in its maps is injected, as there (docs/scale.md). Three questions:

  page   how long a scrape takes, on a new connection, of a status that nobody has asked for before, as gzip: 64
         tenants, each with a context on each of 8 GPUs, 512 pairs
  tick   the same of 64 tenants at work, one context each, as in the cell 8x64 of bench-scale; and what happens to the
         ticks while the exporter is attacked (scrape_clients.py): windows with and without take turns, so the figure
         is a ratio within one run. The bar is on 10,000 random requests beside slow clients and crowds; a flood of as
         many as a processor can make is told, too
  delay  whether the 99th percentile of the exported queue delay is that of the simulated engine (scrape_delay.py)

Examples:
  python -m benchmarks.scrape                everything; writes benchmarks/results/scrape.json
  python -m benchmarks.scrape --quick        short windows, for development; writes nothing
  python -m benchmarks.scrape --only delay   one section
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, missed, render_rows
from benchmarks.command import INTERRUPTED, say_error, stop_signals
from benchmarks.machine import ROOT, describe
from benchmarks.rig import BenchError, Rig
from benchmarks.scale_cell import Driver, ScaleDaemon, crowd, daemon
from benchmarks.scale_daemon import LATE, Lap
from benchmarks.scale_maps import Injector
from benchmarks.scale_world import Step
from benchmarks.scrape_delay import Delay, measure_delays
from benchmarks.stats import percentile
from fairsched.errors import FairschedError
from fairsched.simgpu import GpuSpec

RESULTS = ROOT / "benchmarks/results/scrape.json"
SECTIONS = ("page", "tick", "delay")
TENANTS, GPUS = 64, 8
LAUNCH_NS = 1_000_000
"""Steps of 20 ms: the programs are played by this process, which shares two processors with what is measured."""
_STEPS = 20
"""Of each program before the page is measured: their waits fill some buckets."""

BARS = (
    Bar("scrape_p95_ms", "every tenant on every GPU, in ms", 50.0, True),
    Bar("scrape_busy_p95_ms", "tenants at work, in ms", 50.0, True),
    Bar("tick_p99_ratio", "ticks: attacked by calm", 1.1, True),
    Bar("fuzz_requests", "random requests while attacked", 10_000, False, "count"),
    Bar("delay_buckets_off", "buckets of the page, the worst", 1.0, True),
)


@dataclass(frozen=True)
class Plan:
    """How long to look."""

    settle_s: float = 6.0
    scrapes_s: float = 40.0
    window_s: float = 15.0
    pairs: int = 6
    delay_s: float = 20.0


QUICK = Plan(settle_s=4.0, scrapes_s=8.0, window_s=5.0, pairs=1, delay_s=6.0)


@dataclass
class Arm:
    """Ticks of all windows of one kind."""

    wall_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    windows: list[float] = field(default_factory=list)
    """p99 of the wall time in each window."""
    clients: dict[str, int] = field(default_factory=dict)

    def add(self, laps: Sequence[Lap], begin_ns: int, end_ns: int) -> None:
        inside = [lap for lap in laps if begin_ns <= lap.begin_ns < end_ns]
        wall = [lap.wall_ns / 1e6 for lap in inside if lap.kind == "tick"]
        self.wall_ms += wall
        self.cpu_ms += [lap.cpu_ns / 1e6 for lap in inside if lap.kind == "tick"]
        self.late_ms += [max(0, lap.wall_ns) / 1e6 for lap in inside if lap.kind == LATE]
        self.windows.append(percentile(wall, 0.99))

    def figures(self) -> dict[str, Any]:
        return {
            "ticks": len(self.wall_ms),
            "tick_p50_ms": percentile(self.wall_ms, 0.5),
            "tick_p99_ms": percentile(self.wall_ms, 0.99),
            "tick_cpu_p99_ms": percentile(self.cpu_ms, 0.99),
            "late_p99_ms": percentile(self.late_ms, 0.99),
            "window_p99_ms": self.windows,
            "clients": self.clients,
        }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Clients:
    """The process of scrape_clients.py, for one window."""

    def __init__(self, port: int, seconds: float, kind: str) -> None:
        argv = [sys.executable, "-m", "benchmarks.scrape_clients", str(port), str(seconds), kind]
        self._process = subprocess.Popen(
            argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def end(self) -> dict[str, Any]:
        said, _ = self._process.communicate(timeout=60)
        if self._process.returncode:
            raise BenchError(f"the clients ended with {self._process.returncode}")
        answer: dict[str, Any] = json.loads(said)
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _play(driver: Driver | None, port: int, seconds: float, kind: str) -> dict[str, Any]:
    clients = _Clients(port, seconds, kind)
    try:
        if driver is not None:
            driver.run(seconds)
        return clients.end()
    finally:
        clients.kill()


def measure_page(rig: Rig, plan: Plan, _seed: int) -> dict[str, Any]:
    """A scrape of every tenant on every GPU; nobody works, so it is the scrape alone that takes time."""
    port = free_port()
    with contextlib.ExitStack() as undo:
        programs = undo.enter_context(crowd(rig, TENANTS))
        running, _ = undo.enter_context(daemon(rig, TENANTS, {"metrics": {"listen": f":{port}"}}))
        # Program i of the model is on GPU i % GPUS: every process has a context on each.
        everywhere = [replace(program, gpu=gpu) for program in programs for gpu in range(GPUS)]
        injector = undo.enter_context(Injector(running.pid, everywhere))
        for key in range(len(everywhere)):
            injector.create(key, time.monotonic_ns())
            for _ in range(_STEPS):
                injector.submitted(key, time.monotonic_ns(), 1)
                injector.completed(key, time.monotonic_ns())
        time.sleep(plan.settle_s)
        before = running.status()
        times_s = _play(None, port, plan.scrapes_s, "timed")["times_s"]
        status = running.status()
        laps = _laps(running)
    asked = [lap.cpu_ns / 1e6 for lap in laps if lap.kind == "status"]
    spent_s = _companion_s(status) - _companion_s(before)
    return {
        "scrape_p50_ms": percentile(times_s, 0.5) * 1e3,
        "scrape_p95_ms": percentile(times_s, 0.95) * 1e3,
        "scrapes": len(times_s),
        "scrape_companion_cpu_ms": spent_s / max(1, len(times_s)) * 1e3,
        "scrape_status_cpu_ms": percentile(asked, 0.5),
        "pairs_of_tenant_and_gpu": sum(len(tenant["gpus"]) for tenant in status["tenants"]),
    }


def measure_ticks(rig: Rig, plan: Plan, seed: int) -> dict[str, Any]:
    """The same number of tenants at work, one context each: scrapes meanwhile, and ticks with and without an attack."""
    port = free_port()
    arms = {"calm": Arm(), "hostile": Arm(), "flood": Arm()}
    spans: list[tuple[str, int, int]] = []
    with contextlib.ExitStack() as undo:
        programs = undo.enter_context(crowd(rig, TENANTS))
        running, _ = undo.enter_context(daemon(rig, TENANTS, {"metrics": {"listen": f":{port}"}}))
        injector = undo.enter_context(Injector(running.pid, programs))
        driver = Driver(injector, programs, GPUS, Step(launch_ns=LAUNCH_NS), seed)
        driver.run(plan.settle_s)
        times_s = _play(driver, port, plan.scrapes_s, "timed")["times_s"]
        for _ in range(plan.pairs):
            for kind, arm in arms.items():
                begin_ns = time.monotonic_ns()
                counts = _play(driver, port, plan.window_s, kind)["counts"]
                spans.append((kind, begin_ns, begin_ns + round(plan.window_s * 1e9)))
                keys = {*arm.clients, *counts}
                arm.clients = {key: arm.clients.get(key, 0) + counts.get(key, 0) for key in keys}
        laps = _laps(running)
    for kind, begin_ns, end_ns in spans:
        arms[kind].add(laps, begin_ns, end_ns)
    asked = [lap.wall_ns / 1e6 for lap in laps if lap.kind == "status"]
    figures = {kind: arm.figures() for kind, arm in arms.items()}
    calm, hostile, flood = figures.values()
    return {
        "scrape_busy_p50_ms": percentile(times_s, 0.5) * 1e3,
        "scrape_busy_p95_ms": percentile(times_s, 0.95) * 1e3,
        "status_p50_ms": percentile(asked, 0.5),
        "fuzz_requests": hostile["clients"].get("fuzz", 0),
        "tick_p99_ratio": hostile["tick_p99_ms"] / calm["tick_p99_ms"],
        "tick_cpu_p99_ratio": hostile["tick_cpu_p99_ms"] / calm["tick_cpu_p99_ms"],
        "late_p99_ratio": hostile["late_p99_ms"] / calm["late_p99_ms"],
        "flood_requests": flood["clients"].get("fuzz", 0),
        "flood_tick_p99_ratio": flood["tick_p99_ms"] / calm["tick_p99_ms"],
        "flood_tick_cpu_p99_ratio": flood["tick_cpu_p99_ms"] / calm["tick_cpu_p99_ms"],
        **figures,
    }


def _laps(running: ScaleDaemon) -> list[Lap]:
    running.stop()
    return running.laps()


def _companion_s(status: dict[str, Any]) -> float:
    processes = status["own"]["processes"]
    return float(next((one["cpu_s"] for one in processes if one["role"] == "companion"), 0.0))


def delay_figures(delays: Sequence[Delay]) -> dict[str, Any]:
    """The worst, and all."""
    return {
        "delay_buckets_off": max((abs(one.buckets_off) for one in delays), default=None),
        "delays": [{**asdict(one), "buckets_off": one.buckets_off} for one in delays],
    }


def table(values: dict[str, Any], delays: Sequence[Delay]) -> list[str]:
    """What was found, for a person."""
    lines = []
    for bar in BARS:
        value = values.get(bar.key)
        told = "not measured" if value is None else f"{value:.3g}"
        lines.append(f"{bar.key:20} {told:>12}   bar {bar.limit:g}   {bar.what}")
    header = ("mode", "tenant", "turns", "true p99 ms", "exported p99 ms", "buckets off")
    rows = []
    for one in delays:
        shown = (f"{one.true_p99_ms:.2f}", f"{one.exported_p99_ms:.2f}", f"{one.buckets_off:+d}")
        rows.append((one.case, one.tenant, str(one.turns), *shown))
    return [*lines, "", *(render_rows(header, rows) if delays else [])]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scrape",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="short windows; not to be quoted")
    parser.add_argument("--only", action="append", default=[], choices=SECTIONS)
    parser.add_argument("--output", type=Path, metavar="PATH", help="where to write the JSON")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    about, start_s = describe(), time.monotonic()
    plan, wanted = QUICK if options.quick else Plan(), set(options.only or SECTIONS)
    values: dict[str, Any] = {}
    delays: list[Delay] = []
    try:
        with stop_signals(), tempfile.TemporaryDirectory(prefix="fairsched-scrape-") as directory:
            if "delay" in wanted:
                delays = measure_delays(Path(directory), plan.delay_s, options.seed)
                values |= delay_figures(delays)
            for section, measure in (("page", measure_page), ("tick", measure_ticks)):
                if section in wanted:
                    with Rig(*[GpuSpec()] * GPUS, build_dir=Path(directory)) as rig:
                        values |= measure(rig, plan, options.seed)
    except FairschedError as error:
        return say_error(error)
    except KeyboardInterrupt:
        print("interrupted; nothing was written, everything is cleaned up", file=sys.stderr)
        return INTERRUPTED
    below = missed(BARS, values)
    print("\n".join(table(values, delays)))
    document = {
        **{bar.key: values.get(bar.key) for bar in BARS},
        **about,
        "seconds": round(time.monotonic() - start_s, 1),
        "seed": options.seed,
        "is_quick": options.quick,
        "only": options.only,
        "missed": below,
        "bars": {bar.key: bar.limit for bar in BARS},
        **values,
    }
    is_whole = not options.quick and not options.only
    if output := options.output or (RESULTS if is_whole else None):
        output.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if options.strict and below else 0


if __name__ == "__main__":
    sys.exit(main())
