# SPDX-License-Identifier: Apache-2.0
"""Sums up a stretch of the past in a few figures, which stand above the plots. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fairsched.base.text import percent
from fairsched.cli.page.charts import QUEUE_OBJECTIVE_MS
from fairsched.cli.text import milliseconds, with_unit
from fairsched.companion.history.read import Past
from fairsched.companion.slis.formulas import is_fair


def tiles(past: Past) -> list[tuple[str, str]]:
    """(figure, what it is) of each."""

    def mean(name: str) -> float | None:
        known = [value for _, value in past.slis.get(name, []) if value is not None]
        return sum(known) / len(known) if known else None

    delays = [value for _, value in past.slis.get("queue_delay_p99_ms", [])]
    worst = max(
        (v for v in (*delays, *(one.queue_delay_p99_ms for one in past.totals)) if v is not None),
        default=None,
    )
    cv = mean("token_rate_cv_ratio")
    verdict = {True: ", fair", False: ", unfair", None: ""}[is_fair(cv)]
    found = [
        (with_unit(percent(mean("fairness_error_ratio")), "points"), "largest share error, mean"),
        (
            with_unit(milliseconds(worst), "ms"),
            f"worst queue delay p99 (objective {QUEUE_OBJECTIVE_MS:g} ms)",
        ),
        (with_unit(percent(cv), "%") + verdict, "token/s variation across tenants, mean"),
        (with_unit(percent(mean("sm_utilization_stdev_ratio")), "%"), "SM utilisation, standard deviation"),
        _holds("holds", [(one.holds, one.held_s) for one in past.totals]),
    ]
    if past.dry_holds:
        found.append(_holds("holds of a dry run", [(one.dry_holds, one.dry_held_s) for one in past.totals]))
    return found


def _holds(what: str, totals: Sequence[tuple[int, float | None]]) -> tuple[str, str]:
    held = [held_s for _, held_s in totals if held_s is not None]
    in_all = f", {sum(held):.1f} s in all" if held else ""
    return str(sum(count for count, _ in totals)), f"{what}{in_all}"
