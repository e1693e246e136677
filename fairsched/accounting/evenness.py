# SPDX-License-Identifier: Apache-2.0
"""Whether work costs the same alone and in company: if not, the GPU does not share as the replay thinks (pure).

Problem. The replay gives every context equal turns. Where turns are longer for some (kernels that cannot be
interrupted, slices set by somebody), it charges them too little and the others too much, and its anchors need not
miss: the account is wrong and looks well.

Approach. A launch costs what it costs, whoever else is there. Bursts that ran alone measure that; those in company are
what the replay made of it. Where the two differ for one context by more than chance and habit explain, its tenant
*claims* that turns are unequal. Its neighbours support or reject the claim (witnesses.py).

Terms. alone: charged for nearly all the time the burst took; company: for at most two thirds. Only recent bursts count,
because the work itself changes over the day.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable

_ALONE = 0.93
_COMPANY = 0.67
_RECENT_NS = 10_000_000_000
_ENOUGH = 8
_KEPT = 48
_UNEVEN = 0.22
"""Difference of the mean logarithms: a fifth too little or a quarter too much."""
_SURE = 4.0
"""Standard errors the difference must have besides."""
_STAYS_NS = 60_000_000_000
"""For so long a verdict holds: without holds there are few bursts alone to renew it."""

Sample = tuple[int, float]


class Evenness:
    """Of one GPU."""

    def __init__(self) -> None:
        self._alone: dict[Hashable, deque[Sample]] = {}
        self._company: dict[Hashable, deque[Sample]] = {}
        self._claims: dict[Hashable, tuple[int, float]] = {}
        """By owner: until when, and its latest ratio of the cost in company to that alone."""
        self._ignore_until_ns = 0
        self.last = ""
        """The latest verdict, in words for the log."""

    def note(
        self, key: Hashable, owner: Hashable, spent_ns: int, launches: int, wall_ns: int, now_ns: int
    ) -> None:
        """A burst that no hold touched: it took ``wall_ns`` and was charged ``spent_ns``."""
        if now_ns < self._ignore_until_ns:
            return
        part = spent_ns / max(1, wall_ns)
        kind = self._alone if part >= _ALONE else self._company if part <= _COMPANY else None
        if kind is None or spent_ns <= 0:
            return
        kind.setdefault(key, deque(maxlen=_KEPT)).append((now_ns, math.log(spent_ns / launches)))
        ratio = self._differs(key, now_ns)
        if ratio is not None:
            self._claims[owner] = now_ns + _STAYS_NS, ratio

    def forget(self, key: Hashable) -> None:
        """The context is gone."""
        self._alone.pop(key, None)
        self._company.pop(key, None)

    def reset(self, *, ignore_until_ns: int = 0) -> None:
        """What was charged says nothing any more: the replay is another now, or did not know of somebody."""
        self._alone.clear()
        self._company.clear()
        self._claims.clear()
        self._ignore_until_ns = max(self._ignore_until_ns, ignore_until_ns)

    def claims(self, now_ns: int) -> dict[Hashable, float]:
        """Owners whose work costs another time in company, and how many times as much."""
        return {owner: ratio for owner, (until_ns, ratio) in self._claims.items() if now_ns < until_ns}

    def _differs(self, key: Hashable, now_ns: int) -> float | None:
        if len(self._alone.get(key, ())) < _ENOUGH or len(self._company.get(key, ())) < _ENOUGH:
            return None
        alone = _recent(self._alone.get(key), now_ns)
        company = _recent(self._company.get(key), now_ns)
        if min(len(alone), len(company)) < _ENOUGH:
            return None
        (mean_a, error_a), (mean_c, error_c) = _mean(alone), _mean(company)
        is_uneven = abs(mean_a - mean_c) > max(_UNEVEN, _SURE * math.hypot(error_a, error_c))
        if not is_uneven:
            return None
        ratio, counts = math.exp(mean_c - mean_a), f"{len(alone)}+{len(company)}"
        self.last = f"uneven ctx={key} company_cost_ratio={ratio:.2f} bursts={counts}"
        return ratio


def _recent(samples: deque[Sample] | None, now_ns: int) -> list[float]:
    return [value for t_ns, value in samples or () if now_ns - t_ns < _RECENT_NS]


def _mean(values: list[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    return mean, math.sqrt(variance / len(values))
