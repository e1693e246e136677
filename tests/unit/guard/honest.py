# SPDX-License-Identifier: Apache-2.0
"""Honest traces: what people do on GPUs that looks like abuse to a simple rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.guard.traces import T0, Actor, Behave, Maker, Now, Trace

H = 3600.0
DAY = 24 * H
IMAGE: dict[str, Any] = {"image": "nvcr.io/nvidia/pytorch:24.05", "image_digest": f"sha256:{'cc' * 32}"}
USERS = ("ann", "ben", "cho", "dov", "eva", "fay")


def user(number: int) -> dict[str, Any]:
    name = USERS[number % len(USERS)]
    return {"uid": 1000 + number, "user": name, "tenant": f"team-{name}", "cgroup": f"/gpu.slice/{name}"}


def _unseen(behave: Behave, *, counters: bool = True, vram: bool = False) -> Behave:
    """The same work; without a daemon, or by ways on which launches are not seen."""

    def blind(actor: Actor, t: float, step: float) -> Now:
        now = behave(actor, t, step)
        now.rate = None if counters else now.rate
        now.vram = None if vram else now.vram
        return now

    return blind


def _no_launches_seen(behave: Behave) -> Behave:
    def blind(actor: Actor, t: float, step: float) -> Now:
        now = behave(actor, t, step)
        now.rate = 0.0
        return now

    return blind


def _leaves(behave: Behave, away: tuple[float, float]) -> Behave:
    def there(actor: Actor, t: float, step: float) -> Now:
        now = behave(actor, t, step)
        now.is_here = not away[0] <= t < away[1]
        return now

    return there


def _mps(m: Maker) -> Trace:
    """The server has the GPU's time, its clients launch."""
    server = m.actor(
        lambda _a, _t, _s: Now(0.98, 0.0, 0.2, ()), command="nvidia-cuda-mps-server", uid=0, user="root"
    )
    clients = [m.actor(_mps_client(m), **user(n)) for n in range(3)]
    return m.trace(server, *clients, long_s=2 * H)


def _mps_client(m: Maker) -> Behave:
    rate, vram = m.rng.uniform(100, 2000), m.rng.uniform(1, 10)
    return lambda _a, _t, _s: Now(0.0, rate * m.rng.uniform(0.8, 1.2), vram)


def _sweep(m: Maker, ports: tuple[int, ...], **about: Any) -> Trace:
    actors = [m.actor(m.trainer(0.9, ports), gpu=f"GPU-{n}", **{**user(n), **about}) for n in range(6)]
    return m.trace(*actors, long_s=1500.0)


def _old(days: float) -> dict[str, Any]:
    return {"started_s": T0 - days * DAY}


def _many_gpus(m: Maker) -> Trace:
    """One process on eight GPUs: eight times a little is not much."""
    first = m.actor(m.steady(0.99, 900, 60, 0.1), is_orphan=True, **_old(20))
    rest = [
        Actor(first.process, m.steady(0.99, 900, 60, 0.1), gpu=f"GPU-{n}", is_orphan=True)
        for n in range(1, 8)
    ]
    return m.trace(first, *rest, long_s=1500.0)


def _one(make: Callable[[Maker], Behave], long_s: float = 1500.0, **about: Any) -> Callable[[Maker], Trace]:
    def trace(m: Maker) -> Trace:
        outer = {key: about[key] for key in ("every_s", "gaps", "reset_s", "knows_load") if key in about}
        return m.trace(
            m.actor(make(m), **{key: value for key, value in about.items() if key not in outer}),
            long_s=long_s,
            **outer,
        )

    return trace


HONEST: dict[str, Callable[[Maker], Trace]] = {
    "trainer": _one(lambda m: m.trainer()),
    "trainer that never dips": _one(lambda m: m.steady(0.995, m.rng.uniform(500, 4000), 40, 0.08)),
    "trainer under nohup": _one(lambda m: m.trainer(0.995), is_orphan=True),
    "trainer for weeks under nohup": _one(lambda m: m.steady(0.99, 900, 60, 0.1), is_orphan=True, **_old(30)),
    "trainer for hours": _one(lambda m: m.trainer(), long_s=4 * H, every_s=20.0),
    "trainer on eight GPUs": _many_gpus,
    "trainer with a restart of the daemon": _one(lambda m: m.trainer(0.99), reset_s=700.0),
    "trainer with a gap": _one(lambda m: m.trainer(0.99), gaps=((300.0, 900.0),)),
    "trainer seen without a daemon": _one(lambda m: _unseen(m.trainer(0.99)), is_orphan=None),
    "trainer whose memory is not known": _one(lambda m: _unseen(m.trainer(), counters=False, vram=True)),
    "trainer that comes back": _one(lambda m: _leaves(m.trainer(), (400, 700))),
    "gradient checkpoints": _one(lambda m: m.breathing()),
    "gradient checkpoints for hours": _one(lambda m: m.breathing(), long_s=3 * H, every_s=30.0),
    "a small model, evenly": _one(
        lambda m: m.steady(0.97, m.rng.uniform(500, 3000), m.rng.uniform(1, 4), 0.08)
    ),
    "a benchmark as even as a miner": _one(lambda m: m.miner((443,)), command="./gemm_bench --loop"),
    "a benchmark under nohup": _one(lambda m: m.miner(()), is_orphan=True, command="./burn 7200"),
    "an uneven client of port 4444": _one(lambda m: m.steady(0.9, 900, 3, 0.15, (443, 4444))),
    "a trainer beside port 3333": _one(lambda m: m.trainer(0.9, (3333,)), command="python ppo.py --algo ppo"),
    "a process miner by name": _one(lambda m: m.trainer(), command="python process_miner.py --data mining"),
    "a study of xmrig binaries": _one(
        lambda m: m.trainer(), command="python classify.py --out xmrig --epochs 9"
    ),
    "tensor rex, even": _one(
        lambda m: m.steady(0.99, 800, 3, 0.2), command="python t-rex.py --pool mean -o o"
    ),
    "notebook": _one(lambda m: m.notebook(60, 900), long_s=3 * H, every_s=20.0, command="ipykernel_launcher"),
    "notebook over lunch": _one(lambda m: m.notebook(600, 1.8 * H), long_s=6 * H, every_s=30.0),
    "notebook left for the evening": _one(
        lambda m: m.notebook(600, 9 * H), long_s=9 * H, every_s=30.0, is_orphan=False
    ),
    "notebook that a terminal left": _one(
        lambda m: m.notebook(300, 1.5 * H), long_s=5 * H, every_s=30.0, is_orphan=True
    ),
    "notebook with an hour of gap": _one(
        lambda m: m.notebook(300, 1.2 * H), long_s=5 * H, every_s=30.0, gaps=((H, 2 * H),)
    ),
    "LLM server": _one(lambda m: m.server((1e9, 1e9)), **IMAGE, command="vllm serve"),
    "LLM server at night": _one(
        lambda m: m.server((H, 9 * H), 0.002), long_s=10 * H, every_s=30.0, **IMAGE, **_old(40)
    ),
    "LLM server, not one request at night": _one(
        lambda m: m.server((H, 10 * H)), long_s=11 * H, every_s=30.0, launches=5000, **_old(40)
    ),
    "LLM server at night, whose daemon is started again at dusk": _one(
        lambda m: m.server((H, 10 * H)), long_s=11 * H, every_s=30.0, reset_s=H + 900, **_old(40)
    ),
    "LLM server whose launches are not seen": _one(
        lambda m: _no_launches_seen(m.server((1e9, 1e9))), long_s=5 * H, every_s=30.0
    ),
    "LLM server seen by nobody": _one(
        lambda m: _unseen(m.server((1e9, 1e9))), long_s=5 * H, every_s=30.0, is_orphan=True
    ),
    "idle, and its load is not known": _one(
        lambda m: m.nothing(), long_s=5 * H, every_s=30.0, knows_load=False, launches=0
    ),
    "context of half a GiB, idle for a day": _one(
        lambda m: m.nothing(0.5), long_s=2 * H, every_s=30.0, idle_s=DAY, launches=7
    ),
    "loads its weights for an hour": _one(lambda m: m.nothing(), long_s=H, every_s=10.0),
    "MPS": _mps,
    "sweep of six users with one python": lambda m: _sweep(m, ()),
    "sweep of six users with one tracker": lambda m: _sweep(m, (443,)),
    "sweep of six users with one redis and mlflow": lambda m: _sweep(m, (5000, 6379)),
    "sweep of six users with one image": lambda m: _sweep(m, (443,), **IMAGE),
    "three users of one port, below what one may have": lambda m: m.trace(
        *(m.actor(m.trainer(0.25, (5123,)), **user(n)) for n in range(3))
    ),
    "two users of one tool": lambda m: m.trace(
        *(
            m.actor(m.trainer(0.9, (5123,)), gpu=f"GPU-{n}", program_digest="sha256:77", **user(n))
            for n in range(2)
        )
    ),
    "eight jobs of one user": lambda m: m.trace(
        *(m.actor(m.trainer(0.9, (5123,)), gpu=f"GPU-{n}", program_digest="sha256:77") for n in range(8))
    ),
    "renderer": _one(lambda m: m.steady(0.7, 3600, 6, 0.01), command="blender -b scene.blend"),
    "molecular dynamics": _one(lambda m: m.steady(0.93, 9000, 1.2, 0.01), command="gmx mdrun -v", **_old(9)),
    "molecular dynamics for weeks under nohup": _one(
        lambda m: m.steady(0.99, 9000, 1.2, 0.005), command="gmx mdrun -v", is_orphan=True, **_old(20)
    ),
    "long kernels": _one(lambda m: m.steady(0.99, 0.2, 30, 0.1)),
    "a kernel of four minutes": _one(
        lambda m: lambda _a, t, s: Now(0.99, 2.0 / s if t % 240 < s else 0.0, 12.0)
    ),
    "short jobs": lambda m: m.trace(
        *(m.actor(_leaves(m.trainer(), (at + 90, 1e9))) for at in range(0, 900, 90)), long_s=900.0
    ),
    "a debugger at a breakpoint": _one(lambda m: m.nothing(), long_s=1.5 * H, every_s=15.0, launches=900),
}
