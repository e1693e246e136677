# SPDX-License-Identifier: Apache-2.0
"""Generates traces of honest and rogue processes whose answer is known: rounds, from a seed, of many kinds.

A trace is what a node shows over minutes or hours. Each process in it is honest or rogue; a detector is right when it
reports exactly the rogue ones. Numbers (launch rates, memory, loads, jitter, intervals) are drawn from the seed, so
that a rule that fits one seed has to hold on others. The shapes are simulated, not recorded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from fairsched.guard.sample import GpuLoad, Process, Round, Sample

GIB = 1 << 30
T0 = 1_800_000_000.0
PYTHON = f"sha256:{'aa' * 32}"
Behave = Callable[["Actor", float, float], "Now"]


@dataclass
class Now:
    """What it does in one step; ``None`` of the counters = not seen."""

    share: float = 0.0
    rate: float | None = 0.0
    """Launches a second."""
    vram: float | None = 1.0
    """GiB."""
    ports: tuple[int, ...] | None = (443,)
    is_here: bool = True
    is_seen: bool = True
    is_paused: bool | None = False
    is_serving: bool | None = False


@dataclass
class Actor:
    """One process on one GPU."""

    process: Process
    behave: Behave
    is_rogue: bool = False
    gpu: str = "GPU-0"
    is_orphan: bool | None = False
    ran_s: float = 0.0
    launches: float = 0.0
    idle_s: float = 0.0
    has_idle: bool = True
    state: dict[str, float] = field(default_factory=dict)


@dataclass
class Trace:
    name: str
    rng: random.Random
    actors: list[Actor]
    long_s: float = 1200.0
    every_s: float = 10.0
    gaps: tuple[tuple[float, float], ...] = ()
    """Begin and end."""
    reset_s: float | None = None
    """All counters begin anew: the daemon was started again."""
    knows_load: bool = True

    @property
    def is_rogue(self) -> bool:
        return any(actor.is_rogue for actor in self.actors)

    def rounds(self) -> Iterator[Round]:
        t = 0.0
        while t < self.long_s:
            step = max(0.5, self.rng.gauss(self.every_s, self.every_s * 0.03))
            for begin, end in self.gaps:
                if begin <= t < end:
                    step = end - t + self.every_s
            is_reset = self.reset_s is not None and t < self.reset_s <= t + step
            t += step
            yield self._round(t, step, is_reset)

    def _round(self, t: float, step: float, is_reset: bool) -> Round:
        busy: dict[str, float] = {}
        samples = []
        for actor in self.actors:
            now = actor.behave(actor, t, step)
            busy[actor.gpu] = busy.get(actor.gpu, 0.0) + now.share * now.is_here
            if not now.is_here:
                continue
            if is_reset:
                actor.ran_s, actor.launches, actor.idle_s = 0.0, 0.0, 0.0
            actor.ran_s += now.share * step
            made = (now.rate or 0.0) * step
            actor.launches += made
            actor.idle_s = 0.0 if made >= 1 else actor.idle_s + step
            if now.is_seen:
                samples.append(_sample(actor, now))
        noise = self.rng.gauss(0, 0.01)
        loads = {
            gpu: GpuLoad(min(1.0, max(0.0, value + noise)) if self.knows_load else None)
            for gpu, value in busy.items()
        }
        return Round(T0 + t, tuple(samples), loads)


def _sample(actor: Actor, now: Now) -> Sample:
    has_counters = now.rate is not None
    return Sample(
        actor.process,
        actor.gpu,
        None if now.vram is None else int(now.vram * GIB),
        1,
        actor.ran_s if has_counters else None,
        int(actor.launches) if has_counters else None,
        actor.idle_s if has_counters and actor.has_idle and actor.idle_s > 0 else None,
        actor.is_orphan,
        now.ports,
        now.is_paused,
        now.is_serving,
    )


class Maker:
    """Makes actors and traces from a seed."""

    def __init__(self, seed: int, name: str) -> None:
        self.rng = random.Random(f"{seed}/{name}")
        self.name = name
        self._pid = self.rng.randrange(1000, 90_000)

    def actor(self, behave: Behave, is_rogue: bool = False, **about: object) -> Actor:
        outer = {
            key: about.pop(key) for key in ("gpu", "is_orphan", "idle_s", "launches", "ran_s") if key in about
        }
        self._pid += self.rng.randrange(1, 50)
        plain: dict[str, object] = {
            "pid": self._pid,
            "start_ticks": self._pid * 7,
            "boot_id": "b",
            "uid": 1000,
            "user": "ann",
            "tenant": "research",
            "cgroup": "/gpu.slice/research",
            "program": "/usr/bin/python3.11",
            "program_digest": PYTHON,
            "command": "python train.py --config big.yaml",
            "started_s": T0 - float(str(outer.get("idle_s", 3000))) - self.rng.uniform(0, 600),
        }
        return Actor(Process(**{**plain, **about}), behave, is_rogue, **outer)  # type: ignore[arg-type]

    def trace(self, *actors: Actor, **about: object) -> Trace:
        about.setdefault("every_s", self.rng.choice([5.0, 10.0, 15.0, 20.0, 30.0]))
        return Trace(self.name, self.rng, list(actors), **about)  # type: ignore[arg-type]

    # what processes do

    def steady(
        self, share: float, rate: float, vram: float, even: float, ports: tuple[int, ...] = (443,)
    ) -> Behave:
        """The same again and again; ``even``: deviation of the rate of launches."""

        def behave(_actor: Actor, _t: float, _step: float) -> Now:
            return Now(
                min(1.0, share + self.rng.gauss(0, 0.004)), rate * (1 + self.rng.gauss(0, even)), vram, ports
            )

        return behave

    def trainer(self, load: float = 0.98, ports: tuple[int, ...] = (443,)) -> Behave:
        """Data, epochs, an evaluation now and then."""
        rate, vram = self.rng.uniform(200, 6000), self.rng.uniform(4, 70)
        uneven, every_s = self.rng.uniform(0.06, 0.3), self.rng.uniform(300, 1500)

        def behave(_actor: Actor, t: float, _step: float) -> Now:
            slow = 0.5 if t % every_s < 40 else 1.0
            share = min(1.0, load * (0.9 if slow < 1 else 1) + self.rng.gauss(0, 0.008))
            return Now(share, rate * slow * max(0.1, 1 + self.rng.gauss(0, uneven)), vram, ports)

        return behave

    def breathing(self) -> Behave:
        """Memory that comes and goes: gradient checkpoints, long sequences."""
        low, rate = self.rng.uniform(4, 30), self.rng.uniform(200, 3000)

        def behave(_actor: Actor, _t: float, _step: float) -> Now:
            return Now(
                self.rng.uniform(0.93, 1),
                rate * self.rng.uniform(0.7, 1.3),
                low * self.rng.uniform(1, 1.6),
            )

        return behave

    def notebook(self, works_s: float, idles_s: float) -> Behave:
        """A cell now and then."""
        vram = self.rng.uniform(1, 20)

        def behave(_actor: Actor, t: float, _step: float) -> Now:
            is_on = t % (works_s + idles_s) < works_s
            return (
                Now(self.rng.uniform(0.1, 0.9), self.rng.uniform(10, 900), vram) if is_on else Now(vram=vram)
            )

        return behave

    def server(self, quiet: tuple[float, float], at_night: float = 0.0) -> Behave:
        """Requests by day, ``at_night`` a second in between."""
        vram = self.rng.uniform(14, 70)

        def behave(_actor: Actor, t: float, step: float) -> Now:
            if not quiet[0] <= t < quiet[1]:
                return Now(self.rng.uniform(0.2, 0.9), self.rng.uniform(500, 4000), vram)
            asked = self.rng.random() < at_night * step
            return Now(0.01 if asked else 0.0, 200 / step if asked else 0.0, vram)

        return behave

    def nothing(self, vram: float | None = None, ports: tuple[int, ...] = ()) -> Behave:
        vram = self.rng.uniform(4, 60) if vram is None else vram
        return lambda _actor, _t, _step: Now(0.0, 0.0, vram, ports)

    def hangs(self, at_s: float, share: float = 0.995) -> Behave:
        """Works, then one launch does not end."""
        rate, vram = self.rng.uniform(100, 3000), self.rng.uniform(2, 60)

        def behave(_actor: Actor, t: float, _step: float) -> Now:
            if t < at_s:
                return Now(self.rng.uniform(0.6, 1), rate * self.rng.uniform(0.7, 1.3), vram)
            return Now(min(1.0, share + self.rng.gauss(0, 0.003)), 0.0, vram)

        return behave

    def miner(self, ports: tuple[int, ...], load: float = 0.97, even: float = 0.004) -> Behave:
        rate, vram = self.rng.uniform(20, 2000), self.rng.uniform(0.3, 5.5)
        return self.steady(load, rate, vram, self.rng.uniform(0.2, 1) * even, ports)


def renamed(actor: Actor, **about: object) -> Actor:
    return replace(actor, process=replace(actor.process, **about))  # type: ignore[arg-type]
