# SPDX-License-Identifier: Apache-2.0
"""docs/overhead.md, written from the committed results: ``python -m benchmarks.overhead_page``.

Prints the page; ``--write`` writes it. Each row names the command that measures it anew.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bars import show
from benchmarks.machine import ROOT

PAGE = Path("docs/overhead.md")
RESULTS = ROOT / "benchmarks/results"

_INTRO = """\
# What it costs

<!-- Written by `python -m benchmarks.overhead_page --write` from benchmarks/results; a test compares it with them. -->

What fairsched takes from a node, and from the programs it looks at. No GPU is involved in any of it: probes, system
calls, a Python loop. Where a bar is missed, the last section says what is behind it. The figures of `make bench-core`
are without exporter, history and escalation, which are a second process ([what it costs](decisions/0013-exporter.md)).
"""

_OUTRO = """\
## What to do when it is too much

* **mode `observe`** accounts and holds nobody, and looks every `tick_ms` (100) instead of every 20 to 100 ms.
* **`mechanisms`** turns each part off by itself: `driver` (the probes on ioctls), `pid_view`, `device_gate`.
* **Fewer GPUs or tenants in contention** cost less: an idle GPU costs a look at one word, a tenant without a context
  nothing.
* The daemon measures itself: `fairsched_cpu_ratio`, `fairsched_process_cpu_seconds_total`,
  `fairsched_process_resident_bytes`, `fairsched_tick_duration_seconds` ([metrics.md](metrics.md)).

## Close to their bars

The daemon's processor time, which was 4.2 to 5.1 % in the runs before: what is paid for is a processor that wakes with
cold caches ([0006](decisions/0006-ticks.md)).

Ticks while the exporter is attacked: it is a process of its own at a low priority, on two cores that the attackers use
as well; requests as fast as they are answered, 384,000 of them, made it 1.11 ([0013](decisions/0013-exporter.md)).

An ioctl that allocates or frees memory is looked at on both sides, its arguments are read from the program's memory,
and it is summed up at each level of cgroups: 1.07 us from a cgroup below the root, 1.30 from eight levels
(`make bench-ioctl ARGS="--depth 8"`); the table has four, as a container of a pod. On a machine that does other work
it is beyond the bar; `least` in what the command prints is what no neighbour adds to. Programs make such calls at
their start and seldom later; a launch is no ioctl ([driver.md](driver.md)).

## Why some bars are missed

* Many GPUs and tenants: a third of it is edges, a third holds, of which most is the kernel's
  ([scale.md](scale.md#the-floor)).
"""


class Row(NamedTuple):
    """One figure and where it comes from."""

    what: str
    figure: str
    bar: str
    is_met: bool | None
    command: str


def page() -> str:
    """Markdown. Raises OSError, KeyError where results are missing."""
    files = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    lines = [_INTRO, "| what | measured | bar | met | by |", "|---|---|---|---|---|"]
    for row in _rows(files):
        met = {None: "-", True: "yes", False: "**NO**"}[row.is_met]
        lines.append(f"| {row.what} | {row.figure} | {row.bar} | {met} | `{row.command}` |")
    used = ("core", "scale", "ioctl", "pid_view", "scrape")
    lines += ["", *(_made(name, files[name]) for name in used), "", _OUTRO]
    return "\n".join(lines)


def _made(name: str, document: dict[str, Any]) -> str:
    where = f"{document['machine']}, {document['cpus']} CPUs, Linux {document['kernel']}"
    return f"- `{name}.json`: {where}, commit {document['commit']}, {document['started'][:10]}"


def _rows(files: dict[str, Any]) -> list[Row]:
    core, scale, ioctl, scrape = (files[name] for name in ("core", "scale", "ioctl", "scrape"))
    probe = dict(re.findall(r"(none|at_0|at_10) (\d+)", core["notes"]["probe_ratio"]))
    view = files["pid_view"]["calls"]["list, 3 own of 8"]
    throughput = core["observe_throughput_ratio"]
    memory, control = ioctl["bar"], ioctl["calls"]["control"]
    return [
        Row(
            "a launch, by the probe behind its first instruction",
            f"{probe['at_10']} ns (at its first: {probe['at_0']} ns)",
            "<= .4 of the other",
            core["probe_ratio"] <= core["bars"]["probe_ratio"],
            "make bench-core",
        ),
        Row(
            "tokens/s of a decoder, observed / not",
            f"{throughput:.3f}",
            ">= .985",
            throughput >= core["bars"]["observe_throughput_ratio"],
            "make bench-core",
        ),
        _at_most(
            "CPU, four tenants in contention, of a core",
            core,
            "daemon_cpu_ratio",
            "percent",
            "make bench-core",
        ),
        _at_most("memory, with its helpers", core, "daemon_rss_bytes", "bytes", "make bench-core"),
        _at_most(
            "CPU, 64 tenants on 8 GPUs, of a core", scale, "cpu_ratio_8x64", "percent", "make bench-scale"
        ),
        _at_most(
            "a tick, 1,000 tenants on one GPU, p99", scale, "tick_p99_ms_1x1000", "ms", "make bench-scale"
        ),
        Row(
            "an ioctl that allocates or frees memory",
            f"{memory['added_per_call_ns'] / 1e3:.2f} us",
            f"<= {memory['at_most_ns'] / 1e3:g} us",
            memory["is_met"],
            "make bench-ioctl",
        ),
        Row(
            "any other control call",
            f"{control['added_per_call_ns'] / 1e3:.2f} us",
            "-",
            None,
            "make bench-ioctl",
        ),
        Row(
            "a process list of 8 in a container, rewritten",
            f"{view['added_on_uprobes_ns'] / 1e3:.1f} us",
            "-",
            None,
            "make bench-pid-view",
        ),
        _at_most(
            "a scrape, 512 pairs of tenant and GPU, p95",
            scrape,
            "scrape_p95_ms",
            "ms",
            "make bench-scrape",
        ),
        _at_most(
            "ticks' p99 while the exporter is attacked", scrape, "tick_p99_ratio", "x", "make bench-scrape"
        ),
    ]


def _at_most(what: str, document: dict[str, Any], figure: str, unit: str, command: str) -> Row:
    value, bar = document[figure], document["bars"][figure]
    return Row(what, _text(value, unit), f"<= {_text(bar, unit)}", value <= bar, command)


def _text(value: float, unit: str) -> str:
    return f"{value:.2f} {unit}" if unit in ("ms", "x") else show(value, unit)


def main(argv: Sequence[str]) -> int:
    if "--write" in argv:
        (ROOT / PAGE).write_text(page(), encoding="utf-8")
        print(f"written: {PAGE}")
    else:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
