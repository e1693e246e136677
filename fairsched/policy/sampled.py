# SPDX-License-Identifier: Apache-2.0
"""Remembers what looks added of each process, its samples and its charge, and tells what chance makes of them (pure).

Terms as in :mod:`fairsched.policy.misbehaviour`, which judges by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fairsched.policy.evidence import Evidence, Where

SHORT_WINDOW_NS = 5_000_000_000
LONG_WINDOW_NS = 20_000_000_000
LAG_NS = 1_500_000_000
"""Samples come late: what was charged so long before a window may explain those in it."""
LEAST_SAMPLES = 5
CHANCE = 1e-8
SUSPECT_CHANCE = 2e-3
"""Enough to be looked at, and to be charged what samples say."""
_ACCOUNT_SLACK = 1.25
REST_PER_S = 0.01
"""Sample periods a second that nobody is asked to explain."""


class Seen(NamedTuple):
    """What one look added to a process on a GPU."""

    t_ns: int
    tenant: str | None
    """None where only the account named the process, and nobody knows whose it is."""
    samples: int
    periods: float
    """Of samples, in which it kept the GPU busy."""
    charged_ns: int
    anchored_ns: int
    """Of that, in contexts for the end of whose work somebody waits ..."""
    launches: int
    """... and what was launched in the others."""
    period_ns: int
    first_ns: int
    """Of its samples; where there are none, the time of the look."""
    last_ns: int


class Span(NamedTuple):
    """The time from one look to the next."""

    begin_ns: int
    end_ns: int
    held_ns: Mapping[str, int]
    """For how long of it tenants were held by us."""


def remember(evidence: Evidence, before: Mapping[Where, tuple[Seen, ...]]) -> dict[Where, tuple[Seen, ...]]:
    """One more entry for everybody who was sampled; of who is not sampled any more the past fades away."""
    now_ns, fresh = evidence.now_ns, {(sampled.pid, sampled.gpu): sampled for sampled in evidence.samples}
    kept: dict[Where, tuple[Seen, ...]] = {}
    for where in {*before, *fresh, *evidence.charged_ns, *evidence.launches}:
        sampled, charged_ns = fresh.get(where), evidence.charged_ns.get(where, 0)
        anchored_ns, launches = evidence.anchored_ns.get(where, 0), evidence.launches.get(where, 0)
        looks = tuple(look for look in before.get(where, ()) if now_ns - look.t_ns <= LONG_WINDOW_NS + LAG_NS)
        if sampled is not None and sampled.period_ns > 0:
            periods = sampled.busy_ns / sampled.period_ns
            looks = (
                *looks,
                Seen(
                    now_ns,
                    sampled.tenant,
                    sampled.samples,
                    periods,
                    charged_ns,
                    anchored_ns,
                    launches,
                    sampled.period_ns,
                    sampled.first_ns,
                    sampled.last_ns,
                ),
            )
        elif charged_ns > 0 or launches > 0:
            tenant = evidence.whose.get(where[0])
            looks = (
                *looks,
                Seen(now_ns, tenant, 0, 0.0, charged_ns, anchored_ns, launches, 1, now_ns, now_ns),
            )
        if looks:
            kept[where] = looks
    return kept


def remember_spans(evidence: Evidence, before: tuple[Span, ...]) -> tuple[Span, ...]:
    now_ns = evidence.now_ns
    begin_ns = before[-1].end_ns if before else now_ns
    kept = tuple(span for span in before if now_ns - span.end_ns <= LONG_WINDOW_NS)
    return (*kept, Span(begin_ns, now_ns, evidence.held_ns))


def summed(looks: Iterable[Seen], begin_ns: int) -> tuple[int, float, int, int]:
    """Samples and busy periods since ``begin_ns``, what was charged since a little before it, and the period."""
    samples, periods, charged_ns, period_ns = 0, 0.0, 0, 1
    for look in looks:
        period_ns = max(period_ns, look.period_ns)
        if look.t_ns > begin_ns:
            samples += look.samples
            periods += look.periods
        if look.t_ns > begin_ns - LAG_NS:
            charged_ns += look.charged_ns
    return samples, periods, charged_ns, period_ns


def is_beyond(
    periods: float, explained: float, window_ns: int, chance: float, rest_per_s: float = REST_PER_S
) -> bool:
    """Whether more samples were seen than a process that ran for ``explained`` periods has, but by that chance."""
    mean = _ACCOUNT_SLACK * explained + rest_per_s * window_ns / 1e9
    return poisson_tail(round(periods), mean) < chance


def poisson_tail(count: int, mean: float) -> float:
    """P(X >= count) of a Poisson variable."""
    if count <= mean:
        return 1.0
    term = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)) if mean > 0 else float(count == 0)
    total, k = 0.0, count
    while term > total * 1e-12 and term > 0.0:
        total += term
        k += 1
        term *= mean / k
    return min(1.0, total)


def binomial_tail(count: int, of: int, chance: float) -> float:
    """P(X >= count) of a binomial variable: of so many samples each is of it by that chance."""
    count = min(count, of)
    if count <= of * chance:
        return 1.0
    if chance <= 0:
        return 0.0
    log_choose = math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1)
    term = math.exp(log_choose + count * math.log(chance) + (of - count) * math.log1p(-chance))
    total = 0.0
    for k in range(count, of + 1):
        total += term
        term *= (of - k) / (k + 1) * chance / (1 - chance)
    return min(1.0, total)
