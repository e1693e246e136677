# SPDX-License-Identifier: Apache-2.0
"""The section of docs/fairness.md on rungs: what is left of fairness on other accounts, with other brakes (pure).

Approach. Two tables from the committed runs, beside those of ``none`` and ``fairsched``: the scenarios that have a bar
on every rung, and the largest share error of every scenario. Under them what is not met: a rung that is more than
WORSE_POINTS worse than nobody's scheduling, and a tenant that was locked out.

Terms. error: largest share error, mean over the seeds. least of due: what a tenant that always wanted the GPU got in
its worst ten seconds, in parts of what it was due; the least of all seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.bars import told
from benchmarks.fair import marked
from benchmarks.fair.bars import BASELINE, OURS, number
from benchmarks.fair.results import Document, by_policy, whole
from benchmarks.fair.rows import NOT_MEASURED, made, scenarios_of
from benchmarks.fair.rungs import ALL, SUITE, Rung
from benchmarks.stats import spread

SCENARIOS = ("weights-4211", "caps-30-70")
"""Those that have a bar."""
SAMPLED_POINTS = 5.0
PROBED_POINTS = 1.5
LOCKED_OUT_RATIO = 0.25
WORSE_POINTS = 1.0
"""Nobody is held for chance, but chance is not nothing: so much worse than nobody's scheduling is no fault."""
_ERROR, _LEAST = "share_error_max_points", "least_of_due_10s_ratio"


def is_rung(document: Document) -> bool:
    """Of one that stands in this section alone."""
    return document["policy"] in ALL and document["policy"] != OURS


def section(documents: Sequence[Document]) -> str:
    """Markdown."""
    scenarios = scenarios_of(documents)
    found = {name: by_policy(same) for name, same in scenarios.items() if any(map(is_rung, same))}
    if not found:
        return NOT_MEASURED
    lines = [*faults(found), *made([document for document in documents if is_rung(document)])]
    parts = [_bars(found), _all(found), "\n".join(f"- {line}" for line in lines)]
    return "\n\n".join(part for part in parts if part)


def brief(documents: Sequence[Document]) -> str:
    """Markdown for README: what is left of two scenarios, by rung."""
    found = {name: by_policy(same) for name, same in scenarios_of(documents).items() if name in SCENARIOS}
    if not any(rung.policy in policies for rung in SUITE for policies in found.values()):
        return NOT_MEASURED
    rows = [
        (
            "nobody schedules",
            "-",
            *(_points(_error(found.get(name, {}).get(BASELINE, ()))) for name in SCENARIOS),
        )
    ]
    for rung in (Rung(), *reversed(SUITE)):
        errors = (_points(_error(found.get(name, {}).get(rung.policy, ()))) for name in SCENARIOS)
        rows.append((*_names(rung), *errors))
    return marked.table(("account", "brake", *(f"`{name}`, points" for name in SCENARIOS)), rows)


def _bars(found: Mapping[str, Mapping[str, Sequence[Document]]]) -> str:
    rows = []
    for name in SCENARIOS:
        policies = found.get(name, {})
        for rung in (one for one in SUITE if one.policy in policies):
            same = policies[rung.policy]
            limit = SAMPLED_POINTS if rung.is_sampled else PROBED_POINTS
            error, least = _error(same), _least(same)
            each = ", ".join(number(whole(document, _ERROR), "points") for document in same)
            cells = (
                each,
                _points(error),
                f"<= {limit:g} pt",
                told(None if error is None else error <= limit),
            )
            rows.append((f"`{name}`", *_names(rung), *cells, _ratio(least)))
    head = ("scenario", "source", "brake", "error, by seed, pt", "mean", "bar", "met", "least of due")
    return (
        marked.table(head, [[cell.replace("NO", "**NO**") for cell in row] for row in rows]) if rows else ""
    )


def _all(found: Mapping[str, Mapping[str, Sequence[Document]]]) -> str:
    head = ["error, pt", BASELINE, OURS]
    head += [" + ".join(part for part in _names(rung) if part not in ("ebpf", "freezer")) for rung in SUITE]
    rows = []
    for name, policies in sorted(found.items()):
        order = (BASELINE, OURS, *(rung.policy for rung in SUITE))
        least = _least([document for rung in SUITE for document in policies.get(rung.policy, ())])
        errors = (_points(_error(policies.get(policy, ()))) for policy in order)
        rows.append((f"`{name}`", *errors, _ratio(least)))
    return marked.table([*head, "least of due"], rows)


def faults(found: Mapping[str, Mapping[str, Sequence[Document]]]) -> list[str]:
    """What should not be, one sentence each kind."""
    worse, locked = [], []
    for name, policies in sorted(found.items()):
        none = _error(policies.get(BASELINE, ()))
        for rung in SUITE:
            same = policies.get(rung.policy, ())
            error, least = _error(same), _least(same)
            where = f"`{name}` on {rung.policy.removeprefix(f'{OURS}-')}"
            if error is not None and none is not None and error > none + WORSE_POINTS:
                worse.append(f"{where} ({error - none:.1f})")
            if least is not None and least < LOCKED_OUT_RATIO:
                locked.append(f"{where} ({least:.2f})")
    return [
        f"More than {WORSE_POINTS:g} point worse than `{BASELINE}`: {', '.join(worse) or 'nowhere'}",
        f"Locked out (wants the GPU, and has less than {LOCKED_OUT_RATIO:g} of its due for ten seconds): "
        f"{', '.join(locked) or 'nobody'}",
    ]


def _names(rung: Rung) -> tuple[str, str]:
    return rung.source, rung.brake


def _error(documents: Sequence[Document]) -> float | None:
    found = spread(whole(document, _ERROR) for document in documents)
    return None if found is None else found.mean


def _least(documents: Sequence[Document]) -> float | None:
    known = [value for document in documents if (value := whole(document, _LEAST)) is not None]
    return min(known, default=None)


def _points(value: float | None) -> str:
    return number(value, "points")


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
