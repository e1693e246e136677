# SPDX-License-Identifier: Apache-2.0
"""The tables of README.md, docs/fairness.md and docs/scale.md that quote summaries: markdown between markers.

    <!-- figures: headline -->   README's table: four figures of the headline scenarios, without and with fairsched
    <!-- figures: core -->       the figures of ``make bench-core`` that are about fairness
    <!-- figures: scale -->      the figures of ``make bench-scale``
    <!-- figures: rungs -->      what is left of two scenarios on other accounts and with other brakes
    <!-- figures: end -->        ends each of them

``python -m benchmarks.fair.table --write`` fills them. They are made from ``fairness.json``, ``core.json`` and
``scale.json`` alone; a unit test compares. The other tables of docs/fairness.md: ``quoted``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import core as core_suite
from benchmarks import scale_figures
from benchmarks.bars import Bar, show
from benchmarks.fair import honest, marked, results, rung_page, summary
from benchmarks.fair.bars import BASELINE, OURS
from benchmarks.fair.results import Document, by_policy
from benchmarks.fair.rows import mean_text, spread_of

REPOSITORY = results.ROOT.parents[1]
DOCUMENTS = (Path("README.md"), Path("docs/fairness.md"), Path("docs/scale.md"))
SCENARIOS = ("seed-4", "weights-4211")
HEADLINE = (
    ("share_error_max_points", "largest share error, points"),
    (honest.STEP_P99, "p99 step, worst honest tenant, ms"),
    ("busy_ratio", "GPU busy, %"),
    ("cpu_ratio", "CPU of fairsched, % of one core"),
)
_WORD = "figures"
_COST = ("probe_ratio", "observe_throughput_ratio", "daemon_cpu_ratio", "daemon_rss_bytes")
"""Of the core figures those that docs/overhead.md has."""


def runs_of(scenario: str, root: Path = results.ROOT) -> dict[str, list[Document]]:
    """The committed runs of a scenario by policy; empty where it was never measured."""
    return by_policy(document for document in summary.read(root) if document["scenario"] == scenario)


def headline(root: Path = results.ROOT) -> str:
    """Means over the seeds."""
    runs = [runs_of(name, root) for name in SCENARIOS]
    head = ["", *(f"`{name}`, {policy}" for name in SCENARIOS for policy in (BASELINE, OURS))]
    rows = [
        [
            label,
            *(
                mean_text(spread_of(found[policy], figure, is_worst=False), figure)
                for found in runs
                for policy in (BASELINE, OURS)
            ),
        ]
        for figure, label in HEADLINE
    ]
    return marked.table(head, rows)


def core(root: Path = results.ROOT) -> str:
    """Without what docs/overhead.md has."""
    bars = [(bar.what, bar) for bar in core_suite.BARS if bar.key not in _COST]
    return _judged(bars, root / "core.json")


def scale(root: Path = results.ROOT) -> str:
    """All of it; docs/scale.md says what each name means."""
    return _judged([(f"`{bar.key}`", bar) for bar in scale_figures.BARS], root / "scale.json")


def _judged(bars: Sequence[tuple[str, Bar]], path: Path) -> str:
    values = json.loads(path.read_text(encoding="utf-8"))
    rows = [
        (
            label,
            show(values[bar.key], bar.unit),
            f"{bar.sign} {show(bar.limit, bar.unit)}",
            {None: "-", True: "yes", False: "**NO**"}[bar.is_met(values[bar.key])],
        )
        for label, bar in bars
    ]
    where = f"{values['machine']}, {values['cpus']} CPUs, Linux {values['kernel']}"
    made = f"- {where}; commit {values['commit']}, {values['started'][:10]}"
    return f"{marked.table(('figure', 'measured', 'bar', 'met'), rows)}\n\n{made}"


def rungs(root: Path = results.ROOT) -> str:
    """Means over the seeds."""
    return rung_page.brief(summary.read(root))


def filled(text: str, root: Path = results.ROOT, name: str = "the text") -> str:
    """The text with its tables written anew. Raises ResultError for a section that nothing writes."""
    sections = {"headline": headline, "core": core, "scale": scale, "rungs": rungs}
    return marked.filled(text, _WORD, {key: partial(make, root) for key, make in sections.items()}, name)


def write_documents(repository: Path = REPOSITORY, root: Path = results.ROOT) -> list[Path]:
    """Fill the tables of the documents; returns the files that changed."""
    paths = [repository / name for name in DOCUMENTS]
    return marked.written(paths, lambda path, text: filled(text, root, str(path)))
