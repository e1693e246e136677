# SPDX-License-Identifier: Apache-2.0
"""The rows of the tables, before anybody lays them out as text or as markdown (pure).

Terms. row: (name, cells). verdict: see bars. extent: how many seeds of what length.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.bars import told
from benchmarks.fair import honest, results
from benchmarks.fair.bars import (
    BASELINE,
    GAIN,
    GAIN_WITHOUT_BAR,
    OURS,
    Verdict,
    judge,
    number,
    scale_of,
    unit_of,
)
from benchmarks.fair.results import Document, by_policy, leaf_values, whole
from benchmarks.stats import Spread, spread

NOT_MEASURED = "not measured yet"
UNJUDGED = "share_error_max_points"
"""Shown of scenarios that have no bar."""
CELL = 11

# (figure, its name in a column of 20 together with its unit, whether it is the worst tenant's)
ROWS: tuple[tuple[str, str, bool], ...] = (
    ("share_error_max_points", "share error max", False),
    ("jain_1s_mean", "Jain 1 s mean", False),
    ("jain_1s_worst", "Jain 1 s worst", False),
    ("jain_10s_mean", "Jain 10 s mean", False),
    ("jain_10s_worst", "Jain 10 s worst", False),
    ("lag_max_ns", "lag max", False),
    ("least_of_due_10s_ratio", "least of due, 10 s", False),
    ("tokens_cv_across_ratio", "token/s CV across", False),
    ("tokens_cv_ratio", "token/s CV in time", True),
    ("step_p99_ms", "step p99 worst", True),
    (honest.STEP_P99, "step p99 honest", True),
    ("step_p50_vs_solo_ratio", "step p50 / solo", True),
    ("step_p99_vs_solo_ratio", "step p99 / solo", True),
    ("queue_delay_ms", "queue delay worst", True),
    ("busy_ratio", "GPU busy", False),
    ("held_ms_per_s", "held back", False),
    ("hold_longest_ms", "longest hold", False),
    ("drain_overshoot_p95_ms", "overshoot p95", False),
    ("take_back_p95_ms", "take-back p95", False),
    ("take_back_beyond_drain_p95_ms", "beyond drain p95", False),
    ("cpu_ratio", "policy's CPU", False),
    ("rss_bytes", "policy's memory", False),
    ("account_error_max_ratio", "account error max", False),
    ("account_error_sure_max_ratio", "account worst 2 s", False),
    ("account_unsettled_s", "unsettled", False),
    ("held_unsettled_ms", "held meanwhile", False),
)


def labelled(figure: str, label: str) -> str:
    """With the unit it is shown in."""
    return f"{label} {unit_of(scale_of(figure))}".rstrip()


def figure_of(document: Document, figure: str, is_worst: bool) -> float | None:
    """Of the run, or of the tenant that fared worst."""
    if figure == honest.STEP_P99:
        found = honest.step_p99([document])
        return found.mean if found else None
    if not is_worst:
        return whole(document, figure)
    known = [value for value in leaf_values(document, figure).values() if value is not None]
    return max(known, default=None)


def spread_of(documents: Sequence[Document], figure: str, is_worst: bool) -> Spread | None:
    """Over the seeds of one scenario and policy."""
    if figure == honest.STEP_P99:
        return honest.step_p99(documents)
    return spread(figure_of(document, figure, is_worst) for document in documents)


def figure_rows(columns: Mapping[str, Sequence[Document]]) -> Iterable[tuple[str, list[Spread | None], str]]:
    """(label, a spread per policy, scale) of each figure that was measured at all."""
    for figure, label, is_worst in ROWS:
        spreads = [spread_of(same, figure, is_worst) for same in columns.values()]
        if any(spreads):
            yield labelled(figure, label), spreads, scale_of(figure)


def cell(value: Spread | None, scale: str, between: str = "+-") -> str:
    """Mean and interval; of a ratio near 1, three digits. With ``+-`` at most CELL characters, at the cost of
    decimals."""
    if value is None:
        return "-"
    parts = [value.mean] if value.ci95 is None else [value.mean, value.ci95]
    texts = [_short_ratio(part) if scale == "ratio" else number(part, scale) for part in parts]
    if len("+-".join(texts)) > CELL:
        texts = [f"{float(text):.0f}" if text != "never" else text for text in texts]
    return between.join(texts)


def _short_ratio(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


@dataclass(frozen=True)
class Overview:
    """Every bar on every scenario."""

    rows: tuple[tuple[str, ...], ...]
    """(scenario, what, none, fairsched, bar, met); those of a scenario follow each other."""
    notes: tuple[str, ...]


def overview_of(documents: Sequence[Document], names: Iterable[str]) -> Overview:
    """``names``: scenarios that are shown even where they have no results."""
    wanted = list(dict.fromkeys([*names, *(document["scenario"] for document in documents)]))
    verdicts = [v for v in judge(documents, wanted) if v.scenario in wanted]
    judged = list(dict.fromkeys(verdict.scenario for verdict in verdicts))
    verdicts.sort(key=lambda verdict: judged.index(verdict.scenario))
    rows = []
    for name in judged:
        rows += [_verdict_row(verdict, documents) for verdict in verdicts if verdict.scenario == name]
        if _has_gain_without_bar(name):
            rows.append(_unjudged_gain(name, documents))
    for name in sorted(set(wanted) - set(judged)):
        if _has_gain_without_bar(name):
            rows.append(_unjudged_gain(name, documents))
        else:
            rows.append(_unjudged_row(name, documents, UNJUDGED, "share error, largest"))
    notes = [f"{v.scenario}, {v.bar.what}: {v.note}" for v in verdicts if v.note]
    return Overview(tuple(rows), tuple(notes))


def _has_gain_without_bar(name: str) -> bool:
    return any(fnmatch.fnmatch(name, glob) for glob in GAIN_WITHOUT_BAR)


def _unjudged_gain(name: str, documents: Sequence[Document]) -> tuple[str, ...]:
    return _unjudged_row(name, documents, "gain_points", GAIN, is_worst=True)


def _verdict_row(verdict: Verdict, documents: Sequence[Document]) -> tuple[str, ...]:
    bar, without = verdict.bar, verdict.without
    has_baseline = any(d["policy"] == BASELINE and d["scenario"] == verdict.scenario for d in documents)
    none = "1" if bar.against_none and has_baseline else number(without.mean if without else None, bar.scale)
    ours = number(verdict.value.mean if verdict.value else None, bar.scale)
    if verdict.value is None and verdict.is_met:
        ours = "unsure"
    return verdict.scenario, bar.what, none, ours, bar.limit_text(), told(verdict.is_met)


def _unjudged_row(
    name: str, documents: Sequence[Document], figure: str, what: str, *, is_worst: bool = False
) -> tuple[str, ...]:
    played = by_policy([document for document in documents if document["scenario"] == name])
    found = {policy: spread(figure_of(d, figure, is_worst) for d in same) for policy, same in played.items()}
    none, ours = (mean_text(found.get(policy), figure) for policy in (BASELINE, OURS))
    return name, f"{what}, {unit_of(scale_of(figure))}", none, ours, "-", "-"


def mean_text(value: Spread | None, figure: str) -> str:
    """The mean over the seeds, without its unit."""
    return number(value.mean if value else None, scale_of(figure))


def made(documents: Sequence[Document]) -> list[str]:
    """On what, of what and how often it was measured."""
    if not documents:
        return []
    first = documents[0]
    lines = [f"{first['machine'] or 'unknown machine'}, {first['cpus'] or '?'} CPUs, Linux {first['kernel']}"]
    for key, what in (("machine", "machines"), ("kernel", "kernels")):
        values = sorted({str(document[key]) for document in documents})
        if len(values) > 1:
            lines.append(f"several {what}: {', '.join(values)}")
    commits = sorted({str(document["commit"] or "unknown") for document in documents})
    return [*lines, f"{extent(documents)}; commit {', '.join(commits)}"]


def extent(documents: Sequence[Document]) -> str:
    """How many seeds of what length."""
    seeds = sorted({len(same) for s in scenarios_of(documents).values() for same in by_policy(s).values()})
    seconds = sorted({document["seconds"] for document in documents})
    counts = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    length = f"{seconds[0]:g}" if len(seconds) == 1 else f"{seconds[0]:g} to {seconds[-1]:g}"
    return f"{counts} {'seed' if counts == '1' else 'seeds'}, {length} s each"


def scenarios_of(documents: Iterable[Document]) -> dict[str, list[Document]]:
    """Documents of each scenario."""
    found: dict[str, list[Document]] = {}
    for document in documents:
        found.setdefault(document["scenario"], []).append(document)
    return found


def changed(documents: Sequence[Document]) -> list[str]:
    """Says of which scenarios the results are out of date."""
    names = results.changed_scenarios(documents)
    return [f"scenario file changed since it was measured: {', '.join(names)}"] if names else []
