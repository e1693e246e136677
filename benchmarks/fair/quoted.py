# SPDX-License-Identifier: Apache-2.0
"""The sections of docs/fairness.md that quote result documents: markdown between markers (``marked``).

    <!-- fairness: overview -->   every bar on every scenario, without and with fairsched
    <!-- fairness: policies -->   all policies side by side, for the scenarios that were played under them
    <!-- fairness: headline -->   the few figures of them that a reader asks for first, means only
    <!-- fairness: nature -->     shares, and what the account was worth, on GPUs of another nature
    <!-- fairness: rungs -->      other accounts and other brakes, for every scenario that was played on them
    <!-- fairness: made -->       machine, kernel, commit, seeds
    <!-- fairness: end -->        ends each of them

``python -m benchmarks.fair.table --write`` fills them from the committed summary; a unit test compares. What README
quotes, and the core figures: ``front_page``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.fair import honest, marked, results, rung_page, summary
from benchmarks.fair.bars import BASELINE, NATURE_POINTS, OURS
from benchmarks.fair.results import Document, by_policy, leaf_values, whole
from benchmarks.fair.rows import (
    NOT_MEASURED,
    cell,
    changed,
    extent,
    figure_rows,
    made,
    mean_text,
    overview_of,
    scenarios_of,
    spread_of,
)
from benchmarks.fair.scenario import shipped
from benchmarks.stats import spread

REPOSITORY = results.ROOT.parents[1]
HEADLINE = (
    ("share_error_max_points", "largest share error, points", False),
    ("tokens_cv_across_ratio", "CV of token/s across equal tenants, %", False),
    ("tokens_cv_ratio", "CV of token/s in time, worst tenant, %", True),
    (honest.STEP_P99, "p99 step, worst honest tenant, ms", True),
    ("jain_1s_mean", "Jain's index, 1 s", False),
    ("busy_ratio", "GPU busy, %", False),
    ("hold_longest_ms", "longest hold, ms", False),
    ("cpu_ratio", "CPU of the policy, %", False),
)
_NATURE = "nature-"
_RUNGS = "rungs"
"""The one section that rungs are in."""
# (heading, policy, figure)
NATURE = (
    ("share %", OURS, "share_ratio"),
    ("share error, none, pt", BASELINE, "share_error_points"),
    ("fairsched, pt", OURS, "share_error_points"),
    ("account error %", OURS, "account_error_ratio"),
    ("worst 2 s while sure %", OURS, "account_error_sure_max_ratio"),
    ("low confidence %", OURS, "low_confidence_ratio"),
    ("held ms/s", OURS, "held_ms_per_s"),
    ("held unsettled ms", OURS, "held_unsettled_ms"),
)
DOCUMENTS = (Path("docs/fairness.md"),)


def _md_overview(documents: Sequence[Document]) -> str:
    names = [path.stem for path in shipped()]
    found = overview_of(documents, names)
    rows = [(f"`{name}`", *cells, "**NO**" if met == "NO" else met) for name, *cells, met in found.rows]
    head = ("scenario", "figure", "none", "fairsched", "bar", "met")
    return "\n".join([marked.table(head, rows), "", *(f"- {note}" for note in found.notes)]).rstrip()


def _md_headline(documents: Sequence[Document]) -> str:
    parts = []
    for name, same in sorted(scenarios_of(documents).items()):
        columns = by_policy(same)
        if set(columns) <= {BASELINE, OURS}:
            continue
        rows = []
        for figure, label, is_worst in HEADLINE:
            spreads = [spread_of(part, figure, is_worst) for part in columns.values()]
            if any(spreads):
                rows.append((label, *(mean_text(value, figure) for value in spreads)))
        parts.append(f"`{name}`, {extent(same)}:\n\n{marked.table(('', *columns), rows)}")
    return "\n\n".join(parts) or NOT_MEASURED


def _md_policies(documents: Sequence[Document]) -> str:
    parts = []
    for name, same in sorted(scenarios_of(documents).items()):
        columns = by_policy(same)
        if set(columns) <= {BASELINE, OURS}:
            continue
        rows = [
            (label, *(cell(value, scale, " ± ") for value in spreads))
            for label, spreads, scale in figure_rows(columns)
        ]
        parts.append(f"**{name}**, {extent(same)}\n\n{marked.table(('', *columns), rows)}")
    return "\n\n".join(parts) or NOT_MEASURED


def _md_nature(documents: Sequence[Document]) -> str:
    rows = []
    for name, same in _natures(documents).items():
        for leaf in dict.fromkeys(leaf for document in same for leaf in document["measures"]["leaves"]):
            cells = (_mean_of(same, policy, leaf, figure) for _, policy, figure in NATURE)
            rows.append((f"`{name}`", leaf, *cells))
    if not rows:
        return NOT_MEASURED
    head = ("nature", "tenant", *(label for label, *_ in NATURE))
    unfair, natures = unfair_natures(documents), _natures(documents)
    said = f"On {len(unfair)} of {len(natures)} natures shares are more than {NATURE_POINTS:g} points off"
    names = ", ".join(name.removeprefix(_NATURE) for name in unfair)
    return marked.table(head, rows) + (f"\n\n{said}: {names}." if unfair else "")


def _natures(documents: Sequence[Document]) -> dict[str, list[Document]]:
    """Documents of each that we have scheduled."""
    found = sorted(scenarios_of(documents).items())
    return {name: same for name, same in found if name.startswith(_NATURE) and OURS in by_policy(same)}


def _mean_of(documents: Sequence[Document], policy: str, leaf: str, figure: str) -> str:
    """A worst error has a sign in the documents, and the mean of +50 and -50 % is not 0: its size is what counts."""
    values = [leaf_values(document, figure).get(leaf) for document in by_policy(documents).get(policy, [])]
    if "_max_" in figure:
        values = [None if value is None else abs(value) for value in values]
    return mean_text(spread(values), figure)


def unfair_natures(documents: Sequence[Document]) -> list[str]:
    """Natures on which some share is off by more than the bar, in the mean of the seeds."""
    found = []
    for name, same in _natures(documents).items():
        error = spread([whole(document, "share_error_max_points") for document in by_policy(same)[OURS]])
        if error is not None and error.mean > NATURE_POINTS:
            found.append(name)
    return found


def _md_made(documents: Sequence[Document]) -> str:
    return "\n".join(f"- {line}" for line in [*made(documents), *changed(documents)])


SECTIONS: Mapping[str, Callable[[Sequence[Document]], str]] = {
    "overview": _md_overview,
    "policies": _md_policies,
    "headline": _md_headline,
    "nature": _md_nature,
    "made": _md_made,
    _RUNGS: rung_page.section,
}
_WORD = "fairness"


def filled(text: str, documents: Sequence[Document], name: str = "the text") -> str:
    """The text with its sections written anew. Raises ResultError for a section that nothing writes."""

    others = [document for document in documents if not rung_page.is_rung(document)]

    def body_of(section: str) -> str:
        given = documents if section == _RUNGS else others
        return SECTIONS[section](given) if given else NOT_MEASURED

    return marked.filled(text, _WORD, {section: partial(body_of, section) for section in SECTIONS}, name)


def all_documents(root: Path = results.ROOT) -> list[Document]:
    """Every run that was measured, without its series."""
    return list(summary.read(root))


def write_documents(repository: Path = REPOSITORY, root: Path = results.ROOT) -> list[Path]:
    """Fill the sections of the documents; returns the files that changed."""
    documents = all_documents(root)
    paths = [repository / name for name in DOCUMENTS]
    return marked.written(paths, lambda path, text: filled(text, documents, str(path)))
