# SPDX-License-Identifier: Apache-2.0
"""What a recording says about fairness: figures for the whole, by leaf and by GPU (pure).

Problem. A policy must not be judged by its own account, and no figure may flatter it: not by windows in which
a leaf wanted nothing, not by whole tokens, not by leaving out who never finished a step.

Approach. Everything comes from the engine's counters and the step logs by way of the fluid reference
(reference.py); only ``account_error`` looks at what the daemon said. What does not apply is None.

share: received of the pie; entitlement: owed of the pie (reference.py); error: their difference in points, per
GPU; of a leaf on several the one furthest off. lag: owed less received, cumulated from the start.
Jain: of received / owed over the leaves that wanted the GPU in the whole window, in windows that slide by .1 s;
fewer than two such leaves: the window does not count. Mean and worst are over all GPUs.
token/s CV in time: over seconds side by side in which the leaf wanted all the time, at least three; across: over
leaves of one group, of token/s times what a token costs, where that differs. Both with n - 1.
step: how long those took that ended, and those still under way, which count as old as they are (latency.py).
queue delay: the time a leaf's contexts could run and did not; per step that ended, and as wait_ratio per second
of demand.
gain (hostile leaves): the largest share error, as it is: negative when the trick costs its owner something.
account error: growth of the account over growth of the truth - 1, between the first and the last reading; for
the whole only leaves count that have a tenth of the GPU time and high confidence in every reading. What is said of
it since the first reading, before the measured part began: account.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.fair import series
from benchmarks.fair.account import Account, account, error_max_ratio, unsettled
from benchmarks.fair.latency import finished_ms, latencies_ms
from benchmarks.fair.recording import Recording
from benchmarks.fair.reference import Fluid, Truth, fluid
from benchmarks.fair.take_back import TakeBack, take_backs
from benchmarks.fair.windows import (
    MS,
    Array,
    Curve,
    S,
    clipped,
    covered,
    fixed,
    intersection,
    sliding,
    summed,
    token_curve,
    tokens_cv_across,
)
from benchmarks.stats import interpolated, jain, variation

WHOLE_RATIO = 0.99
"""Of a window in demand counts as all of it: the machine that plays this hiccups now and then."""
_FEWEST_WINDOWS = 3


@dataclass(frozen=True)
class LeafMeasures:
    """One leaf over the measured part."""

    share_ratio: float | None
    entitlement_ratio: float | None
    share_error_points: float | None
    lag_max_ns: float | None
    gain_points: float | None
    tokens_per_s: float | None
    """While its processes were there."""
    tokens_cv_ratio: float | None
    step_p50_ms: float | None
    step_p95_ms: float | None
    step_p99_ms: float | None
    least_of_due_10s_ratio: float | None
    """Received / owed in the worst ten seconds in which it wanted the GPU all the time: below .25 it was locked out."""
    queue_delay_ms: float | None
    """Mean per step."""
    wait_ratio: float | None
    held_ms_per_s: float
    holds_per_s: float
    hold_longest_ms: float | None
    drain_overshoot_p50_ms: float | None
    drain_overshoot_p95_ms: float | None
    """Execution during a hold."""
    take_back_p50_ms: float | None
    take_back_p95_ms: float | None
    take_backs: int
    account_error_ratio: float | None
    account_error_sure_ratio: float | None
    """Where it was sure."""
    account_error_sure_max_ratio: float | None
    """Of the worst two seconds in which it was sure, since the first reading."""
    held_unsettled_ms: float | None
    """Since the first reading: until every account was right or said that it was not sure, and while one was sure and
    wrong later."""
    low_confidence_ratio: float | None
    """Part of the readings that say so."""
    unsure_after_s: float | None
    """From its start until the daemon first said that it is not sure of it."""
    misbehaviour_after_s: float | None
    """From its start until the daemon first named it, as what it is."""
    misbehaviour_gone_after_s: float | None
    """From then until it executed no more."""


@dataclass(frozen=True)
class WholeMeasures:
    """The run."""

    share_error_max_points: float | None
    lag_max_ns: float | None
    jain_1s_mean: float | None
    jain_1s_worst: float | None
    jain_10s_mean: float | None
    jain_10s_worst: float | None
    least_of_due_10s_ratio: float | None
    """Of the leaf that fared worst."""
    tokens_cv_across_ratio: float | None
    """Of the group that is worst."""
    tokens_per_s: float | None
    busy_ratio: float | None
    """Mean over the GPUs."""
    held_ms_per_s: float
    hold_longest_ms: float | None
    drain_overshoot_p50_ms: float | None
    drain_overshoot_p95_ms: float | None
    take_back_p50_ms: float | None
    take_back_p95_ms: float | None
    take_back_beyond_drain_p50_ms: float | None
    take_back_beyond_drain_p95_ms: float | None
    take_backs: int
    cpu_ratio: float | None
    rss_bytes: int | None
    account_error_max_ratio: float | None
    account_error_sure_max_ratio: float | None
    account_unsettled_s: float | None
    """That time; and the sum of the holds in it."""
    held_unsettled_ms: float | None


@dataclass(frozen=True)
class Measures:
    """All of it; ``gpus`` by index: busy_ratio, and share, entitlement, error and lag of each leaf there."""

    whole: WholeMeasures
    leaves: Mapping[str, LeafMeasures]
    gpus: Mapping[int, Mapping[str, Any]]
    misbehaviour: Mapping[str, str]
    """Leaf -> what the daemon said of it first."""
    series: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; ``whole`` and each of ``leaves`` hold numbers and None only."""
        return {
            "whole": asdict(self.whole),
            "leaves": {leaf: asdict(figures) for leaf, figures in self.leaves.items()},
            "gpus": {str(gpu): dict(figures) for gpu, figures in self.gpus.items()},
            "misbehaviour": dict(self.misbehaviour),
            "series": dict(self.series),
        }


def measure(
    recording: Recording,
    *,
    equal_groups: Iterable[Sequence[str]] = (),
    token_cost_ns: Mapping[str, float] | None = None,
) -> Measures:
    """Judge one run. ``equal_groups``: leaves whose token/s should be the same; with ``token_cost_ns`` (GPU
    time of a token, for all of a group or for none) unlike loads may be compared as well."""
    truth = Truth(recording)
    flows = [fluid(truth, gpu) for gpu in sorted({gpu for gpus in truth.gpus.values() for gpu in gpus})]
    returns = [one for flow in flows for one in take_backs(truth, flow)]
    said = account(recording)
    unproven = unsettled(recording, said)
    tokens = {leaf: token_curve(recording.steps.get(leaf, ())) for leaf in recording.leaves}
    leaves = {
        leaf: _leaf(
            truth, leaf, flows, tokens[leaf], [r for r in returns if r.leaf == leaf], said[leaf], unproven
        )
        for leaf in recording.leaves
    }
    rates = {leaf: figures.tokens_per_s for leaf, figures in leaves.items()}
    across = tokens_cv_across(rates, equal_groups, token_cost_ns or {})
    return Measures(
        whole=_whole(truth, flows, returns, leaves, said, unproven, across),
        leaves=leaves,
        gpus={flow.gpu: _gpu(recording, flow) for flow in flows},
        misbehaviour={leaf: one.misbehaviour for leaf, one in said.items() if one.misbehaviour},
        series=_series(truth, flows, tokens),
    )


# ---- a leaf ----


def _leaf(
    truth: Truth,
    leaf: str,
    flows: Sequence[Fluid],
    tokens: Curve,
    returns: Sequence[TakeBack],
    said: Account,
    unproven: Array | None,
) -> LeafMeasures:
    recording = truth.recording
    start, end = recording.start_ns, recording.end_ns
    mine = [flow for flow in flows if leaf in flow.leaves]
    errors = [error for flow in mine if (error := _share_error_points(flow, leaf)) is not None]
    pie = sum(_grown(recording, flow.pie) for flow in mine)
    latency = latencies_ms(truth, leaf)
    waited = sum(_grown(recording, truth.waited[leaf, flow.gpu]) for flow in mine)
    wanted = _grown(recording, covered(truth.demand[leaf]))
    holds, overshoot = _holds(truth, leaf), _overshoots_ms(truth, leaf)
    took = [one.took_ns / MS for one in returns]
    return LeafMeasures(
        share_ratio=_over(sum(_grown(recording, flow.received[leaf]) for flow in mine), pie),
        entitlement_ratio=_over(sum(_grown(recording, flow.owed[leaf]) for flow in mine), pie),
        share_error_points=max(errors, key=abs, default=None),
        lag_max_ns=max((float(np.abs(flow.lag_ns(leaf)).max()) for flow in mine), default=None),
        gain_points=max(errors, default=None) if leaf in recording.hostile else None,
        tokens_per_s=_tokens_per_s(recording, leaf, tokens),
        tokens_cv_ratio=_tokens_cv(truth, leaf, tokens),
        step_p50_ms=interpolated(latency, 50),
        step_p95_ms=interpolated(latency, 95),
        step_p99_ms=interpolated(latency, 99),
        least_of_due_10s_ratio=_least(_least_of_due(flow, leaf) for flow in mine),
        queue_delay_ms=_over(waited / MS, len(finished_ms(recording, leaf))) if mine else None,
        wait_ratio=_over(waited, wanted) if mine else None,
        held_ms_per_s=float((clipped(holds, start, end) @ [-1, 1]).sum() / MS / recording.seconds),
        holds_per_s=float(((holds[:, 0] >= start) & (holds[:, 0] < end)).sum() / recording.seconds),
        hold_longest_ms=float((holds @ [-1, 1]).max() / MS) if len(holds) else None,
        drain_overshoot_p50_ms=interpolated(overshoot, 50),
        drain_overshoot_p95_ms=interpolated(overshoot, 95),
        take_back_p50_ms=interpolated(took, 50),
        take_back_p95_ms=interpolated(took, 95),
        take_backs=len(took),
        account_error_ratio=said.error_ratio,
        account_error_sure_ratio=said.error_sure_ratio,
        account_error_sure_max_ratio=said.error_sure_max_ratio,
        held_unsettled_ms=_held_in_ms(truth, leaf, unproven),
        low_confidence_ratio=said.low_confidence_ratio,
        unsure_after_s=said.unsure_after_s,
        misbehaviour_after_s=said.misbehaviour_after_s,
        misbehaviour_gone_after_s=said.misbehaviour_gone_after_s,
    )


def _share_error_points(flow: Fluid, leaf: str) -> float | None:
    first, last = flow.edges_ns[0], flow.edges_ns[-1]
    over = float(flow.received[leaf].grown(first, last) - flow.owed[leaf].grown(first, last))
    part = _over(over, float(flow.pie.grown(first, last)))
    return None if part is None else 100 * part


def _least_of_due(flow: Fluid, leaf: str) -> float | None:
    """Of windows of ten seconds in which it wanted the GPU all the time and was owed something."""
    windows = sliding(flow.edges_ns[0], flow.edges_ns[-1], 10 * S)
    received, owed = flow.received[leaf].grown(*windows), flow.owed[leaf].grown(*windows)
    counts = (flow.wanted[leaf].grown(*windows) >= WHOLE_RATIO * 10 * S) & (owed > 0)
    return float((received[counts] / owed[counts]).min()) if counts.any() else None


def _tokens_per_s(recording: Recording, leaf: str, tokens: Curve) -> float | None:
    if not len(tokens.at_ns) or leaf not in recording.present_ns:
        return None
    start = max(recording.start_ns, recording.present_ns[leaf][0])
    end = min(recording.end_ns, recording.present_ns[leaf][1])
    return _over(float(tokens.grown(start, end)), (end - start) / S) if end > start else None


def _tokens_cv(truth: Truth, leaf: str, tokens: Curve) -> float | None:
    if not len(tokens.at_ns):
        return None
    starts, ends = fixed(truth.recording.start_ns, truth.recording.end_ns, 1 * S)
    is_whole = covered(truth.demand[leaf]).grown(starts, ends) >= WHOLE_RATIO * S
    if is_whole.sum() < _FEWEST_WINDOWS:
        return None
    return variation(tokens.grown(starts, ends)[is_whole])


def _holds(truth: Truth, leaf: str) -> Array:
    """Those that touch the measured part, whole."""
    held = truth.held[leaf]
    touches = (held[:, 1] > truth.recording.start_ns) & (held[:, 0] < truth.recording.end_ns)
    return np.asarray(held[touches], dtype=np.float64)


def _held_in_ms(truth: Truth, leaf: str, of: Array | None) -> float | None:
    return None if of is None else float(covered(intersection(truth.held[leaf], of)).total[-1:].sum() / MS)


def _overshoots_ms(truth: Truth, leaf: str) -> list[float]:
    """By hold that begins in the measured part."""
    held = _holds(truth, leaf)
    held = held[held[:, 0] >= truth.recording.start_ns]
    ran = truth.service(leaf).grown(held[:, 0], held[:, 1])
    return [float(value) for value in ran / MS]


# ---- the whole ----


def _whole(
    truth: Truth,
    flows: Sequence[Fluid],
    returns: Sequence[TakeBack],
    leaves: Mapping[str, LeafMeasures],
    said: Mapping[str, Account],
    unproven: Array | None,
    across: float | None,
) -> WholeMeasures:
    recording = truth.recording
    jain_1s, jain_10s = _jain(recording, flows, 1 * S), _jain(recording, flows, 10 * S)
    overshoot = [value for leaf in recording.leaves for value in _overshoots_ms(truth, leaf)]
    took, beyond = [r.took_ns / MS for r in returns], [r.beyond_drain_ns / MS for r in returns]
    busy = _busy(recording)
    return WholeMeasures(
        share_error_max_points=_most(one.share_error_points for one in leaves.values()),
        lag_max_ns=_most(one.lag_max_ns for one in leaves.values()),
        jain_1s_mean=float(jain_1s.mean()) if len(jain_1s) else None,
        jain_1s_worst=float(jain_1s.min()) if len(jain_1s) else None,
        jain_10s_mean=float(jain_10s.mean()) if len(jain_10s) else None,
        jain_10s_worst=float(jain_10s.min()) if len(jain_10s) else None,
        least_of_due_10s_ratio=_least(one.least_of_due_10s_ratio for one in leaves.values()),
        tokens_cv_across_ratio=across,
        tokens_per_s=_total(one.tokens_per_s for one in leaves.values()),
        busy_ratio=float(np.mean([_grown(recording, c) for c in busy])) / recording.seconds / S
        if busy
        else None,
        held_ms_per_s=sum(one.held_ms_per_s for one in leaves.values()),
        hold_longest_ms=_most(one.hold_longest_ms for one in leaves.values()),
        drain_overshoot_p50_ms=interpolated(overshoot, 50),
        drain_overshoot_p95_ms=interpolated(overshoot, 95),
        take_back_p50_ms=interpolated(took, 50),
        take_back_p95_ms=interpolated(took, 95),
        take_back_beyond_drain_p50_ms=interpolated(beyond, 50),
        take_back_beyond_drain_p95_ms=interpolated(beyond, 95),
        take_backs=len(returns),
        cpu_ratio=recording.cpu_ratio,
        rss_bytes=recording.rss_bytes,
        account_error_max_ratio=error_max_ratio(said),
        account_error_sure_max_ratio=_most(one.error_sure_max_ratio for one in said.values()),
        account_unsettled_s=None if unproven is None else float((unproven @ [-1, 1]).sum() / S),
        held_unsettled_ms=_total(one.held_unsettled_ms for one in leaves.values()),
    )


def _busy(recording: Recording) -> list[Curve]:
    samples = recording.samples
    at = np.array([sample.at_ns for sample in samples], dtype=np.float64)
    gpus = len(samples[0].busy_ns) if samples else 0
    return [Curve(at, np.array([s.busy_ns[gpu] for s in samples], dtype=np.float64)) for gpu in range(gpus)]


def _jain_in(flow: Fluid, windows: tuple[Array, Array]) -> Array:
    """One index per window; NaN where it does not count."""
    received, owed, wanted = (
        np.stack([curves[leaf].grown(*windows) for leaf in flow.leaves], axis=1)
        for curves in (flow.received, flow.owed, flow.wanted)
    )
    return jain(received, owed, wanted >= WHOLE_RATIO * (windows[1] - windows[0])[:, None])


def _jain(recording: Recording, flows: Sequence[Fluid], length_ns: int) -> Array:
    windows = sliding(recording.start_ns, recording.end_ns, length_ns)
    index = np.concatenate([np.zeros(0), *(_jain_in(flow, windows) for flow in flows)])
    return np.asarray(index[~np.isnan(index)], dtype=np.float64)


def _gpu(recording: Recording, flow: Fluid) -> dict[str, Any]:
    busy, pie = _busy(recording), _grown(recording, flow.pie)
    known = flow.gpu < len(busy)
    return {
        "busy_ratio": _grown(recording, busy[flow.gpu]) / S / recording.seconds if known else None,
        "leaves": {
            leaf: {
                "share_ratio": _over(_grown(recording, flow.received[leaf]), pie),
                "entitlement_ratio": _over(_grown(recording, flow.owed[leaf]), pie),
                "share_error_points": _share_error_points(flow, leaf),
                "lag_max_ns": float(np.abs(flow.lag_ns(leaf)).max()),
            }
            for leaf in flow.leaves
        },
    }


def _series(truth: Truth, flows: Sequence[Fluid], tokens: Mapping[str, Curve]) -> dict[str, Any]:
    recording = truth.recording
    windows = series.grid(recording.start_ns, recording.end_ns, len(recording.leaves))
    parts, busy = {}, _busy(recording)
    for leaf in recording.leaves:
        mine = [flow for flow in flows if leaf in flow.leaves]
        parts[leaf] = (
            summed(flow.received[leaf] for flow in mine),
            summed(flow.owed[leaf] for flow in mine),
            summed(flow.pie for flow in mine),
        )
    every = np.stack([_jain_in(flow, windows) for flow in flows]) if flows else np.zeros((0, len(windows[0])))
    worst = np.min(np.where(np.isnan(every), np.inf, every), axis=0, initial=np.inf)
    together = summed(busy)
    return series.series(
        windows,
        parts,
        {leaf: curve for leaf, curve in tokens.items() if len(curve.at_ns)},
        Curve(together.at_ns, together.total / max(len(busy), 1)),
        np.where(np.isinf(worst), np.nan, worst),
        {leaf: latencies_ms(truth, leaf) for leaf in recording.leaves},
    )


# ---- small arithmetic ----


def _grown(recording: Recording, curve: Curve) -> float:
    return float(curve.grown(recording.start_ns, recording.end_ns))


def _over(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((abs(value) for value in values if value is not None), default=None)


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
