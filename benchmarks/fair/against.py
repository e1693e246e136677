# SPDX-License-Identifier: Apache-2.0
"""A run beside one without a policy, and beside each leaf alone on the GPU (pure).

Takes the ``measures`` of documents, as ``Measures.to_dict`` makes them. A ratio is None where one of the two
was not measured. Runs that are compared should have the same scenario, seed and length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Section = Mapping[str, Any]


def compare(
    measures: Section, *, none: Section | None = None, solo: Mapping[str, Section] | None = None
) -> dict[str, Any]:
    """``solo``: by leaf, the measures of a run in which it was alone."""
    alone = {leaf: run["leaves"].get(leaf, {}) for leaf, run in (solo or {}).items()}
    without = none or {"whole": {}, "leaves": {}}
    return {
        "whole": {
            f"{figure.removesuffix('_ratio')}_vs_none_ratio": _ratio(
                measures["whole"], without["whole"], figure
            )
            for figure in ("busy_ratio", "tokens_per_s")
        },
        "leaves": {
            leaf: {
                "tokens_per_s_vs_none_ratio": _ratio(mine, without["leaves"].get(leaf, {}), "tokens_per_s"),
                "step_p50_vs_solo_ratio": _ratio(mine, alone.get(leaf, {}), "step_p50_ms"),
                "step_p99_vs_solo_ratio": _ratio(mine, alone.get(leaf, {}), "step_p99_ms"),
            }
            for leaf, mine in measures["leaves"].items()
        },
    }


def _ratio(mine: Section, other: Section, figure: str) -> float | None:
    value, base = mine.get(figure), other.get(figure)
    return None if value is None or not base else value / base
