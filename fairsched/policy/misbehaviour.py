# SPDX-License-Identifier: Apache-2.0
"""Detects tenants that misbehave: work that a freezer cannot end, and work that the account cannot see (pure).

Problem. A kernel that never ends goes on while its owner is frozen. Work submitted past the exports of libcuda is in
no account. Both take what others are owed, and both look like something innocent: a kernel of 200 ms that waits its
turn among twenty, a program that polls and is idle now, one that launches and computes on the CPU for ten seconds
before it asks, one that was thawed just now. Who is accused may be terminated, so accuse on evidence only.

Approach. Two witnesses that know nothing of each other: the account (calls seen, GPU time charged) and NVML's samples
(which process was on the GPU, about seven times a second). Neither alone accuses anybody.

    endless   a context has work, completes none of it for ``endless_ns``, was charged endless_ns / 6 or what its
              bursts, or the launches in flight, may take (so it had its turn), and its process is sampled even
              after that time.
    unseen    a process is sampled far more often than what it was charged can explain, and what it may have had
              queued when it was held.

What a third kind does, leaving its cgroup again and again, is simply seen: moving.py.

Chance is bounded. The number of samples of a process that ran for c sample periods is at most Poisson distributed
with mean c; it must be beyond any doubt (probability below a bound per look) for 1.25 c and a rest. Where a process has
other contexts that go on, only samples beyond what those explain speak for the one that does not.

Suspicion is cheap, accusation is not. From the second unexplained sample on a process is a *suspect*: the looks
come faster, and somebody reads which libcuda files it maps. Samples from before all of those had probes speak
against nobody; of one whose libraries were watched all the time fewer samples, sooner, leave as little to chance.

Launches that go on show that the work does: each must be explained by twice the time. So a program that never asks but
launches (nosync, polling) is not endless. An episode ends when nothing spoke for it for ``clear_ns``.

Terms. *look*: one call, about once a second. *mark*: since when a context made no progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fairsched.model import NEVER_NS, QUEUE_LAUNCHES, ContextKey, ContextWork, MisbehaviourKind
from fairsched.policy.evidence import (
    Episode,
    EpisodeKey,
    Evidence,
    Leave,
    MisbehaviourLimits,
    Where,
)
from fairsched.policy.moving import moving, recent_leaves
from fairsched.policy.sampled import (
    CHANCE,
    LAG_NS,
    LEAST_SAMPLES,
    LONG_WINDOW_NS,
    REST_PER_S,
    SHORT_WINDOW_NS,
    SUSPECT_CHANCE,
    Seen,
    Span,
    is_beyond,
    remember,
    remember_spans,
    summed,
)

_LEAST_NS = 100_000_000
_STUCK_SAMPLES = 3
_UNKNOWN_SAMPLES = 4
_UNKNOWN_REST_PER_S = 0.003
"""Both of a process whose libraries are watched, and in none of which it made a call that took GPU time."""
_SUSPECT_SAMPLES = 2
_STUCK_CHANCE = 1e-4
"""Enough for a context that the account also knows to be stuck."""
_LONG_LAUNCH_NS = 10_000_000
"""Each of many launches in flight may take so long ..."""
_TIMES_AS_LONG = 3
"""... but no more than so many times what those took that have ended, where as many have."""
_LOOKS = 24
"""Of a context that are kept, at most: urgent looks come more often."""
_RECENT_NS = 2_500_000_000
_YOUNG_NS = 2_900_000_000
"""A process that was first sampled less than this ago may be waiting for its libcuda to be probed."""
_QUEUED_NS = 2_000_000_000
"""For so long after its libcuda got probes a process may have work queued from before."""
_WATCHED_YOUNG_NS = 1_000_000_000
"""Of a process whose libraries are known to be watched: its charges may be late by a tick."""


class Mark(NamedTuple):
    """A context at the moment it was last seen to make progress."""

    since_ns: int
    submitted: int
    completed: int
    charged_ns: int
    looks: tuple[tuple[int, int], ...]
    """(time, charged_ns) of the last looks; the newest is of now."""


@dataclass(frozen=True)
class WatchState:
    """What is remembered between two looks. Treat as immutable."""

    marks: Mapping[ContextKey, Mark] = field(default_factory=dict)
    seen: Mapping[Where, tuple[Seen, ...]] = field(default_factory=dict)
    episodes: Mapping[EpisodeKey, Episode] = field(default_factory=dict)
    suspects: frozenset[int] = frozenset()
    """Processes that are sampled more than what they were charged explains: find out whether their calls are seen."""
    leaves: tuple[Leave, ...] = ()
    """Of the last seconds."""
    spans: tuple[Span, ...] = ()
    """Of the last looks."""
    unknown: frozenset[Where] = frozenset()
    """Suspects that were charged nothing: whatever they do there is in no account."""
    is_urgent: bool = False
    """Some work is suspicious since lately and lacks a sample or two: look again soon."""

    def lasted_ns(self, begin_ns: int, since_ns: int = 0) -> int:
        """What looks after ``begin_ns`` added: how long that took, of the time from ``since_ns`` on. Never 0."""
        spans = (span for span in self.spans if span.end_ns > begin_ns)
        return max(_LEAST_NS, sum(max(0, span.end_ns - max(span.begin_ns, since_ns)) for span in spans))

    def free_ns(self, tenant: str, begin_ns: int, since_ns: int = 0) -> int:
        """The same without the time in which it was held; what it had queued goes on meanwhile."""
        held = (span.held_ns.get(tenant, 0) for span in self.spans if span.end_ns > begin_ns)
        return max(_LEAST_NS, self.lasted_ns(begin_ns, since_ns) - sum(held))


def judge(evidence: Evidence, state: WatchState, limits: MisbehaviourLimits) -> WatchState:
    """Judge the evidence of one look. ``episodes`` of the result are what is going on now."""
    all_work = [work for works in evidence.works.values() for work in works]
    marks = {work.key: _mark(work, state.marks.get(work.key), evidence.now_ns, limits) for work in all_work}
    # NVML keeps samples of many seconds: the first ones are of a time at which nobody was charged anything.
    seen = {} if evidence.is_blind else remember(evidence, state.seen)
    state = replace(state, spans=remember_spans(evidence, state.spans))
    found: dict[EpisodeKey, Episode] = {}
    suspects: dict[int, bool] = {}
    unknown: set[Where] = set()
    for where, looks in seen.items():
        tenant = next((look.tenant for look in reversed(looks) if look.samples), None)
        if tenant is None:
            continue
        one = _endless(tenant, where, evidence, marks, looks, limits)
        if one is None:
            is_lost = tenant in evidence.over_budget
            # Who is charged by samples may be charged little because there were few.
            is_guess = is_lost or (where in evidence.unanchored and any(look.launches for look in looks))
            one = None if is_guess else _unseen(tenant, where, looks, evidence, state)
            first_ns = None if is_lost else _suspected_since_ns(looks, evidence.now_ns)
            if first_ns is not None:
                is_recent = evidence.now_ns - first_ns < SHORT_WINDOW_NS
                suspects[where[0]] = suspects.get(where[0], False) or is_recent
                if not any(look.charged_ns for look in looks):
                    unknown.add(where)
        if one is not None:
            key = (one.tenant, one.gpu, one.kind)
            found[key] = _merge(found[key], one) if key in found else one
    accused = {pid for one in found.values() for pid in one.pids}
    leaves = recent_leaves((*state.leaves, *evidence.leaves), evidence.now_ns)
    found |= moving(leaves, evidence.now_ns)
    is_urgent = any(is_recent and pid not in accused for pid, is_recent in suspects.items()) or any(
        work.pid not in accused and _is_suspect(work, marks[work.key], evidence.now_ns, limits)
        for work in all_work
    )
    episodes = _episodes(state.episodes, found, evidence, limits)
    suspected = frozenset(suspects)
    return WatchState(marks, seen, episodes, suspected, leaves, state.spans, frozenset(unknown), is_urgent)


# ---- endless ----


def _mark(work: ContextWork, before: Mark | None, now_ns: int, limits: MisbehaviourLimits) -> Mark:
    looks: tuple[tuple[int, int], ...] = ((now_ns, work.charged_ns),)
    if before is None:
        return _begun(work, 0, work.charged_then_ns, now_ns, looks)
    kept = before.looks
    if now_ns - kept[0][0] > SHORT_WINDOW_NS + 2 * LAG_NS:
        kept = kept[1:]
    looks = (*kept[-_LOOKS:], *looks)
    last_ns, last_charged_ns = before.looks[-1]
    has_progressed = not work.is_outstanding or work.completed != before.completed
    if has_progressed or work.charged_ns < before.charged_ns:  # the account moved it to another GPU
        return _begun(work, last_ns, last_charged_ns, now_ns, looks)
    is_over = work.submitted > before.submitted and now_ns - before.since_ns >= limits.endless_ns
    if is_over and work.charged_ns - before.charged_ns < _turn_ns(work, before, limits):
        return Mark(now_ns, work.submitted, work.completed, work.charged_ns, looks)
    return before._replace(looks=looks)


def _begun(
    work: ContextWork, last_ns: int, last_charged_ns: int, now_ns: int, looks: tuple[tuple[int, int], ...]
) -> Mark:
    """Its burst has been going on since it began, but no progress was made only since the look before."""
    since_ns, charged_ns = last_ns, last_charged_ns
    if work.since_ns >= last_ns:
        since_ns, charged_ns = work.since_ns, work.charged_then_ns
    if not work.is_outstanding:
        since_ns, charged_ns = now_ns, work.charged_ns
    return Mark(
        min(since_ns, now_ns), work.submitted, work.completed, min(charged_ns, work.charged_ns), looks
    )


def _turn_ns(work: ContextWork, mark: Mark, limits: MisbehaviourLimits) -> int:
    """GPU time that shows that its work does not end. Each launch since the mark is a sign that it does."""
    launches = work.submitted - mark.submitted
    return max(limits.turn_ns, work.expected_ns, _queued_ns(work, mark)) + 2 * launches * limits.turn_ns


def _queued_ns(work: ContextWork, mark: Mark) -> int:
    """What the launches in flight may take: of who never asks, so much longer than those before them that have ended,
    for there was no room for more in flight."""
    in_flight = min(work.submitted - work.completed, QUEUE_LAUNCHES * work.streams)
    ended = mark.submitted - in_flight
    is_known = ended >= in_flight > 0 and not work.is_late
    each_ns = _TIMES_AS_LONG * mark.charged_ns // ended if is_known else _LONG_LAUNCH_NS
    return in_flight * min(each_ns, _LONG_LAUNCH_NS)


def _is_stuck(work: ContextWork, mark: Mark, now_ns: int, limits: MisbehaviourLimits) -> bool:
    if not work.is_outstanding or now_ns - mark.since_ns < limits.endless_ns:
        return False
    return work.charged_ns - mark.charged_ns >= _turn_ns(work, mark, limits)


def _is_suspect(work: ContextWork, mark: Mark, now_ns: int, limits: MisbehaviourLimits) -> bool:
    """Nearly stuck, since lately: the next look may tell."""
    if not work.is_outstanding or not 1 <= (now_ns - mark.since_ns) // limits.endless_ns < 2:
        return False
    return 2 * (work.charged_ns - mark.charged_ns) >= _turn_ns(work, mark, limits)


def _endless(
    tenant: str,
    where: Where,
    evidence: Evidence,
    marks: Mapping[ContextKey, Mark],
    looks: tuple[Seen, ...],
    limits: MisbehaviourLimits,
) -> Episode | None:
    works, now_ns = evidence.works.get(where, ()), evidence.now_ns
    stuck = [work for work in works if _is_stuck(work, marks[work.key], now_ns, limits)]
    if not stuck:
        return None
    since_ns = min(marks[work.key].since_ns for work in stuck)
    begin_ns = max(since_ns, now_ns - SHORT_WINDOW_NS)
    samples, periods, _, period_ns = summed(looks, begin_ns)
    if samples < _STUCK_SAMPLES:
        return None
    last_ns = max(look.last_ns for look in looks if look.samples)
    if last_ns < since_ns + limits.endless_ns or now_ns - last_ns > _RECENT_NS:
        return None  # it may have ended, and nobody told
    names = {work.key for work in stuck}
    others_ns = sum(
        _charged_since(work, marks[work.key], begin_ns) for work in works if work.key not in names
    )
    if not is_beyond(periods, others_ns / period_ns, now_ns - begin_ns, _STUCK_CHANCE):
        return None
    return Episode(
        tenant,
        where[1],
        MisbehaviourKind.ENDLESS,
        since_ns,
        now_ns,
        (where[0],),
        contexts=len(stuck),
        stuck_ns=now_ns - since_ns,
        charged_ns=sum(work.charged_ns - marks[work.key].charged_ns for work in stuck),
        samples=samples,
        window_ns=now_ns - begin_ns,
    )


def _charged_since(work: ContextWork, mark: Mark, begin_ns: int) -> int:
    older = [charged_ns for t_ns, charged_ns in mark.looks if t_ns <= begin_ns - LAG_NS]
    return work.charged_ns - (older[-1] if older else mark.looks[0][1])


# ---- unseen ----


def _unseen(
    tenant: str, where: Where, looks: tuple[Seen, ...], evidence: Evidence, state: WatchState
) -> Episode | None:
    if evidence.watched_since_ns.get(where[0]) == NEVER_NS:
        return None  # that nothing of it is seen is no doing of its own
    now_ns, watched_ns = evidence.now_ns, _watched_since_ns(where[0], looks, evidence)
    if now_ns < evidence.late_until_ns and where[0] not in evidence.watched_since_ns:
        return None  # it may be one that waits for its probes
    if watched_ns is not None:
        looks = _since(looks, watched_ns + _QUEUED_NS)
    moments_ns = [moment for look in looks if look.samples for moment in (look.first_ns, look.last_ns)]
    if not moments_ns or now_ns - max(moments_ns) > SHORT_WINDOW_NS:
        return None
    if now_ns - min(moments_ns) < (_YOUNG_NS if watched_ns is None else _WATCHED_YOUNG_NS):
        return None
    has_work = any(work.is_outstanding for work in evidence.works.get(where, ()))
    # What is charged is set right late; and what was queued goes on during a hold, for how long is a guess.
    is_heard = has_work or any(look.charged_ns for look in looks)
    for window_ns in (LONG_WINDOW_NS,) if is_heard else (SHORT_WINDOW_NS, LONG_WINDOW_NS):
        begin_ns = now_ns - window_ns
        samples, periods, charged_ns, period_ns = summed(looks, begin_ns)
        if charged_ns and where[1] in evidence.unsure:
            continue
        least, rest_per_s = LEAST_SAMPLES, REST_PER_S
        if watched_ns is not None and not charged_ns and window_ns == SHORT_WINDOW_NS:
            least, rest_per_s = _UNKNOWN_SAMPLES, _UNKNOWN_REST_PER_S
        free_ns, may_ns = state.free_ns(tenant, begin_ns), charged_ns
        if is_heard:
            may_ns += state.lasted_ns(begin_ns) - free_ns
        if samples >= least and is_beyond(periods, may_ns / period_ns, free_ns, CHANCE, rest_per_s):
            first_ns = min(look.first_ns for look in looks if look.samples and look.t_ns > begin_ns)
            return Episode(
                tenant,
                where[1],
                MisbehaviourKind.UNSEEN,
                first_ns,
                now_ns,
                (where[0],),
                charged_ns=charged_ns,
                samples=samples,
                window_ns=now_ns - max(begin_ns, first_ns),
                is_certain=where[0] in evidence.watched_since_ns,
            )
    return None


def _watched_since_ns(pid: int, looks: tuple[Seen, ...], evidence: Evidence) -> int | None:
    """None: not known, or so long after it was first sampled that loading one more library looks like an excuse, while
    nobody had to wait long."""
    watched_ns = evidence.watched_since_ns.get(pid)
    first_ns = min((look.first_ns for look in looks if look.samples), default=evidence.now_ns)
    if watched_ns is None or watched_ns <= evidence.late_until_ns:
        return watched_ns
    return None if watched_ns - first_ns > _YOUNG_NS else watched_ns


def _since(looks: tuple[Seen, ...], begin_ns: int) -> tuple[Seen, ...]:
    """Without the samples of a time at which calls were not seen; what was charged then was charged all the same."""
    return tuple(
        look if look.first_ns >= begin_ns else look._replace(samples=0, periods=0.0) for look in looks
    )


def _suspected_since_ns(looks: tuple[Seen, ...], now_ns: int) -> int | None:
    """The first sample of a process that the short window makes a suspect."""
    samples, periods, charged_ns, period_ns = summed(looks, now_ns - SHORT_WINDOW_NS)
    if samples < _SUSPECT_SAMPLES:
        return None
    if not is_beyond(periods, charged_ns / period_ns, SHORT_WINDOW_NS, SUSPECT_CHANCE):
        return None
    return min(look.first_ns for look in looks if look.samples)


# ---- memory ----


def _merge(one: Episode, other: Episode) -> Episode:
    """Two processes of one tenant. One that is certain stands for both: the other may not be ended."""
    if one.is_certain != other.is_certain:
        certain = one if one.is_certain else other
        return replace(certain, since_ns=min(one.since_ns, other.since_ns))
    return replace(
        one,
        since_ns=min(one.since_ns, other.since_ns),
        pids=tuple(sorted({*one.pids, *other.pids})),
        contexts=None if one.contexts is None else one.contexts + (other.contexts or 0),
        stuck_ns=None if one.stuck_ns is None else max(one.stuck_ns, other.stuck_ns or 0),
        charged_ns=one.charged_ns + other.charged_ns,
        samples=one.samples + other.samples,
        window_ns=max(one.window_ns, other.window_ns),
    )


def _episodes(
    before: Mapping[EpisodeKey, Episode],
    found: Mapping[EpisodeKey, Episode],
    evidence: Evidence,
    limits: MisbehaviourLimits,
) -> dict[EpisodeKey, Episode]:
    """What its tenant's being held hides does not clear it."""
    after: dict[EpisodeKey, Episode] = {}
    for key, old in before.items():
        seen_ns = old.seen_ns + evidence.held_ns.get(old.tenant, 0)
        if evidence.now_ns - seen_ns < limits.clear_ns:
            after[key] = replace(old, seen_ns=seen_ns)
    for key, new in found.items():
        known = after.get(key)
        after[key] = new if known is None else replace(new, since_ns=min(known.since_ns, new.since_ns))
    return after
