# SPDX-License-Identifier: Apache-2.0
"""From samples and token curves to the service levels (pure).

Token rates across tenants: ``token/s x cost / entitlement`` of each, and the CV of those. Weights are in the
entitlement, so that 4:1 is fair for weights of 4:1. Compared are tenants that wanted the same GPU all the time, and
whose tokens are alike: counted by the same metric for the same model, or given a cost in GPU time. Anything else
would call a small model unfair to a large one. Of several such groups the worst counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairsched.companion.slis.curve import Curve
from fairsched.companion.slis.formulas import FEWEST_SECONDS, is_fair, variation, variation_in_time
from fairsched.companion.slis.window import Window
from fairsched.protocol.status import SliStatus, TokenRate

S = 1_000_000_000
_RATE_NS = 10 * S
"""What a tenant's token/s are the mean of."""
_STALE_NS = 10 * S
"""A count older than that says nothing of now. A held tenant's page answers when it is thawed."""
_LONGEST_STEP_NS = 2_500_000_000
"""Readings further apart say nothing of single seconds between them."""
_NEAR_NS = S // 2
"""Samples so near to a window say something of its edges."""


@dataclass(frozen=True)
class Tokens:
    """What is known of one tenant's output."""

    curves: Sequence[Curve]
    """Of each of its pages; added up."""
    kind: object = None
    """Tokens of the same kind may be compared as they are; None: of a kind that is not known."""
    cost_ms: float | None = None
    """GPU time of one token, where a person says so: then they may be compared with all others of which it is known."""
    is_steady: bool = True
    """They are counted as they are made; False: all those of a request when it ends."""
    failures: int = 0
    note: str | None = None

    def known_ns(self, now_ns: int) -> tuple[int, int] | None:
        """The stretch in which all pages are known, if it reaches up to now."""
        found = [curve.known_ns for curve in self.curves]
        known = [one for one in found if one is not None]
        if not known or len(known) < len(found):
            return None
        start_ns, end_ns = max(one[0] for one in known), min(one[1] for one in known)
        return (start_ns, end_ns) if start_ns < end_ns and now_ns - end_ns <= _STALE_NS else None

    def grown(self, start_ns: int, end_ns: int, longest_step_ns: int | None = None) -> float | None:
        """Over all pages; None unless all are known then."""
        parts = [curve.grown(start_ns, end_ns, longest_step_ns) for curve in self.curves]
        known = [part for part in parts if part is not None]
        return sum(known) if known and len(known) == len(parts) else None


@dataclass(frozen=True)
class _Rate:
    """One tenant that can be compared."""

    tenant: str
    tokens: Tokens
    per_due: float
    """Tokens per second, by its entitlement."""
    gpus: frozenset[str]


@dataclass
class _Groups:
    """Tenants on one GPU whose tokens are alike."""

    members: dict[tuple[str, object], list[float]] = field(default_factory=dict)

    def cv_ratio(self) -> float | None:
        found = [variation(values) for values in self.members.values()]
        return max((one for one in found if one is not None), default=None)


def measure(window: Window, tokens: Mapping[str, Tokens]) -> tuple[SliStatus, dict[str, TokenRate]]:
    """The service levels now, and what is known of each tenant that has token counters."""
    now_ns = window.last_ns
    if now_ns is None:
        return SliStatus(), {
            name: TokenRate(failures=one.failures, note=one.note) for name, one in tokens.items()
        }
    rates = [
        rate for name, one in tokens.items() if (rate := _compared(name, one, window, now_ns)) is not None
    ]
    cv_ratio, reason = _across(rates, is_counted=bool(tokens))
    slis = SliStatus(
        queue_delay_p99_ms=window.queue_delay_p99_ms(),
        sm_utilization_stdev_ratio=window.sm_utilization_stdev_ratio(),
        token_rate_cv_ratio=cv_ratio,
        is_fair=is_fair(cv_ratio),
        token_rate_reason=reason,
        window_s=window.length_ns / S,
    )
    return slis, {name: _of_one(name, one, window, now_ns) for name, one in tokens.items()}


def _compared(name: str, tokens: Tokens, window: Window, now_ns: int) -> _Rate | None:
    known = tokens.known_ns(now_ns)
    if known is None:
        return None
    end_ns = known[1]
    start_ns = max(known[0], end_ns - window.length_ns)
    due = window.due(name, start_ns, end_ns)
    made = tokens.grown(start_ns, end_ns)
    if not due or made is None or end_ns - start_ns < FEWEST_SECONDS * S:
        return None
    return _Rate(name, tokens, made / ((end_ns - start_ns) / S) / sum(due.values()), frozenset(due))


def _across(rates: Sequence[_Rate], *, is_counted: bool) -> tuple[float | None, str | None]:
    """(CV, why it is not known)."""
    if not is_counted:
        return None, "no tenant has a tokens_url"
    groups, on_gpu = _Groups(), dict[str, list[str]]()
    for rate in rates:
        for uuid in rate.gpus:
            on_gpu.setdefault(uuid, []).append(rate.tenant)
            if rate.tokens.cost_ms is not None:
                groups.members.setdefault((uuid, "cost"), []).append(rate.per_due * rate.tokens.cost_ms)
            elif rate.tokens.kind is not None:
                groups.members.setdefault((uuid, rate.tokens.kind), []).append(rate.per_due)
    cv_ratio = groups.cv_ratio()
    if cv_ratio is not None:
        return cv_ratio, None
    together = next((names for names in on_gpu.values() if len(names) > 1), None)
    if together is None:
        return None, f"no two tenants with token counters wanted the same GPU for {FEWEST_SECONDS} s"
    if any(len(values) > 1 for values in groups.members.values()):
        return None, "tenants that wanted the same GPU made no token"
    names = ", ".join(sorted(together)[:4])
    return None, f"tokens of different models are not alike ({names}): give each a token_cost_ms"


def _of_one(name: str, tokens: Tokens, window: Window, now_ns: int) -> TokenRate:
    known = tokens.known_ns(now_ns)
    if known is None:
        return TokenRate(failures=tokens.failures, note=tokens.note)
    start_ns, end_ns = max(known[0], known[1] - _RATE_NS), known[1]
    made = tokens.grown(start_ns, end_ns)
    return TokenRate(
        tokens_per_s=None if made is None or end_ns - start_ns < S else made / ((end_ns - start_ns) / S),
        cv_ratio=_in_time(name, tokens, window, known) if tokens.is_steady else None,
        failures=tokens.failures,
        note=tokens.note,
    )


def _in_time(name: str, tokens: Tokens, window: Window, known: tuple[int, int]) -> float | None:
    """Over full seconds in which the tenant wanted a GPU all the time."""
    demand, counts = window.demand(name), []
    # Pages are read at full seconds: windows from one to the next have a reading near each edge.
    end_ns = known[1] // S * S
    while end_ns - S >= max(known[0], known[1] - window.length_ns):
        made = tokens.grown(end_ns - S, end_ns, _LONGEST_STEP_NS)
        if made is not None and demand.is_whole(end_ns - S - _NEAR_NS, end_ns + _NEAR_NS):
            counts.append(made)
        end_ns -= S
    return variation_in_time(counts)
