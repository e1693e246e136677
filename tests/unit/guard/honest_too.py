# SPDX-License-Identifier: Apache-2.0
"""More honest traces, invented by another hand after the rules were tuned: what operators see of real software.

``OPEN`` are those in which the rules accuse somebody who works, and why that stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.guard.honest import DAY, IMAGE, H, user
from tests.unit.guard.traces import T0, Actor, Behave, Maker, Now, Trace

PYTORCH: dict[str, Any] = {"program_digest": f"sha256:{'cd' * 32}", **IMAGE}


def _one(
    make: Callable[[Maker], Behave], long_s: float = 1800.0, every_s: float = 15.0, **about: Any
) -> Callable[[Maker], Trace]:
    return lambda m: m.trace(m.actor(make(m), **about), long_s=long_s, every_s=every_s)


def _as(behave: Behave, **seen: Any) -> Behave:
    """The same, and what else is seen of it."""

    def seen_too(actor: Actor, t: float, step: float) -> Now:
        now = behave(actor, t, step)
        for name, value in seen.items():
            setattr(now, name, value)
        return now

    return seen_too


def _paused(m: Maker, begin: float, end: float, load: float = 0.0) -> Behave:
    """Works, is stopped by a batch system or a debugger, works on."""
    work = m.trainer(0.97)

    def behave(actor: Actor, t: float, step: float) -> Now:
        if begin <= t < end:
            return Now(load, 0.0, 30.0, is_paused=True)
        now = work(actor, t, step)
        now.vram = 30.0
        return now

    return behave


def _persistent(m: Maker, first: int = 40) -> Behave:
    """One kernel that reads its requests from pinned memory for as long as the program lives."""
    vram = m.rng.uniform(2, 40)
    return lambda _a, t, s: Now(0.99, first / s if t < 2 * s else 0.0, vram)


def _long_kernels(m: Maker) -> Behave:
    """Preprocessing with many launches; then kernels of minutes, each longer than the rule's five at times."""
    lasts = [m.rng.uniform(200, 280), *(m.rng.uniform(300, 420) for _ in range(30))]
    ends = [sum(lasts[: n + 1]) + 120 for n in range(len(lasts))]

    def behave(_actor: Actor, t: float, step: float) -> Now:
        if t < 120:
            return Now(0.8, 900 * m.rng.uniform(0.7, 1.3), 11.0)
        return Now(0.99, 2.0 / step if any(t - step <= end < t for end in ends) else 0.0, 11.0)

    return behave


def _bursty(m: Maker) -> Behave:
    """An agent: minutes of thought elsewhere, seconds of GPU."""
    vram = m.rng.uniform(8, 40)

    def behave(_actor: Actor, t: float, step: float) -> Now:
        return Now(0.5, 700, vram) if m.rng.random() < step / 900 else Now(vram=vram)

    return behave


def _cron(m: Maker) -> Trace:
    """A job that cron starts every hour anew."""

    def behave(_actor: Actor, t: float, _step: float, at: float) -> Now:
        return Now(0.97, 2000 * m.rng.uniform(0.8, 1.2), 9.0, is_here=at <= t < at + 900)

    actors = [
        m.actor(
            lambda a, t, s, at=hour * H: behave(a, t, s, at), command="/usr/bin/python3 /opt/etl/nightly.py"
        )
        for hour in range(6)
    ]
    return m.trace(*actors, long_s=6 * H, every_s=30.0)


def _ranks(m: Maker, **about: Any) -> Trace:
    """One job of one user: a rank a container, a tenant a container, and a store at one port of rank 0's host."""
    ranks = [
        m.actor(
            m.trainer(0.96, (443, 12355)),
            gpu=f"GPU-{n}",
            uid=1203,
            user="ann",
            tenant=f"ddp-{n}",
            cgroup=f"/gpu.slice/ddp-{n}",
            container_id=f"{n}f" * 32,
            command=f"python -u ddp.py --rank {n}",
            **PYTORCH,
            **about,
        )
        for n in range(4)
    ]
    return m.trace(*ranks, long_s=1800.0)


def _licensed(m: Maker) -> Trace:
    """A solver of which every process holds a licence at the site's server."""
    jobs = ("wing -np 1 -i wing.dat", "valve -i /srv/ben/valve_v2.dat", "b -i blade.dat", "c -i crash7.dat")
    return m.trace(
        *(
            m.actor(
                m.trainer(0.85, (27015,)),
                gpu=f"GPU-{n}",
                program="/opt/solver/bin/solver",
                program_digest="sha256:50",
                command=f"/opt/solver/bin/solver -j {job}",
                **user(n),
            )
            for n, job in enumerate(jobs)
        ),
        long_s=1800.0,
    )


def _mps_idle(m: Maker) -> Trace:
    """An MPS server at night: it never launches, so neither launches nor idleness of it are told (rounds.py)."""
    server = m.actor(
        lambda _a, _t, _s: Now(0.0, None, 1.4, ()), command="nvidia-cuda-mps-server", uid=0, user="root"
    )
    clients = [m.actor(m.server((0, 1e9), 0.004), launches=4000, **user(n)) for n in range(2)]
    return m.trace(server, *clients, long_s=5 * H, every_s=30.0)


def _camera(m: Maker) -> Behave:
    """30 pictures a second, day and night: as even as a miner."""
    return m.steady(
        m.rng.uniform(0.82, 0.97), 30 * m.rng.randrange(40, 200), m.rng.uniform(1, 6), 0.004, (8554,)
    )


def _night(m: Maker, **seen: Any) -> Behave:
    return _as(m.nothing(), is_serving=True, **seen)


HONEST_TOO: dict[str, Callable[[Maker], Trace]] = {
    "12 hours at 99 %, checkpoints, flat memory": _one(
        lambda m: m.steady(0.99, 2400, 61, 0.03), 12 * H, 30.0
    ),
    "12 hours at 99 %, flat, under nohup, since last week": _one(
        lambda m: m.steady(0.99, 2400, 61, 0.03), 12 * H, 30.0, is_orphan=True, started_s=T0 - 9 * DAY
    ),
    "the same at port 7777": _one(
        lambda m: m.steady(0.99, 2400, 61, 0.06, (7777,)), 2 * H, 30.0, is_orphan=True, started_s=T0 - 9 * DAY
    ),
    "a camera's model at a constant rate": _one(_camera, 2 * H, command="python detect.py --fps 30"),
    "the same whose model is called after a star": _one(
        _camera, 2 * H, command="python detect.py --model rigel"
    ),
    "the same whose study is in a directory of that name": _one(
        _camera, 2 * H, command="/srv/ann/xmrig/venv/bin/python detect.py"
    ),
    "an even benchmark that is called a miner by an argument": _one(
        lambda m: m.miner((443,)), command="./bench --baseline gminer --kernel ethash"
    ),
    "Jupyter, 30 GB idle since ten": _one(
        lambda m: m.nothing(30), H, 30.0, idle_s=6 * H, launches=800, command="python -m ipykernel_launcher"
    ),
    "Jupyter, 30 GB idle since ten, opened last week": _one(
        lambda m: m.nothing(30), H, 30.0, idle_s=6 * H, launches=800, started_s=T0 - 8 * DAY
    ),
    "Triton without a request overnight": _one(_night, 4 * H, 30.0, idle_s=10 * H, launches=900),
    "Triton without a request overnight, under nohup": _one(
        _night, 4 * H, 30.0, idle_s=10 * H, launches=900, is_orphan=True
    ),
    "Triton without a request over the weekend": _one(
        _night, 2 * H, 30.0, idle_s=60 * H, launches=900, is_orphan=True, started_s=T0 - 30 * DAY
    ),
    "Triton that was put up on Friday and never asked": _one(
        _night, 2 * H, 30.0, idle_s=50 * H, started_s=T0 - 50 * H - 60
    ),
    "suspended by the batch system for the night": _one(lambda m: _paused(m, 600, 15 * H), 17 * H, 60.0),
    "suspended for the night, and slow to wake": _one(
        lambda m: lambda _a, t, _s: Now(0.0, 0.0, 30.0, is_paused=t < H),
        2 * H,
        30.0,
        idle_s=15 * H,
        launches=90_000,
    ),
    "at a breakpoint in gdb over lunch": _one(lambda m: _paused(m, 600, 3 * H), 4 * H, 30.0),
    "at a breakpoint in a kernel, in cuda-gdb": _one(lambda m: _paused(m, 600, 2 * H, 0.99), 3 * H),
    "a server of one kernel": _one(
        lambda m: _as(_persistent(m), is_serving=True), 3 * H, command="./megakernel-server"
    ),
    "a server of one kernel, under nohup": _one(
        lambda m: _as(_persistent(m), is_serving=True), 3 * H, is_orphan=True
    ),
    "kernels of minutes": _one(_long_kernels, 3 * H),
    "an agent": _one(_bursty, 6 * H, 30.0),
    "cron, every hour": _cron,
    "one job of four containers": _ranks,
    "four users of one licensed solver": _licensed,
    "an MPS server and its clients at night": _mps_idle,
    "two rounds a minute, then none for a night": lambda m: m.trace(
        m.actor(m.steady(0.99, 900, 20, 0.05)), long_s=14 * H, every_s=30.0, gaps=((H, 12 * H),)
    ),
}

OPEN: dict[str, tuple[Callable[[Maker], Trace], str]] = {
    "a service that works every night": (
        _one(lambda m: m.nothing(20), H, 30.0, idle_s=20 * H, launches=10**6),
        "it holds memory for 20 h of 24 and does nothing: what the rule is for",
    ),
    "one kernel for hours, of a solver that serves nobody": (
        _one(_persistent, 3 * H),
        "a deadlock in the first collective looks just so, and is what the rule is for",
    ),
    "four students with one command and one server for data": (
        lambda m: m.trace(
            *(
                m.actor(
                    m.trainer(0.7, (9010,)),
                    gpu=f"GPU-{n}",
                    program_digest="sha256:51",
                    command="lab3",
                    **user(n),
                )
                for n in range(4)
            ),
            long_s=1800.0,
        ),
        "one program, one command, one port: it is one work, and that it was set is not seen",
    ),
}
