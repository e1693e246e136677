# SPDX-License-Identifier: Apache-2.0
"""What the daemon costs as tenants and GPUs become many: ``python -m benchmarks.scale`` (root), ``make bench-scale``.

The daemon is the real one, with a stopwatch on its loop (scale_daemon.py). Real are cgroups (one per tenant, a
sleeping process in each), the configuration that names them all, tree walk, BPF maps and how they are read, account,
policy, holds (cgroup.freeze) and the control socket. Injected is what is in the maps: contexts, clocks, counters and
edges, as programs that use the GPUs without a pause would leave them (scale_world.py, scale_maps.py). The cell "real"
has four such programs and nothing injected, beside the same four injected. docs/scale.md says more.

Examples:
  python -m benchmarks.scale                  everything; writes benchmarks/results/scale.json
  python -m benchmarks.scale --quick          short windows, for development; writes nothing
  python -m benchmarks.scale --only 8x64      one cell (or: real, probe)
  python -m benchmarks.scale --quick --output q.json and keep it
  python -m benchmarks.scale --only 8x64 --step-ms 20    programs with longer steps
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.bars import WIDTH, missed
from benchmarks.command import INTERRUPTED, say_error, stop_signals
from benchmarks.cost import probe as probe_cost
from benchmarks.machine import ROOT, describe
from benchmarks.rig import Rig
from benchmarks.scale_cell import measure_cell
from benchmarks.scale_figures import (
    BARS,
    GPUS,
    TENANTS,
    Cell,
    bar_table,
    cell_table,
    judge,
    part_table,
    plot,
)
from benchmarks.scale_maps import MOST_BUSY
from benchmarks.scale_world import Step
from fairsched.errors import ConfigError, FairschedError
from fairsched.simgpu import GpuSpec

RESULTS = ROOT / "benchmarks/results/scale.json"
PICTURE = ROOT / "docs/img/scale.png"
INJECTED = (
    "contents of the BPF maps: contexts, clocks, use, queue delay, and the edges in the ring, as closed-loop decoders"
    f" (step_ms of GPU per step, waited for; at most {MOST_BUSY} of a GPU busy at a time) would leave them. Everything"
    " else is real, and the cell with is_injected = false is real altogether"
)
_OPEN_FILES = 8192
DEFAULT_STEP_MS = Step.launches * Step.launch_ns / 1e6


@dataclass(frozen=True)
class Plan:
    """How long to look."""

    seconds: float = 12.0
    settle_s: float = 5.0
    probe_rounds: int = 3


QUICK = Plan(seconds=4.0, settle_s=4.0, probe_rounds=1)
CELLS = tuple((gpus, tenants) for tenants in TENANTS for gpus in GPUS)


def estimate_s(plan: Plan) -> float:
    """How long a run takes on a quiet machine."""
    cells = (len(CELLS) + 1) * (plan.seconds + plan.settle_s + 6.0)
    crowds_s = 30.0  # a thousand cgroups and processes, made and removed, twice
    return cells + crowds_s + 10.0 + 4.0 * plan.probe_rounds


class Run:
    """The chosen cells, and the probe."""

    def __init__(self, plan: Plan, only: Sequence[str], step_ms: float, seed: int) -> None:
        names = {"real", "probe", *(f"{gpus}x{tenants}" for gpus, tenants in CELLS)}
        if unknown := set(only) - names:
            raise ConfigError(
                f"no cell {', '.join(sorted(unknown))}", remedy=f"one of: {' '.join(sorted(names))}"
            )
        self._plan, self._only, self._seed = plan, set(only), seed
        self._step = Step(launch_ns=round(step_ms * 1e6 / Step.launches))
        self._started_s = time.monotonic()
        self.cells: list[Cell] = []
        self.probe: list[dict[str, Any]] = []

    def measure(self, directory: Path) -> None:
        """All of it; a simulated host per cell, so that each has its GPUs."""
        wanted = [(1, 4, False), *((gpus, tenants, True) for gpus, tenants in CELLS)]
        for gpus, tenants, is_injected in wanted:
            name = f"{gpus}x{tenants}" if is_injected else "real"
            if self._only and name not in self._only:
                continue
            self._say(f"{gpus} GPU, {tenants} tenants" + ("" if is_injected else ", real processes"))
            with Rig(*[GpuSpec()] * gpus, build_dir=directory) as rig:
                cell = measure_cell(
                    rig,
                    tenants,
                    seconds=self._plan.seconds,
                    settle_s=self._plan.settle_s,
                    step=self._step,
                    seed=self._seed,
                    is_injected=is_injected,
                )
            self.cells.append(cell)
            self._judge_sanity(cell)
        if not self._only or "probe" in self._only:
            self._say("probe cost")
            with Rig(build_dir=directory) as rig:
                self.probe = [
                    cost.to_plain() for cost in probe_cost.measure(rig, rounds=self._plan.probe_rounds)
                ]

    def _judge_sanity(self, cell: Cell) -> None:
        """A daemon that does not see the tenants is cheap."""
        if cell.seen < cell.tenants or cell.sure < 0.9 * cell.tenants:
            self._say(f"  warning: {cell.seen} of {cell.tenants} seen, {cell.sure} of them surely")
        for warning in cell.warnings:
            self._say(f"  warning: {warning}")

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._started_s:6.1f} s  {what}", file=sys.stderr, flush=True)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="short windows; the figures are not to be quoted"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="CELL", help="1x4 .. 8x1000, real, probe"
    )
    parser.add_argument("--output", type=Path, metavar="PATH", help="where to write the JSON")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="where to write the picture")
    parser.add_argument(
        "--step-ms",
        type=_step_ms,
        default=DEFAULT_STEP_MS,
        metavar="MS",
        help="GPU time of a program's step (5)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    return parser.parse_args(argv)


def _step_ms(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 1000:
        raise argparse.ArgumentTypeError("between 0.1 and 1000")
    return value


def _raise_open_files() -> None:
    """A thousand tenants are a thousand descriptors, here and in the daemon, which inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(_OPEN_FILES, hard), hard))


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    about, start_s = describe(), time.monotonic()
    _raise_open_files()
    try:
        run = Run(QUICK if options.quick else Plan(), options.only, options.step_ms, options.seed)
        with stop_signals(), tempfile.TemporaryDirectory(prefix="fairsched-scale-") as directory:
            run.measure(Path(directory))
    except FairschedError as error:
        return say_error(error)
    except KeyboardInterrupt:
        print("interrupted; nothing was written, everything is cleaned up", file=sys.stderr)
        return INTERRUPTED
    values = judge(run.cells)
    document = {
        **values,
        **about,
        "seconds": round(time.monotonic() - start_s, 1),
        "seed": options.seed,
        "step_ms": options.step_ms,
        "is_quick": options.quick,
        "only": options.only,
        "missed": missed(BARS, values),
        "bars": {bar.key: bar.limit for bar in BARS},
        "injected": INJECTED,
        "cells": [asdict(cell) for cell in run.cells],
        "probe": run.probe,
    }
    print("\n".join(_tables(run, values)))
    # What is not the whole measurement must not pass for it.
    is_whole = not options.quick and not options.only and options.step_ms == DEFAULT_STEP_MS
    if output := options.output or (RESULTS if is_whole else None):
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(document, indent=1) + "\n")
    if picture := options.plot or (PICTURE if is_whole else None):
        _draw(run.cells, picture)
    return 1 if options.strict and missed(BARS, values) else 0


def _tables(run: Run, values: dict[str, float | None]) -> list[str]:
    lines: list[str] = []
    if run.cells:
        lines += [*cell_table(run.cells), "", *part_table(run.cells), "", *bar_table(values), ""]
    for cost in run.probe:
        told = ", ".join(f"{name} {value:.0f}" for name, value in cost["call_ns"].items())
        lines.append(f"probe {cost['program']}: ns per call: {told}")
    return [*lines, *textwrap.wrap(f"injected: {INJECTED}", WIDTH)]


def _draw(cells: Sequence[Cell], picture: Path) -> None:
    try:
        plot(cells, picture)
    except ImportError:
        print("no picture: matplotlib is not installed (pip install 'fairsched[bench]')", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
