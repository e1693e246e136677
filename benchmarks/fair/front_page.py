# SPDX-License-Identifier: Apache-2.0
"""The tables of README.md, docs/fairness.md and docs/scale.md that quote summaries: markdown between markers.

    <!-- figures: headline -->   README's table: four figures of the headline scenarios, without and with fairsched
    <!-- figures: core -->       the figures of ``make bench-core`` that are about fairness
    <!-- figures: scale -->      the figures of ``make bench-scale``
    <!-- figures: end -->        ends each of them

``python -m benchmarks.fair.table --write`` fills them. They are made from ``summary.json`` of a scenario, ``core.json``
and ``scale.json`` alone; a unit test compares. What the documents of single runs say: ``quoted``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import figures, scale_figures
from benchmarks.fair import honest, marked, results
from benchmarks.fair.bars import BASELINE, OURS, UNSURE_HELD_MS_PER_S
from benchmarks.fair.results import Spread
from benchmarks.fair.rows import mean_text

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
_NATURE = "nature-"


def read_summary(scenario: str, root: Path = results.ROOT) -> dict[str, Any]:
    """Raises OSError where it was never measured."""
    path = results.path_of(scenario, BASELINE, 0, root).with_name(results.SUMMARY)
    summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return summary


def figure_of(summary: dict[str, Any], policy: str, figure: str) -> Spread | None:
    """Of the run, or of its worst honest tenant."""
    found = summary["policies"][policy]
    if figure != honest.STEP_P99:
        return _spread(found["whole"].get(figure))
    leaves = {leaf: _spread(values.get(honest.OF_LEAF)) for leaf, values in found["leaves"].items()}
    return honest.worst(summary["scenario"], leaves)


def _spread(values: dict[str, Any] | None) -> Spread | None:
    return None if values is None else Spread(**values)


def headline(root: Path = results.ROOT) -> str:
    """Means over the seeds."""
    summaries = [read_summary(name, root) for name in SCENARIOS]
    head = ["", *(f"`{name}`, {policy}" for name in SCENARIOS for policy in (BASELINE, OURS))]
    rows = [
        [
            label,
            *(
                mean_text(figure_of(s, policy, figure), figure)
                for s in summaries
                for policy in (BASELINE, OURS)
            ),
        ]
        for figure, label in HEADLINE
    ]
    return marked.table(head, rows)


def core(root: Path = results.ROOT) -> str:
    """Without what docs/overhead.md has."""
    bars = [(bar.what, bar) for bar in figures.BARS if bar.key not in _COST]
    return _judged(bars, root / "core.json")


def scale(root: Path = results.ROOT) -> str:
    """All of it; docs/scale.md says what each name means."""
    return _judged([(f"`{bar.key}`", bar) for bar in scale_figures.BARS], root / "scale.json")


def _judged(bars: Sequence[tuple[str, figures.Bar]], path: Path) -> str:
    values = json.loads(path.read_text(encoding="utf-8"))
    rows = [
        (
            label,
            figures.show(values[bar.key], bar.unit),
            f"{'<=' if bar.is_upper else '>='} {figures.show(bar.limit, bar.unit)}",
            {None: "-", True: "yes", False: "**NO**"}[bar.is_met(values[bar.key])],
        )
        for label, bar in bars
    ]
    where = f"{values['machine']}, {values['cpus']} CPUs, Linux {values['kernel']}"
    made = f"- {where}; commit {values['commit']}, {values['started'][:10]}"
    return f"{marked.table(('figure', 'measured', 'bar', 'met'), rows)}\n\n{made}"


def natures(root: Path = results.ROOT) -> tuple[list[str], list[str]]:
    """(scenarios with a GPU of another nature, those of them in which fairsched holds nobody in any seed)."""
    every = [path.parent.name for path in sorted(root.glob(f"{_NATURE}*/{results.SUMMARY}"))]
    held = {name: figure_of(read_summary(name, root), OURS, "held_ms_per_s") for name in every}
    return every, [n for n, value in held.items() if value is None or value.max <= UNSURE_HELD_MS_PER_S]


def filled(text: str, root: Path = results.ROOT, name: str = "the text") -> str:
    """The text with its tables written anew. Raises ResultError for a section that nothing writes."""
    sections = {"headline": headline, "core": core, "scale": scale}
    return marked.filled(text, _WORD, {key: partial(make, root) for key, make in sections.items()}, name)


def write_documents(repository: Path = REPOSITORY, root: Path = results.ROOT) -> list[Path]:
    """Fill the tables of the documents; returns the files that changed."""
    paths = [repository / name for name in DOCUMENTS]
    return marked.written(paths, lambda path, text: filled(text, root, str(path)))
