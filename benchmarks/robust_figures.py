# SPDX-License-Identifier: Apache-2.0
"""From the documents of many draws to their distribution, its bars, and how both are shown (pure).

Problem. A mean over draws hides the one in which a policy does harm.

Approach. Of each figure the median, the value that nine of ten draws keep, and the worst; every draw in which fairsched
is further off than nobody by more than a point, by number. The summary holds the figures of every draw, so a table is
made of it alone; draws that were not played under both policies are counted and do not enter.

Terms. p90: nine of ten draws are no worse; of a figure that should be large, its 10th percentile. account error: the
largest, without a sign, of the leaves that had a tenth of the GPU; sure: of any two seconds in which the account was
sure of itself.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bars import WIDTH, Bar, missed, render, show
from benchmarks.fair import marked
from benchmarks.fair.account import LEAST_SHARE_RATIO
from benchmarks.fair.bars import BASELINE, OURS
from benchmarks.fair.results import Document, leaf_values, whole
from benchmarks.robust_draws import Draw
from benchmarks.stats import percentile

WORSE_BY_POINTS = 1.0
NAMED = 5
"""Draws that are named as the worst."""
WORD = "robustness"
"""Of the markers in docs/robustness.md."""
Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """Of one play; None where it does not apply."""

    key: str
    what: str
    unit: str
    of: Callable[[Document], float | None]
    is_bad_when_large: bool = True


def _account_error(document: Document) -> float | None:
    shares = leaf_values(document, "share_ratio")
    errors = leaf_values(document, "account_error_ratio")
    known = [
        abs(e) for leaf, e in errors.items() if e is not None and (shares[leaf] or 0) >= LEAST_SHARE_RATIO
    ]
    return max(known, default=None)


def _unsure(document: Document) -> float | None:
    known = [value for value in leaf_values(document, "low_confidence_ratio").values() if value is not None]
    return statistics.fmean(known) if known else None


def _whole(name: str) -> Callable[[Document], float | None]:
    return lambda document: whole(document, name)


FIGURES = (
    Figure("share_error_points", "share error", "points", _whole("share_error_max_points")),
    Figure("account_error_ratio", "account error", "percent", _account_error),
    Figure(
        "account_error_sure_ratio",
        "account error, 2 s, sure",
        "percent",
        _whole("account_error_sure_max_ratio"),
    ),
    Figure("unsure_ratio", "time unsure", "percent", _unsure),
    Figure("jain_1s", "Jain, 1 s, mean", "ratio", _whole("jain_1s_mean"), is_bad_when_large=False),
    Figure("busy_ratio", "GPU busy", "percent", _whole("busy_ratio"), is_bad_when_large=False),
    Figure("hold_longest_ms", "longest hold", "ms", _whole("hold_longest_ms")),
)
TRAITS = (
    "slice 1.02 ms",
    "slice 2.05 ms",
    "slice 2.1 ms",
    "slice 9.96 ms",
    "slice 29.9 ms",
    "jitter",
    "unequal",
    "no preemption",
    "two side by side",
    "a stranger",
    "constant kernels",
    "launch-bound",
    "one by one",
    "on/off",
    "Poisson",
    "with copies",
)
"""Words of a description (robust_draws.describe)."""
BARS = (
    Bar("share_error_median_points", "share error, median of the draws", 0.7, True, "points"),
    Bar("share_error_p90_points", "share error, nine of ten draws", 3.0, True, "points"),
    Bar("share_error_worst_points", "share error, worst draw", 8.0, True, "points"),
    Bar("worse_than_none", "draws further off than none by more than a point", 0.0, True, "count"),
)


def figures_of(document: Document) -> dict[str, float | None]:
    """What is kept of one play."""
    values = {figure.key: figure.of(document) for figure in FIGURES}
    return {key: None if value is None else float(f"{value:.6g}") for key, value in values.items()}


# ---- the summary ----


def distribution(values: Iterable[float | None], *, is_bad_when_large: bool) -> dict[str, float] | None:
    """Median, p90, worst; None where nothing was measured."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    sign = 1.0 if is_bad_when_large else -1.0
    bad = [sign * value for value in known]
    return {
        "median": statistics.median(known),
        "p90": sign * percentile(bad, 0.9),
        "worst": sign * max(bad),
    }


def summed_up(draws: Sequence[tuple[Draw, Mapping[str, Document]]]) -> dict[str, Any]:
    """All but who made it. ``draws``: each with its documents by policy."""
    both = [(draw, of) for draw, of in draws if _is_whole(of)]
    kept: list[dict[str, Any]] = [
        {
            "number": draw.number,
            "description": draw.description,
            BASELINE: figures_of(of[BASELINE]),
            OURS: figures_of(of[OURS]),
        }
        for draw, of in both
    ]
    spread = {
        policy: {
            figure.key: distribution(
                (one[policy][figure.key] for one in kept), is_bad_when_large=figure.is_bad_when_large
            )
            for figure in FIGURES
        }
        for policy in (BASELINE, OURS)
    }
    worse = [one["number"] for one in kept if is_worse(one)]
    return {
        **_judged_figures(spread[OURS]["share_error_points"], len(worse) if kept else None),
        "played": len(kept),
        "not_played": [draw.number for draw, of in draws if not _is_whole(of)],
        "worse_than_none_numbers": worse,
        "distribution": spread,
        "draws": {str(one["number"]): {k: v for k, v in one.items() if k != "number"} for one in kept},
    }


def _is_whole(of: Mapping[str, Document]) -> bool:
    return BASELINE in of and OURS in of


def _judged_figures(errors: Mapping[str, float] | None, worse: int | None) -> dict[str, float | None]:
    given = errors or {}
    parts = {f"share_error_{part}_points": given.get(part) for part in ("median", "p90", "worst")}
    return {**parts, "worse_than_none": worse}


def is_worse(kept: Mapping[str, Any]) -> bool:
    """Under fairsched it was further off than under nobody, by more than a point."""
    ours, theirs = (kept[policy]["share_error_points"] for policy in (OURS, BASELINE))
    return ours is not None and theirs is not None and ours > theirs + WORSE_BY_POINTS


def missed_bars(summary: Summary) -> list[str]:
    """Keys of those that were measured and are not met."""
    return missed(BARS, summary)


def worst(summary: Summary, count: int = NAMED) -> list[tuple[str, Mapping[str, Any]]]:
    """Number and figures of the draws with the largest share error under fairsched."""
    known = [(n, d) for n, d in summary["draws"].items() if d[OURS]["share_error_points"] is not None]
    return sorted(known, key=lambda one: -float(one[1][OURS]["share_error_points"]))[:count]


def by_trait(summary: Summary) -> list[tuple[str, str, str, str, str]]:
    """Share errors of the draws that have it: trait, how many, median under none and under fairsched, worst."""
    rows = []
    for trait in TRAITS:
        has = [one for one in summary["draws"].values() if trait in one["description"]]
        theirs, ours = (
            distribution((one[policy]["share_error_points"] for one in has), is_bad_when_large=True)
            for policy in (BASELINE, OURS)
        )
        if theirs and ours:
            errors = (theirs["median"], ours["median"], ours["worst"])
            middle, own, most = (show(error, "points") for error in errors)
            rows.append((trait, str(len(has)), middle, own, most))
    return rows


# ---- in a terminal ----

_SEVERAL = "some plays are of another program than the last one"
_TRAIT_HEAD = f"{BASELINE:>12}{OURS:>12}{'worst':>12}"


def told(summary: Summary) -> list[str]:
    """Lines of 80 columns."""
    lines = [f"{'figure':<26}{'policy':<12}{'median':>12}{'p90':>12}{'worst':>12}", "-" * WIDTH]
    lines += [
        f"{what:<26}{policy:<12}" + "".join(f"{cell:>12}" for cell in cells)
        for what, policy, *cells in _spread_rows(summary)
    ]
    lines += ["", f"{'share error of draws with':<26}{'draws':>12}" + _TRAIT_HEAD, "-" * WIDTH]
    lines += [f"{row[0]:<26}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in by_trait(summary)]
    lines += ["", *render(BARS, summary, {}), "", "Furthest off under fairsched:"]
    for number, one in worst(summary):
        lines += textwrap.wrap(_line(number, one), WIDTH, initial_indent="  ", subsequent_indent="      ")
    if len(summary.get("code_hashes", ())) > 1:
        lines.append(_SEVERAL.capitalize() + ".")
    if summary["not_played"]:
        missing = ", ".join(map(str, summary["not_played"]))
        lines += textwrap.wrap(f"Not played under both: {missing}", WIDTH)
    return lines


def _cells(summary: Summary, policy: str, figure: Figure) -> list[str] | None:
    spread = summary["distribution"][policy][figure.key]
    return (
        None if spread is None else [show(spread[part], figure.unit) for part in ("median", "p90", "worst")]
    )


def _line(number: str, one: Mapping[str, Any]) -> str:
    ours, theirs = (show(one[policy]["share_error_points"], "points") for policy in (OURS, BASELINE))
    return f"{number}: {ours} ({BASELINE}: {theirs}); {one['description']}"


# ---- in docs/robustness.md ----


def page_section(summaries: Sequence[Summary]) -> str:
    """What was measured, by seed."""
    if not summaries:
        return "No run is committed yet."
    return "\n\n".join(_seed_section(summary) for summary in summaries)


def _seed_section(summary: Summary) -> str:
    errors = (
        "share error of draws with",
        "draws",
        f"{BASELINE}, median",
        f"{OURS}, median",
        f"{OURS}, worst",
    )
    return "\n\n".join(
        (
            f"### Seed {summary['seed']}, {summary['played']} draws{', with the trace' * bool(summary.get('trace'))}",
            marked.table(("figure", "policy", "median", "p90", "worst"), _spread_rows(summary)),
            marked.table(("bar", "measured", "limit", "met"), _bar_rows(summary)),
            marked.table(("draw", BASELINE, OURS, "what it is"), _worst_rows(summary)),
            marked.table(errors, by_trait(summary)),
            _made(summary),
        )
    )


def _spread_rows(summary: Summary) -> list[list[str]]:
    return [
        [figure.what, policy, *cells]
        for figure in FIGURES
        for policy in (BASELINE, OURS)
        if (cells := _cells(summary, policy, figure)) is not None
    ]


def _bar_rows(summary: Summary) -> list[list[str]]:
    return [
        [
            bar.what,
            show(summary[bar.key], bar.unit),
            f"{bar.sign} {show(bar.limit, bar.unit)}",
            {None: "-", True: "yes", False: "**NO**"}[bar.is_met(summary[bar.key])],
        ]
        for bar in BARS
    ]


def _worst_rows(summary: Summary) -> list[list[str]]:
    rows = []
    for number, one in worst(summary):
        errors = (show(one[policy]["share_error_points"], "points") for policy in (BASELINE, OURS))
        rows.append([number, *errors, one["description"]])
    return rows


def _made(summary: Summary) -> str:
    tuned = "looked at while the code was changed" if summary["is_tuned_on"] else "not tuned on"
    where = f"{summary['machine']}, {summary['cpus']} CPUs, Linux {summary['kernel']}"
    made = f"- {where}; commit {summary['commit']}, {summary['started'][:10]}; this seed was {tuned}"
    return f"{made}; {_SEVERAL}" if len(summary["code_hashes"]) > 1 else made


def filled(text: str, summaries: Sequence[Summary], name: str = "the text") -> str:
    """The page with its table written anew."""
    return marked.filled(text, WORD, {"measured": lambda: page_section(summaries)}, name)


def write_page(page: Path, summaries: Sequence[Summary]) -> list[Path]:
    """Returns it if it changed."""
    return marked.written([page], lambda path, text: filled(text, summaries, str(path)))
