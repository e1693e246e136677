# SPDX-License-Identifier: Apache-2.0
"""Tables of results, for a terminal and for the documents: ``python -m benchmarks.fair.table``.

Problem. What the documents quote must be what was measured, and must stay it.

Approach. Every table is made from the summary of the runs alone: here 80 columns wide, in ``quoted`` and
``front_page`` as markdown.

Examples:
  python -m benchmarks.fair.table               every scenario that has results
  python -m benchmarks.fair.table seed-4        one, policies side by side
  python -m benchmarks.fair.table --write       fill the sections of the documents
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.command import say_error
from benchmarks.fair import front_page, quoted, results
from benchmarks.fair.bars import Verdict, judge, number, scale_of
from benchmarks.fair.results import Document, by_policy, leaf_values
from benchmarks.fair.rows import (
    NOT_MEASURED,
    ROWS,
    cell,
    changed,
    extent,
    figure_of,
    figure_rows,
    labelled,
    made,
    overview_of,
    scenarios_of,
)
from fairsched.errors import FairschedError

WIDTH = 80
# (figure, heading, unit under it)
_LEAF_COLUMNS = (
    ("share_ratio", "share", "%"),
    ("entitlement_ratio", "due", "%"),
    ("share_error_points", "error", "pt"),
    ("tokens_per_s", "token/s", ""),
    ("tokens_cv_ratio", "CV", "%"),
    ("step_p50_ms", "p50", "ms"),
    ("step_p99_ms", "p99", "ms"),
    ("held_ms_per_s", "held", "ms/s"),
)
_LEAF_WIDTHS = (6, 6, 7, 8, 6, 7, 7, 7)
_LEAF_NAME = WIDTH - sum(_LEAF_WIDTHS) - len(_LEAF_WIDTHS)


# ---- one run ----


def one_run(document: Document) -> list[str]:
    """Every leaf, then the whole."""
    title = f"{document['scenario']} under {document['policy']}, seed {document['seed']}"
    heads = (
        _leaf_line("tenant", [head for _, head, _ in _LEAF_COLUMNS]),
        _leaf_line("", [unit for *_, unit in _LEAF_COLUMNS]),
    )
    lines = [f"{title}, {document['seconds']:g} s", "", *heads, "-" * WIDTH]
    for leaf in document["measures"]["leaves"]:
        lines.append(_leaf_line(leaf, [_leaf_cell(document, leaf, figure) for figure, *_ in _LEAF_COLUMNS]))
    cells = [
        f"{labelled(figure, label):<25}{number(figure_of(document, figure, is_worst), scale_of(figure)):>12}"
        for figure, label, is_worst in ROWS
    ]
    half = (len(cells) + 1) // 2
    lines.append("")
    for left, right in zip(cells[:half], [*cells[half:], ""], strict=False):
        lines.append(f"{left}   {right}".rstrip())
    return [*lines, *_wrapped(document["notes"])]


def _leaf_line(name: str, cells: Sequence[str]) -> str:
    columns = (f"{cell:>{width}}" for cell, width in zip(cells, _LEAF_WIDTHS, strict=True))
    return f"{_cut(name, _LEAF_NAME):<{_LEAF_NAME}} {' '.join(columns)}".rstrip()


def _leaf_cell(document: Document, leaf: str, figure: str) -> str:
    value = leaf_values(document, figure)[leaf]
    text = number(value, scale_of(figure))
    return f"+{text}" if figure == "share_error_points" and value is not None and value > 0 else text


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "~"


# ---- policies side by side ----


def side_by_side(documents: Sequence[Document]) -> list[str]:
    """One scenario: figures in rows, policies in columns, mean and half of the 95 % interval."""
    if not documents:
        return [NOT_MEASURED]
    columns = by_policy(documents)
    width = 12 if len(columns) > 4 else 14
    heads = [_two_lines(name, width - 1) for name in columns]
    lines = [f"{documents[0]['scenario']}: {extent(documents)}", ""]
    for row in zip(*heads, strict=True):
        line = f"{'':<20}{''.join(f'{cell:>{width}}' for cell in row)}".rstrip()
        lines += [line] if line else []
    lines.append("-" * (20 + width * len(columns)))
    for label, spreads, scale in figure_rows(columns):
        lines.append(f"{label:<20}{''.join(f'{cell(value, scale):>{width}}' for value in spreads)}".rstrip())
    verdicts = _of_scenarios(judge(documents), documents)
    if verdicts:
        lines += ["", f"{'bar, of fairsched':<26}{'':>14}{'mean':>14}"]
    for verdict in verdicts:
        mean = number(verdict.value.mean if verdict.value else None, verdict.bar.scale)
        lines.append(f"{verdict.bar.what:<26}{verdict.bar.limit_text():>14}{mean:>14}   {verdict.state}")
        lines += _wrapped([verdict.note] if verdict.note else [])
    return [*lines, *_wrapped(results.differences(documents)), *_wrapped(changed(documents))]


def _two_lines(name: str, width: int) -> tuple[str, str]:
    first, dash, second = name.partition("-")
    return ("", name) if len(name) <= width or not dash else (f"{first}-", _cut(second, width))


# ---- every scenario ----


def overview(documents: Sequence[Document], names: Iterable[str] = ()) -> list[str]:
    """A line per bar and scenario; scenarios without results only when ``names`` has them."""
    if not documents and not names:
        return [NOT_MEASURED]
    head = f"{'scenario':<21} {'figure':<24} {'none':>8} {'fairsched':>9} {'bar':>10} met"
    lines, before = [head, "-" * WIDTH], ""
    found = overview_of(documents, names)
    for scenario, what, none, ours, bar, met in found.rows:
        shown = "" if scenario == before else scenario
        cells = f"{_cut(shown, 21):<21} {_cut(what, 24):<24} {none:>8} {ours:>9} {bar:>10} {met}"
        lines.append(cells.rstrip())
        before = scenario
    return [*lines, *_wrapped([*found.notes, *made(documents), *changed(documents)])]


def _of_scenarios(verdicts: Iterable[Verdict], documents: Sequence[Document]) -> list[Verdict]:
    names = {document["scenario"] for document in documents}
    return [verdict for verdict in verdicts if verdict.scenario in names]


def _wrapped(notes: Iterable[str]) -> list[str]:
    return [
        line
        for note in notes
        for line in textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="    ")
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fair.table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "scenario", nargs="*", help="side by side; every scenario in brief when none is named"
    )
    parser.add_argument("--results", type=Path, default=results.ROOT, metavar="DIR")
    parser.add_argument("--write", action="store_true", help="fill the tables of README.md and docs")
    options = parser.parse_args(argv)
    try:
        if options.write:
            for path in (
                *quoted.write_documents(root=options.results),
                *front_page.write_documents(root=options.results),
            ):
                print(f"written: {path}")
            return 0
        documents = quoted.all_documents(options.results)
        for name in options.scenario:
            print("\n".join(side_by_side(scenarios_of(documents).get(name, []))) + "\n")
        if not options.scenario:
            print("\n".join(overview(documents)))
    except FairschedError as error:
        return say_error(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
