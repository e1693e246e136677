# SPDX-License-Identifier: Apache-2.0
"""Peers' own code on the simulated GPU: HAMi-core, nvshare and XSched around the same loads, beside fairsched.

Problem. The rivals (benchmarks/rivals) are our making. What others ship is to be measured as they ship it, and none of
it may lie in this repository.

Approach. The user builds them and says where they lie (docs/fairness.md has the commands); peers_attached.py puts them
around the loads. Stage, loads, truth and measures are those of benchmarks/fair. Every launch has ``--blocks`` blocks,
whoever the tenant and whatever the policy: HAMi-core's limit counts them, and the simulated GPU does not look.

Terms. peer: somebody else's program. part: what a tenant is owed of the GPU when all want it. xsched-one: XSched with
one command of a queue in flight, instead of its sixteen.

Examples:
  python -m benchmarks.peers --hami-core hami/build/libvgpu.so --nvshare nvshare/src --xsched xsched/output
  python -m benchmarks.peers --scenario weights-4211 --equal --nvshare nvshare/src --seed 1 --seconds 10
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import INTERRUPTED, say_error, stop_signals
from benchmarks.fair import marked, results
from benchmarks.fair.controllers import Controller, controller
from benchmarks.fair.measures import measure
from benchmarks.fair.scenario import Load, Play, find, load
from benchmarks.fair.stage import Stage
from benchmarks.machine import describe
from benchmarks.peers_attached import HamiCore, Nvshare, Peer, Xsched, parts
from benchmarks.rig import Rig
from fairsched.errors import ConfigError, FairschedError
from fairsched.simgpu import Worker, Workload


@dataclass(frozen=True)
class _Gridded(Workload):
    """A load whose kernels have this many blocks."""

    blocks: int = 1


def equal(play: Play) -> Play:
    """The same with every weight 1."""
    tenants = {name: one.model_copy(update={"weight": 1.0}) for name, one in play.scenario.tenants.items()}
    scenario = play.scenario.model_copy(update={"tenants": tenants})
    return replace(play, name=f"{play.name}, equal weights", scenario=scenario)


class _PeerStage(Stage):
    """With the environment, the libcuda and the blocks of this measurement."""

    def __init__(
        self, rig: Rig, play: Play, seed: int, undo: contextlib.ExitStack, chosen: Controller, blocks: int
    ) -> None:
        super().__init__(rig, play, seed, undo)
        self._peer, self._blocks = chosen if isinstance(chosen, Peer) else None, blocks

    def _spawn(
        self, load: Load, where: Path, name: str, owner: int, seed: int, *, wait: bool = True
    ) -> tuple[list[Worker], list[subprocess.Popen[bytes]]]:
        env = {"FAIRSCHED_SIM_OWNER": str(owner)} | (
            self._peer.env(self._leaf_of[owner]) if self._peer else {}
        )
        workers = []
        for process in range(load.processes):
            plain = load.workload(self._libcuda(load), self._seed * 100_003 + seed + process)
            given = {field.name: getattr(plain, field.name) for field in fields(plain)}
            workload = _Gridded(**given, blocks=self._blocks)
            workers.append(self._rig.host.spawn(workload, where, f"{name}.{process}", env, wait))
        return workers, []

    def _libcuda(self, load: Load) -> str:
        return (self._peer.libcuda if self._peer else None) or super()._libcuda(load)


def _asked(play: Play, policy: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """What tells one run from another."""
    return {
        "scenario": play.name,
        "policy": policy,
        "seed": seed,
        "seconds": options.seconds,
        "blocks": options.blocks,
    }


def perform(play: Play, chosen: Controller, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Play it and measure."""
    scenario = play.scenario
    if scenario.strangers or any(one.trick for leaf in play.leaves().values() for one in leaf.loads):
        raise ConfigError(f"{play.name}: has strangers or tricks", remedy="choose a scenario without")
    specs = [gpu.spec() for gpu in scenario.gpus]
    with Rig(*specs) as rig, contextlib.ExitStack() as undo:
        stage = _PeerStage(rig, play, asked["seed"], undo, chosen, asked["blocks"])
        with chosen.running(rig, play, stage.directories()) as control:
            stage.open()
            recording = stage.record(control, asked["policy"], asked["seconds"], lambda _done: None)
    figures = measure(recording)
    return {
        "share_error_max_points": figures.whole.share_error_max_points,
        "busy_ratio": figures.whole.busy_ratio,
        "share_ratio": {leaf: one.share_ratio for leaf, one in figures.leaves.items()},
        "step_p99_ms": {leaf: one.step_p99_ms for leaf, one in figures.leaves.items()},
        "part_ratio": parts(play),
        "notes": list(recording.notes),
    }


def table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A Markdown table per scenario: means over the seeds, and the extremes of the error."""
    lines: list[str] = []
    for name, blocks in dict.fromkeys((run["scenario"], run["blocks"]) for run in runs):
        mine = [run for run in runs if (run["scenario"], run["blocks"]) == (name, blocks)]
        leaves = list(mine[0]["part_ratio"])
        owed = [f"{leaf} ({100 * mine[0]['part_ratio'][leaf]:.1f})" for leaf in leaves]
        seeds = len({run["seed"] for run in mine})
        length = f"{seeds} seeds, {mine[0]['seconds']:g} s each, {blocks} blocks a launch"
        lines += ["", f"`{name}`, {length}; shares in %, in brackets what is owed:", ""]
        rows = []
        for policy in dict.fromkeys(run["policy"] for run in mine):
            those = [run for run in mine if run["policy"] == policy]
            errors = [_number(run["share_error_max_points"]) for run in those]
            cells = [f"{np.mean(errors):.2f}", f"{min(errors):.2f} to {max(errors):.2f}"]
            cells.append(f"{100 * np.mean([_number(run['busy_ratio']) for run in those]):.1f}")
            cells += [
                f"{100 * np.mean([_number(run['share_ratio'][leaf]) for run in those]):.1f}"
                for leaf in leaves
            ]
            rows.append([policy, *cells])
        head = ["", "share error max, points", "of the seeds", "GPU busy %", *owed]
        lines += marked.table(head, rows).splitlines()
    return lines


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def chosen_peers(options: argparse.Namespace) -> dict[str, Controller]:
    """What is played, by name. Raises ConfigError for a path where nothing is."""
    found: dict[str, Controller] = {"none": Controller(), "fairsched": controller("fairsched")}
    if options.hami_core:
        found["hami-core"] = HamiCore(options.hami_core)
    if options.nvshare:
        found["nvshare"] = Nvshare(options.nvshare)
    if options.xsched:
        found["xsched"] = Xsched(options.xsched)
        found["xsched-one"] = Xsched(options.xsched, threshold=1, batch_size=1)
    if missing := sorted(set(options.policy) - set(found)):
        raise ConfigError(
            f"--policy {missing[0]}: not there", remedy=f"one of {', '.join(found)}, or say its path"
        )
    return {name: one for name, one in found.items() if not options.policy or name in options.policy}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--hami-core", type=Path, metavar="FILE", help="its libvgpu.so")
    add("--nvshare", type=Path, metavar="DIR", help="its libnvshare.so, nvshare-scheduler and nvsharectl")
    add("--xsched", type=Path, metavar="DIR", help="its bin/xserver and lib/libshimcuda.so")
    add(
        "--scenario", type=Path, default=Path("weights-4211"), metavar="FILE", help="a file or a shipped name"
    )
    add("--equal", action="store_true", help="every weight is 1")
    add(
        "--policy", action="append", default=[], metavar="NAME", help="only this; may be given more than once"
    )
    add("--seed", action="append", default=[], type=int, metavar="S", help="may be given more than once")
    add("--seconds", type=float, default=30.0, metavar="S", help="measured part; default 30")
    add("--blocks", type=int, default=4096, metavar="N", help="of each launch; default 4096")
    add("--json", type=Path, metavar="OUT", help="the summary; what is in it already is not played again")
    options = parser.parse_args(argv)
    if not 0 < options.seconds <= 600 or not 1 <= options.blocks < 2**31:
        parser.error("--seconds is more than 0 and at most 600, --blocks 1 or more")
    return options


def found_runs(path: Path | None) -> list[dict[str, Any]]:
    """What an earlier command has written there. Raises ResultError."""
    if path is None or not path.exists():
        return []
    try:
        runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise results.ResultError(f"{path}: no summary: {error}", remedy="name another --json") from error
    return runs


def played(options: argparse.Namespace, peers: Mapping[str, Controller], play: Play) -> list[dict[str, Any]]:
    """All that is asked for, and what was there; written after each run."""
    runs = found_runs(options.json)
    for seed in options.seed or [1, 2]:
        for policy, chosen in peers.items():
            asked = _asked(play, policy, seed, options)
            if any(asked.items() <= run.items() for run in runs):
                continue
            about = describe()
            runs.append({**asked, **perform(play, chosen, asked), **about})
            error = runs[-1]["share_error_max_points"]
            print(f"{play.name} {policy} seed {seed}: share error {error} points", file=sys.stderr)
            if options.json:
                results.write_json(options.json, {"runs": runs})
    return runs


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    try:
        peers = chosen_peers(options)
        play = load(find(options.scenario))
        with stop_signals():
            runs = played(options, peers, equal(play) if options.equal else play)
    except FairschedError as error:
        return say_error(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    print("\n".join(table(runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
