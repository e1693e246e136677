# SPDX-License-Identifier: Apache-2.0
"""Rogue traces, some with honest neighbours: each says who in it is the rogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.guard.honest import DAY, H, user
from tests.unit.guard.traces import T0, Behave, Maker, Now, Trace

POOL = "stratum+tcp://pool.example:3333"


def _one(
    make: Callable[[Maker], Behave], long_s: float = 1500.0, *, neighbours: int = 0, **about: Any
) -> Callable[[Maker], Trace]:
    def trace(m: Maker) -> Trace:
        outer = {key: about[key] for key in ("every_s", "gaps", "reset_s") if key in about}
        inner = {key: value for key, value in about.items() if key not in outer}
        others = [m.actor(m.trainer(0.95), gpu=f"GPU-{n}", **user(n)) for n in range(1, neighbours + 1)]
        return m.trace(m.actor(make(m), True, **inner), *others, long_s=long_s, **outer)

    return trace


def _same(m: Maker, count: int, **about: Any) -> Trace:
    """One work under several names."""
    port = m.rng.choice([5123, 13131, 40404])
    about.setdefault("program_digest", f"sha256:{'ee' * 32}")
    return m.trace(
        *(
            m.actor(m.trainer(0.8, (443, port)), True, gpu=f"GPU-{n}", **{**user(n), **about})
            for n in range(count)
        ),
        m.actor(m.trainer(0.9), gpu="GPU-8"),
    )


def _beside(m: Maker) -> Trace:
    """Its neighbour uses the GPU, and is seen to."""
    return m.trace(
        m.actor(m.nothing(30), True, idle_s=3 * H),
        m.actor(m.trainer(0.9), **user(3)),
        long_s=H,
        every_s=15.0,
    )


def _hop(m: Maker) -> Behave:
    """A miner that is away for a while now and then."""
    inner = m.miner((3333,))

    def behave(actor: Any, t: float, step: float) -> Now:
        now = inner(actor, t, step)
        now.is_here = t % 1200 < 900
        return now

    return behave


ROGUE: dict[str, Callable[[Maker], Trace]] = {
    "a launch that does not end": _one(lambda m: m.hangs(200)),
    "a launch that does not end, with neighbours": _one(lambda m: m.hangs(300), neighbours=3),
    "a launch that does not end, in turns with others": _one(lambda m: m.hangs(200, 0.5)),
    "a launch that does not end, after hours": _one(lambda m: m.hangs(2 * H), 3 * H, every_s=30.0),
    "a launch that does not end, over a gap": _one(lambda m: m.hangs(200), 2400.0, gaps=((500.0, 1000.0),)),
    "a deadlocked collective under nohup": _one(
        lambda m: m.hangs(100), is_orphan=True, **{"started_s": T0 - 9 * DAY}
    ),
    "a miner by name, at a pool": _one(lambda m: m.miner((3333,)), command=f"./xmrig -o {POOL}"),
    "a miner without a pool in sight": _one(
        lambda m: m.miner((443,)), command="/tmp/.x/lolMiner --algo ETCHASH"
    ),
    "a miner that calls itself python": _one(lambda m: m.miner((14444,)), command="python train.py"),
    "a miner that calls itself python, for hours": _one(
        lambda m: m.miner((3333,)), 3 * H, every_s=30.0, command="python train.py"
    ),
    "a miner with a restart of the daemon": _one(
        lambda m: m.miner((4444,)), reset_s=600.0, command="./a.out"
    ),
    "a miner with a gap": _one(lambda m: m.miner((4444,)), 1800.0, gaps=((400.0, 800.0),), command="./a.out"),
    "a miner that slows itself, at a pool": _one(
        lambda m: m.miner((3333,), 0.3), command=f"./kworker -o {POOL}"
    ),
    "a miner that comes and goes": _one(_hop, 3600.0, command="./a.out"),
    "a miner among trainers": _one(
        lambda m: m.miner((45700,)), neighbours=5, command="python -m http.server"
    ),
    "an uneven miner": _one(
        lambda m: m.miner((3333,), 0.9, 0.3), command="./t --url stratum+ssl://1.2.3.4:3333"
    ),
    "memory for nothing": _one(lambda m: m.nothing(), 3 * H, every_s=30.0, idle_s=60.0),
    "memory for nothing, seen late": _one(lambda m: m.nothing(), 600.0, idle_s=5 * H),
    "memory for nothing, beside a trainer": _beside,
    "a notebook of yesterday": _one(lambda m: m.nothing(), 900.0, idle_s=20 * H, launches=4000),
    "a notebook left on Friday": _one(lambda m: m.nothing(), 900.0, idle_s=60 * H, launches=4000),
    "an orphan that idles": _one(lambda m: m.nothing(), 900.0, idle_s=3 * H, launches=800, is_orphan=True),
    "an orphan that idles, over a gap": _one(
        lambda m: m.nothing(), H, idle_s=3 * H, launches=800, is_orphan=True, gaps=((300.0, 1500.0),)
    ),
    "one program of three users": lambda m: _same(m, 3),
    "one program of six users": lambda m: _same(m, 6),
    "one image of four users": lambda m: _same(m, 4, image_digest=f"sha256:{'dd' * 32}", program_digest=None),
}
"""Not among them, for nothing but a name tells them from honest work (test_rogue.py says so): a miner that calls itself
something else and is behind TLS on 443; one that slows itself, too, whatever its command says."""
