# SPDX-License-Identifier: Apache-2.0
"""Draws a GPU and who shares it: a scenario nobody has tuned to (pure).

Problem. Shipped scenarios are a list, and a list is tuned to. What counts is how a policy does on GPUs and mixes that
nobody chose.

Approach. A draw is a function of (seed, number): a nature from the documented prior (docs/robustness.md) times a mix of
2 to 8 tenants, as the document of a scenario. Nature and mix have random numbers of their own, so a change of one
leaves the other as it was. Only ``random()`` is used, whose sequence Python promises.

What is owed can be had. Two rules, kept by ``_make_fit``. The leaves that want the GPU all the time can use 1.8 times
of it, so it is never idle for want of work. And no leaf is owed more than it can use while it wants: what it is owed at
most, by the reference that judges (reference.entitled), is a tenth of the GPU less than its launches, copies and waits
let it use, or it is given a queue and no pauses. (The reference takes a pause of 5 ms between steps for demand, and any
between launches, or between steps of which several are in flight.)

Terms. steady: a leaf that wants the GPU all the time. capacity: the part of a GPU that a leaf can use while it wants.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from benchmarks.fair.reference import GRACE_NS, entitled
from benchmarks.fair.scenario import Load, Play, Scenario, Tenant
from fairsched.simgpu import GpuSpec

SETTLE_S = 12.0
SECONDS = 15.0
UNIT_US = 1.024
"""The hardware counts slices in these: (8 bit << scale) of them."""
SLICES_US: tuple[tuple[float, float | None], ...] = (
    (0.25, 1024.0),
    (0.125, 2048.0),
    (0.125, 2097.152),
    (0.125, 10_000.0),
    (0.125, 30_000.0),
    (0.25, None),
)
"""Part of the draws, slice; None: any of 0.5 to 30 ms."""
STEP_US = (1000.0, 120_000.0)
KERNEL_US = (20.0, 5000.0)
LAUNCH_BOUND_KERNEL_US = (100.0, 1500.0)
MOST_LAUNCHES = 600
"""Of a step that is no graph: each takes the two processors some 10 us."""
MOST_QUEUED_US = 250_000.0
"""Of a tenant, all its processes and steps in flight: 1.7 points of 15 s. What the end of the measured part cuts of a
queue is nobody's error."""
MOST_QUERY_TENANTS = 2
"""Each asks 20,000 times a second."""
MOST_COPY_RATIO = 0.25
"""Of a step's GPU time, so that all together leave the copy engine room."""
STEADY_CAPACITY = 1.8
SPARE_RATIO = 0.1
ENOUGH_RATIO = 0.95
"""Who can use so much of a GPU may be owed anything: the rest is a round trip."""
ROUND_TRIP_US = 150.0
LAUNCH_US = 60.0
"""What a pause between two launches takes beyond its length."""
_GRACE_US = GRACE_NS / 1000
_T = TypeVar("_T")
_Mapping = dict[str, Any]


class Dice:
    """The random numbers of one part of a draw."""

    def __init__(self, *name: object) -> None:
        self._random = random.Random("/".join(map(str, name)))

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self._random.random()

    def log_between(self, low: float, high: float) -> float:
        """Each factor of two is as likely as the next."""
        return math.exp(self.between(math.log(low), math.log(high)))

    def chance(self, ratio: float) -> bool:
        return self._random.random() < ratio

    def whole(self, low: int, high: int) -> int:
        """Both ends may come."""
        return min(high, low + int(self._random.random() * (high - low + 1)))

    def pick(self, choices: Sequence[tuple[float, _T]]) -> _T:
        """By the weights, which add up to 1."""
        left = self._random.random()
        for weight, choice in choices:
            left -= weight
            if left < 0:
                return choice
        return choices[-1][1]

    def shuffled(self, items: Sequence[_T]) -> list[_T]:
        return [item for _, item in sorted(((self._random.random(), item) for item in items), key=_first)]


def _first(pair: tuple[float, object]) -> float:
    return pair[0]


@dataclass(frozen=True)
class Draw:
    """One of them."""

    seed: int
    number: int
    document: _Mapping
    """Of a scenario file."""

    @property
    def name(self) -> str:
        """Of its file and its results."""
        return f"s{self.seed}-{self.number:03}"

    @property
    def description(self) -> str:
        return str(self.document["description"])


def draw(seed: int, number: int, *, seconds: float = SECONDS, settle_s: float = SETTLE_S) -> Draw:
    """The same whenever and wherever it is asked for."""
    gpu, strangers = _nature(Dice(seed, number, "nature"))
    tenants = _mix(Dice(seed, number, "mix"))
    document: _Mapping = {
        "description": "",
        "seconds": float(seconds),
        "settle_s": float(settle_s),
        "beside_others": True,
        "gpus": [gpu],
        "tenants": tenants,
        "strangers": strangers,
    }
    _make_fit(document)
    document["description"] = describe(document)
    return Draw(seed, number, document)


# ---- the GPU ----


def quantised_us(slice_us: float) -> float:
    """The longest slice the hardware has that is no longer."""
    units, scale = max(1, int(slice_us / UNIT_US + 1e-6)), 0
    while units >> scale > 255:
        scale += 1
    return round((units >> scale << scale) * UNIT_US, 3)


def _nature(dice: Dice) -> tuple[_Mapping, list[_Mapping]]:
    """A GPU, and what runs on it for nobody."""
    slice_us = dice.pick(SLICES_US)
    gpu = {
        "slice_us": quantised_us(slice_us or dice.log_between(500.0, 30_000.0)),
        "switch_us": round(dice.log_between(34.0, 200.0), 1),
        "slice_jitter_ratio": 0.0 if dice.chance(0.5) else round(dice.between(0.01, 0.2), 3),
        "slice_spread_ratio": 0.0 if dice.chance(0.6) else round(dice.between(0.05, 0.3), 3),
        "run_to_completion": dice.chance(0.15),
        "overlap": 2 if dice.chance(0.1) else 1,
    }
    is_shared_with_a_stranger = dice.chance(0.15)
    stranger = {"spread_ratio": 0.1, **_step(dice, KERNEL_US), "cpu_us": round(dice.between(0.0, 5000.0))}
    return gpu, [stranger] if is_shared_with_a_stranger else []


# ---- the mix ----


@dataclass(frozen=True)
class _Traits:
    """What the tenants of one draw have in common."""

    is_constant: bool
    has_copies: bool
    has_launch_bound: bool
    arrives_every_s: float
    """0: all are there from the start."""


def _mix(dice: Dice) -> _Mapping:
    traits = _Traits(
        is_constant=dice.chance(0.5),
        has_copies=dice.chance(0.25),
        has_launch_bound=dice.chance(0.3),
        arrives_every_s=dice.between(0.3, 1.2) if dice.chance(0.5) else 0.0,
    )
    names = [f"t{number}" for number in range(1, dice.whole(2, 8) + 1)]
    place = {name: place for place, name in enumerate(dice.shuffled(names))}
    tenants, queries = {}, 0
    for name in names:
        load = _load(dice, traits, may_query=queries < MOST_QUERY_TENANTS)
        queries += load["wait"] == "query"
        tenants[name] = {
            "weight": float(dice.whole(1, 9)),
            "class": "batch" if dice.chance(0.6 if load["queue_depth"] > 1 else 0.15) else "latency",
            "start_s": round(place[name] * traits.arrives_every_s, 2),
            "loads": [load],
        }
    return _nested(dice, tenants)


def _step(dice: Dice, kernel_us: tuple[float, float]) -> _Mapping:
    """Of 1 to 120 ms where so many launches may be."""
    step_us, kernel = dice.log_between(*STEP_US), round(dice.log_between(*kernel_us), 1)
    kernels = min(math.ceil(step_us / kernel), int(STEP_US[1] / kernel))
    return {"kernels": min(kernels, MOST_LAUNCHES), "kernel_us": kernel}


def _load(dice: Dice, traits: _Traits, *, may_query: bool) -> _Mapping:
    is_launch_bound = traits.has_launch_bound and dice.chance(0.6)
    load = _step(dice, LAUNCH_BOUND_KERNEL_US if is_launch_bound else KERNEL_US)
    step_us = load["kernels"] * load["kernel_us"]
    load |= {
        "spread_ratio": _spread_ratio(dice, traits),
        "submit": "graph" if dice.chance(0.3) and not is_launch_bound else "launch",
        "wait": "query" if dice.chance(0.2) and may_query else "sync",
        "processes": dice.pick(((0.6, 1), (0.2, 2), (0.1, 3), (0.1, 4))),
        "queue_depth": 1 if dice.chance(0.4) else dice.whole(2, 8),
    }
    most = int(MOST_QUEUED_US / step_us)
    load["processes"] = 1 if load["wait"] == "query" else min(load["processes"], most)
    load["queue_depth"] = max(1, min(load["queue_depth"], most // load["processes"]))
    if is_launch_bound:
        load["launch_gap_us"] = round(load["kernel_us"] * dice.between(0.7, 1.6), 1)
    if traits.has_copies and dice.chance(0.5):
        most_bytes = step_us * MOST_COPY_RATIO * GpuSpec.copy_bytes_per_s / 1e6
        load["copy_bytes"] = int(min(dice.log_between(1e5, 6e7), most_bytes))
    return load | _pace(dice, step_us, load["processes"])


def _spread_ratio(dice: Dice, traits: _Traits) -> float:
    if not traits.is_constant:
        return round(dice.between(0.02, 0.3), 3)
    return 0.0 if dice.chance(0.5) else round(dice.between(0.0, 0.02), 3)


def _pace(dice: Dice, step_us: float, processes: int) -> _Mapping:
    """When steps come."""
    kind = dice.pick(((0.55, "closed"), (0.15, "pauses"), (0.15, "poisson"), (0.15, "onoff")))
    if kind == "poisson":
        rate_per_s = dice.between(0.05, 0.5) * 1e6 / (step_us * processes)
        return {"arrival": {"pattern": kind, "rate_per_s": round(rate_per_s, 3)}}
    if kind == "onoff":
        on_ms, off_ms = (float(round(dice.log_between(100.0, 1500.0))) for _ in range(2))
        return {"arrival": {"pattern": kind, "on_ms": on_ms, "off_ms": off_ms}}
    if kind == "pauses":
        return {"cpu_us": float(round(dice.log_between(6000.0, 60_000.0)))}
    is_busy = dice.chance(0.5)
    return {"cpu_us": 0.0 if is_busy else float(round(min(step_us * dice.between(0.0, 0.1), 4000.0)))}


def _nested(dice: Dice, tenants: _Mapping) -> _Mapping:
    """A third of the larger mixes has a team of two to four in it."""
    is_nested, size = dice.chance(0.35), dice.whole(2, 4)
    weight = float(dice.whole(1, 9))
    names = list(tenants)
    if not is_nested or len(names) < 3:
        return tenants
    team = names[: min(size, len(names) - 1)]
    children = {name: tenants[name] for name in team}
    return {"team": {"weight": weight, "children": children}} | {
        name: tenants[name] for name in names if name not in team
    }


# ---- what is owed can be had ----


def capacity_ratio(leaf: Tenant) -> float:
    """The part of a GPU that it can use while it wants it, from its keys alone."""
    return min(1.0, sum(load.processes * _process_ratio(load) for load in leaf.loads))


def _process_ratio(load: Load) -> float:
    gpu_us = load.kernels * load.kernel_us
    gap_us = load.launch_gap_us + LAUNCH_US if load.launch_gap_us else 0.0
    launched_us = (load.kernels - 1) * gap_us
    copy_us = load.copy_bytes / GpuSpec.copy_bytes_per_s * 1e6
    pause_us = load.cpu_us if _wants_in_pauses(load) else 0.0
    if load.queue_depth > 1:
        return gpu_us / max(gpu_us + copy_us, launched_us + pause_us)
    return gpu_us / (max(gpu_us, launched_us + load.kernel_us) + copy_us + pause_us + ROUND_TRIP_US)


def _wants_in_pauses(load: Load) -> bool:
    """Whether its pauses count as demand: short ones do. With a queue a step lasts until it is asked for, after the
    pauses of those that follow, so there is one all the time however long they are."""
    return load.cpu_us <= _GRACE_US or load.queue_depth > 1


def is_steady(leaf: Tenant) -> bool:
    """It wants the GPU all the time, once it is there."""
    return all(load.arrival.pattern == "closed" and _wants_in_pauses(load) for load in leaf.loads)


def owed_at_most(play: Play) -> dict[str, float]:
    """Of a GPU, by leaf: when nobody wants it but itself and those who always do."""
    leaves = play.leaves()
    always = np.array([is_steady(leaf) for leaf in leaves.values()])
    wants = always | np.eye(len(leaves), dtype=np.bool_)
    owed = entitled(wants, list(leaves), play.specs())
    return {leaf: float(owed[n, n]) for n, leaf in enumerate(leaves)}


def steady_capacity(play: Play) -> float:
    """How many GPUs those who always want one could use together."""
    return sum(capacity_ratio(leaf) for leaf in play.leaves().values() if is_steady(leaf))


def is_too_much(leaf: Tenant, owed: float) -> bool:
    """More is owed than it can surely use."""
    capacity = capacity_ratio(leaf)
    return capacity < ENOUGH_RATIO and owed > capacity - SPARE_RATIO


def _make_fit(document: _Mapping) -> None:
    """Change loads until both rules hold; the first leaves become steady if it must be."""
    loads = dict(_loads(document["tenants"]))
    for load in loads.values():
        if steady_capacity(_play(document)) >= STEADY_CAPACITY:
            break
        load.pop("arrival", None)
        _feed(load)
    play = _play(document)
    for leaf, owed in owed_at_most(play).items():
        if is_too_much(play.leaves()[leaf], owed):
            _feed(loads[leaf])


def _feed(load: _Mapping) -> None:
    """It always has a step queued: its capacity is 1."""
    for key in ("launch_gap_us", "copy_bytes"):
        load.pop(key, None)
    if "arrival" not in load:
        load["cpu_us"] = 0.0
    load["queue_depth"] = max(load["queue_depth"], 2)
    most = int(MOST_QUEUED_US / (load["kernels"] * load["kernel_us"]))
    load["processes"] = max(1, min(load["processes"], most // load["queue_depth"]))


def _loads(tenants: _Mapping, prefix: str = "") -> Iterator[tuple[str, _Mapping]]:
    """The one load of each leaf."""
    for name, tenant in tenants.items():
        if "children" in tenant:
            yield from _loads(tenant["children"], f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", tenant["loads"][0]


def _play(document: _Mapping) -> Play:
    return Play("draw", Scenario.model_validate(document))


# ---- in words ----


def describe(document: _Mapping) -> str:
    """One line: who, then where."""
    loads = [load for _, load in _loads(document["tenants"])]
    patterns = [load.get("arrival", {}).get("pattern", "closed") for load in loads]
    words = [f"{len(loads)} tenants {_weights(document['tenants'])}"]
    for what, count in (
        ("launch-bound", sum("launch_gap_us" in load for load in loads)),
        ("on/off", patterns.count("onoff")),
        ("Poisson", patterns.count("poisson")),
        ("with copies", sum("copy_bytes" in load for load in loads)),
    ):
        words += [f"{count} {what}"] if count else []
    words += ["one by one"] if any(_starts(document["tenants"])) else []
    words += ["constant kernels"] if max(load["spread_ratio"] for load in loads) <= 0.02 else []
    return ", ".join(words) + "; " + ", ".join(_nature_words(document))


def _nature_words(document: _Mapping) -> Iterator[str]:
    (gpu,) = document["gpus"]
    yield f"slice {gpu['slice_us'] / 1000:.3g} ms"
    yield f"switch {gpu['switch_us']:.0f} us"
    for key, word in (("slice_jitter_ratio", "jitter"), ("slice_spread_ratio", "unequal")):
        if gpu[key]:
            yield f"{word} {100 * gpu[key]:.0f} %"
    if gpu["run_to_completion"]:
        yield "no preemption"
    if gpu["overlap"] > 1:
        yield "two side by side"
    if document["strangers"]:
        yield "a stranger"


def _weights(tenants: _Mapping) -> str:
    return ":".join(
        f"{tenant['weight']:g}" + (f"({_weights(tenant['children'])})" if "children" in tenant else "")
        for tenant in tenants.values()
    )


def _starts(tenants: _Mapping) -> Iterator[float]:
    for tenant in tenants.values():
        yield from _starts(tenant["children"]) if "children" in tenant else [tenant["start_s"]]
