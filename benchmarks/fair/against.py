# SPDX-License-Identifier: Apache-2.0
"""The steps of a leaf beside those it makes alone on the GPU (pure).

Takes ``leaves`` of documents' measures. What was not measured in one of the two is None.
"""

from __future__ import annotations

from collections.abc import Mapping

Figures = Mapping[str, float | None]
PERCENTILES = ("p50", "p99")


def beside_solo(mine: Figures, alone: Figures) -> dict[str, float | None]:
    """Figures of one leaf: what it takes alone, and how many times that it took."""
    found: dict[str, float | None] = {}
    for name in PERCENTILES:
        value, base = mine.get(f"step_{name}_ms"), alone.get(f"step_{name}_ms")
        found[f"step_{name}_solo_ms"] = base
        found[f"step_{name}_vs_solo_ratio"] = None if value is None or not base else value / base
    return found
