# SPDX-License-Identifier: Apache-2.0
"""Tells what a launch takes, by NVML's samples, of who never waits for the end of any (pure).

Problem. What is charged whoever asks late, or never, is a guess both ways: its pauses may be work, and its queue empty
or seconds long. The account cannot tell, for nobody says when anything ended.

Approach. Its process was in so many of the samples and launched so much meanwhile: a launch takes the one by the other,
right on the average, whatever the account thinks; what its other contexts had, for whose work somebody waits, is known.
That is worth more than the account where chance does not make so many or so few samples of what was charged. Those
processes of a tenant count together in that, for each of many may be charged little. Of who is in no sample at all they
together had at most one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fairsched.model import SampledLaunch, TenantGpu
from fairsched.policy.evidence import Evidence, Where
from fairsched.policy.misbehaviour import WatchState
from fairsched.policy.sampled import (
    LAG_NS,
    LEAST_SAMPLES,
    LONG_WINDOW_NS,
    SUSPECT_CHANCE,
    Seen,
    binomial_tail,
)


class Timings(NamedTuple):
    """What is known by samples of who never waits for its work."""

    launches: Mapping[Where, SampledLaunch]
    """Of each process with work for which nobody waits, and that launched some of it lately."""
    less: Mapping[TenantGpu, tuple[int, int]]
    """Who was charged more than it had: since when that is known, and when it was last seen to launch."""

    def begin_ns(self, tenant: str, gpu: str) -> int:
        """Before this moment others were charged what it had, and so it was charged too little. 0: nobody was."""
        since_ns = (
            began_ns for (name, on), (began_ns, _) in self.less.items() if on == gpu and name != tenant
        )
        return max((ns + LAG_NS for ns in since_ns), default=0)


NO_TIMINGS = Timings({}, {})


def time_launches(state: WatchState, evidence: Evidence, before: Timings) -> Timings:
    """One look. ``before``: of the look before."""
    groups: dict[tuple[str | None, str], list[Where]] = {}
    for where in evidence.unanchored:
        looks = state.seen.get(where)
        if looks:
            tenant = next((look.tenant for look in reversed(looks) if look.tenant), None)
            groups.setdefault((tenant, where[1]), []).append(where)
    now_ns, found = evidence.now_ns, dict[Where, SampledLaunch]()
    periods_ns = _periods_ns(state, now_ns) if groups else {}
    less = {key: told for key, told in before.less.items() if now_ns - told[1] <= LONG_WINDOW_NS}
    for (tenant, gpu), wheres in groups.items():
        group = _of_group(state, wheres, periods_ns[gpu], now_ns) if gpu in periods_ns else {}
        found.update(group)
        key = (tenant or "", gpu)
        if key in less or any(one.is_less for one in group.values()):
            less[key] = (less.get(key, (now_ns, 0))[0], now_ns)
    return Timings(found, less)


def _periods_ns(state: WatchState, now_ns: int) -> dict[str, int]:
    """Between two samples, of the GPUs with enough of them since then and one lately: else NVML says nothing now."""
    samples, periods_ns, latest_ns = dict[str, int](), dict[str, int](), dict[str, int]()
    for (_, gpu), looks in state.seen.items():
        for look in looks:
            if look.samples and now_ns - look.t_ns < LONG_WINDOW_NS:
                samples[gpu] = samples.get(gpu, 0) + look.samples
                periods_ns[gpu] = max(periods_ns.get(gpu, 0), look.period_ns)
                latest_ns[gpu] = max(latest_ns.get(gpu, 0), look.last_ns)
    return {
        gpu: ns
        for gpu, ns in periods_ns.items()
        if samples[gpu] >= LEAST_SAMPLES and now_ns - latest_ns[gpu] <= 2 * LAG_NS
    }


def _of_group(
    state: WatchState, wheres: Sequence[Where], period_ns: int, now_ns: int
) -> Mapping[Where, SampledLaunch]:
    begin_ns = now_ns - LONG_WINDOW_NS
    everything = [look for where in wheres for look in state.seen[where]]
    is_less, is_more = _contradicted(everything, state.lasted_ns(begin_ns), period_ns, now_ns)
    found = dict[Where, SampledLaunch]()
    for where in wheres:
        recent = [look for look in state.seen[where] if look.t_ns > begin_ns]
        launches = sum(look.launches for look in recent)
        if launches:
            sampled_ns = sum(look.periods * period_ns - look.anchored_ns for look in recent)
            ns = max(sampled_ns, period_ns / len(wheres)) / launches
            found[where] = SampledLaunch(ns, is_less or is_more, is_less)
    return found


def _contradicted(looks: Sequence[Seen], lasted_ns: int, period_ns: int, now_ns: int) -> tuple[bool, bool]:
    """Whether there are fewer samples than chance makes of what was charged, and whether there are more.

    Not of all that was charged there are samples yet: what is too much must be so without that.
    """
    of = round(lasted_ns / period_ns)
    periods = min(of, round(sum(look.periods for look in looks if look.t_ns > now_ns - LONG_WINDOW_NS)))
    charged_ns = sum(look.charged_ns for look in looks)
    told_ns = sum(look.charged_ns for look in looks if look.t_ns <= now_ns - LAG_NS)
    most, least = min(1.0, charged_ns / lasted_ns), min(1.0, told_ns / lasted_ns)
    is_less = binomial_tail(of - periods, of, 1 - least) < SUSPECT_CHANCE
    return is_less, binomial_tail(periods, of, most) < SUSPECT_CHANCE
