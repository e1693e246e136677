# SPDX-License-Identifier: Apache-2.0
"""Recordings of runs that never were, with answers that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.fair.measures import Measures, measure
from benchmarks.fair.recording import HeldTime, Recording, Sample, Stay
from fairsched.model import TenantSpec
from fairsched.simgpu import Step

MS = 1_000_000
S = 1000 * MS
ORIGIN = 7_000 * S
"""Of the clock: what is measured never begins at 0."""
SAMPLE_MS = 20

Part = tuple[float, float]
"""(start, end), in ms since ORIGIN."""


@dataclass(frozen=True)
class Leaf:
    """What one leaf did; times in ms since ORIGIN."""

    ran: Sequence[Part] = ()
    steps: Sequence[Part] | Sequence[Sequence[Part]] = ()
    """Of one process, or a list for each of several."""
    waited: Sequence[Part] = ()
    held: Sequence[Part] = ()
    present: Part | None = None
    spec: Mapping[str, Any] | None = None
    gpu: int = 0
    is_always_wanting: bool = False
    comes: tuple[float, float] | None = None
    """Of each process: steps a second, and ms of each."""
    is_hostile: bool = False


def at(ms: float) -> int:
    return ORIGIN + round(ms * MS)


def turns(pattern: str, name: str, start: float, end: float, slice_ms: float = 1.0) -> list[Part]:
    """The slices of ``name`` when the GPU is given in turns: "aaab" is three to one."""
    count = round((end - start) / slice_ms)
    return [
        (start + n * slice_ms, start + (n + 1) * slice_ms)
        for n in range(count)
        if pattern[n % len(pattern)] == name
    ]


def steps(start: float, end: float, each: float, think: float = 0.0) -> list[Part]:
    """Back to back, with a pause between."""
    count = int((end - start + think + 1e-6) // (each + think))
    return [(start + n * (each + think), start + n * (each + think) + each) for n in range(count)]


def record(
    leaves: Mapping[str, Leaf],
    *,
    ms: float,
    specs: Mapping[str, TenantSpec] | None = None,
    has_stays: bool = True,
    **changed: Any,
) -> Recording:
    """Measured from ORIGIN for so long, sampled every 20 ms."""
    made: dict[str, Any] = {
        "scenario": "made",
        "policy": "none",
        "seed": 1,
        "start_ns": ORIGIN,
        "end_ns": at(ms),
        "specs": {
            **{name: TenantSpec(name, **(leaf.spec or {})) for name, leaf in leaves.items()},
            **(specs or {}),
        },
        "leaves": tuple(leaves),
        "hostile": frozenset(name for name, leaf in leaves.items() if leaf.is_hostile),
        "present_ns": {name: tuple(map(at, leaf.present or (0, ms))) for name, leaf in leaves.items()},
        "samples": tuple(_samples(leaves, ms)),
        "stays": tuple(
            Stay(name, leaf.gpu, at(start), at(end))
            for name, leaf in leaves.items()
            for start, end in (leaf.ran if has_stays else ())
        ),
        "steps": {name: tuple(map(_log, _processes(leaf.steps))) for name, leaf in leaves.items()},
        "is_always_wanting": {name: leaf.is_always_wanting for name, leaf in leaves.items()},
        "comes": {
            name: (None if leaf.comes is None else (leaf.comes[0], leaf.comes[1] * MS),)
            * len(_processes(leaf.steps))
            for name, leaf in leaves.items()
        },
        "held": tuple(
            HeldTime(name, at(start), at(end)) for name, leaf in leaves.items() for start, end in leaf.held
        ),
    }
    return Recording(**{**made, **changed})


def two(
    pattern: str, weights: tuple[float, float] = (1.0, 1.0), ms: float = 4000, **changed: Any
) -> Measures:
    leaves = {
        name: Leaf(ran=turns(pattern, name, 0, ms), steps=steps(0, ms, 10), spec={"weight": weight})
        for name, weight in zip("ab", weights, strict=True)
    }
    return measure(record(leaves, ms=ms, **changed))


def _processes(given: Sequence[Any]) -> list[Sequence[Part]]:
    return list(given) if given and not isinstance(given[0], tuple) else [given]


def _log(parts: Sequence[Part]) -> tuple[Step, ...]:
    return tuple(Step(at(end), 1.0, at(end) - at(start)) for start, end in parts)


def _samples(leaves: Mapping[str, Leaf], ms: float) -> Iterable[Sample]:
    gpus = 1 + max(leaf.gpu for leaf in leaves.values())
    moments = [n * SAMPLE_MS for n in range(-1, int(ms // SAMPLE_MS) + 2)]
    ran = {name: _until(leaf.ran, moments) for name, leaf in leaves.items()}
    waited = {name: _until(leaf.waited, moments) for name, leaf in leaves.items()}
    for n, moment in enumerate(moments):
        busy = [sum(ran[name][n] for name, leaf in leaves.items() if leaf.gpu == gpu) for gpu in range(gpus)]
        yield Sample(
            at(moment),
            tuple(busy),
            {(name, leaf.gpu): ran[name][n] for name, leaf in leaves.items()},
            {(name, leaf.gpu): waited[name][n] for name, leaf in leaves.items()},
        )


def _until(parts: Sequence[Part], moments: Sequence[float]) -> list[int]:
    """Time in the parts (sorted, apart) until each moment."""
    total, found, todo = 0.0, [], list(parts)[::-1]
    for moment in moments:
        while todo and todo[-1][1] <= moment:
            start, end = todo.pop()
            total += end - start
        begun = moment - todo[-1][0] if todo and todo[-1][0] < moment else 0.0
        found.append(round((total + begun) * MS))
    return found
