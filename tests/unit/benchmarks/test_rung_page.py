# SPDX-License-Identifier: Apache-2.0
"""The section about the rungs says what was measured on each, and what should not be."""

from __future__ import annotations

from typing import Any

from benchmarks.fair import quoted, rung_page
from benchmarks.fair.rows import NOT_MEASURED
from benchmarks.fair.rungs import SUITE
from tests.unit.benchmarks.made_results import document


def played(policy: str, error: float, least: float | None = 0.9, **other: Any) -> dict[str, Any]:
    figures = {"share_error_max_points": error, "least_of_due_10s_ratio": least}
    return document(policy=policy, whole=figures, **other)


def test_a_bar_is_of_the_mean_over_the_seeds_and_of_the_kind_of_rung() -> None:
    found = rung_page.section(
        [
            played("none", 38.7, scenario="weights-4211"),
            *(
                played("fairsched-dcgm", error, scenario="weights-4211", seed=n)
                for n, error in enumerate((5.5, 3.5))
            ),
            played("fairsched-sigstop", 2.0, 0.31, scenario="weights-4211"),
        ]
    )
    assert "| `weights-4211` | dcgm | freezer | 5.50, 3.50 | 4.50 | <= 5 pt | yes | 0.90 |" in found
    assert "| `weights-4211` | ebpf | sigstop | 2.00 | 2.00 | <= 1.5 pt | **NO** | 0.31 |" in found
    assert "| `weights-4211` | 38.70 | - | 4.50 | - | - | - | - | 2.00 | 0.31 |" in found
    assert "worse than `none`: nowhere" in found and "for ten seconds): nobody" in found


def test_what_is_worse_than_nobody_and_who_is_locked_out_is_said() -> None:
    found = rung_page.section(
        [
            played("none", 0.5, scenario="equal-4"),
            played("fairsched-nvml", 1.4, scenario="equal-4"),
            played("fairsched-dcgm", 1.6, 0.2, scenario="equal-4"),
        ]
    )
    assert "worse than `none`: `equal-4` on dcgm (1.1)" in found
    assert "for ten seconds): `equal-4` on dcgm (0.20)" in found


def test_rungs_stand_in_no_other_table() -> None:
    """Nor are they there where nothing was measured on any."""
    plain = [document(policy=policy) for policy in ("none", "fairsched")]
    assert rung_page.section(plain) == NOT_MEASURED
    text = "".join(
        f"<!-- fairness: {name} -->\n<!-- fairness: end -->\n" for name in ("headline", "policies", "made")
    )
    with_rungs = [*plain, *(played(rung.policy, 1.0, commit="another") for rung in SUITE)]
    assert quoted.filled(text, with_rungs) == quoted.filled(text, plain)


def test_the_brief_table_has_a_row_for_each_rung_best_first() -> None:
    measured = [
        played("none", 38.0, scenario="weights-4211"),
        played("fairsched", 0.9, scenario="weights-4211"),
        played("fairsched-dcgm", 4.0, scenario="weights-4211"),
        played("fairsched-dcgm", 1.0, scenario="caps-30-70"),
    ]
    head, _, *rows = rung_page.brief(measured).splitlines()
    assert head == "| account | brake | `weights-4211`, points | `caps-30-70`, points |"
    assert rows[:2] == ["| nobody schedules | - | 38.00 | - |", "| ebpf | freezer | 0.90 | - |"]
    assert rows[-1] == "| dcgm | freezer | 4.00 | 1.00 |" and len(rows) == 2 + len(SUITE)
    assert rung_page.brief(measured[:2]) == NOT_MEASURED
