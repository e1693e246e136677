# SPDX-License-Identifier: Apache-2.0
"""Rounds and rules for tests of the judge; a strategy of rounds that are as awkward as they come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from fairsched.guard.allow import Allow
from fairsched.guard.breach import Act, Breach, Per, What
from fairsched.guard.hours import parse_hours
from fairsched.guard.judge import Judge
from fairsched.guard.rules import Bound, GuardRules, Project
from fairsched.guard.sample import GpuLoad, Process, Round, Sample

T0 = 1_764_000_000.0
"""2025-11-24 16:00 UTC."""
GPUS = ("GPU-a", "GPU-b")
LOADS = {gpu: GpuLoad(index=number) for number, gpu in enumerate(GPUS)}
ALLOW = Allow(cgroups=("/spared",))


def process(pid: int, user: str | None = "alice", **other: Any) -> Process:
    uids = {"alice": 1000, "bob": 1001, "eve": 1002, None: None}
    facts: dict[str, Any] = {"boot_id": "b", "uid": uids[user], "user": user, "started_s": T0 - 1000 + pid}
    return Process(pid, 10 * pid, **{**facts, **other})


def at(t_s: float, *samples: Sample, tenants: dict[str, dict[str, float]] | None = None) -> Round:
    return Round(T0 + t_s, samples, LOADS, tenants or {})


def judge_of(*bounds: Bound, state: Any = None, projects: Iterable[Project] = ()) -> Judge:
    return Judge(GuardRules(bounds, tuple(projects), ALLOW), state)


def vram(limit: str = "lim", amount: float = 10, **other: Any) -> Bound:
    return Bound(limit, other.pop("per", Per.USER), other.pop("what", What.VRAM), amount, **other)


def news(found: Iterable[Breach]) -> list[tuple[str, str, Act]]:
    return [(one.limit, one.subject.name, one.act) for one in found if one.is_news]


POOL = (
    process(1, "alice", groups=("ml", "all"), tenant="chat"),
    process(2, "alice", groups=("ml", "all"), tenant="lab/x"),
    process(3, "bob", groups=("all",), tenant="lab/x"),
    process(4, "bob", groups=("all",), tenant="lab/y", cgroup="/spared/one"),
    process(5, "eve", tenant=None),
    process(6, None, tenant="lab/y"),
    process(7, "alice", groups=("ml", "all"), tenant="chat", cgroup="/spared"),
    process(8, "bob", tenant="lab"),
)
STEPS = st.sampled_from(
    (5.0, 10.0, 10.0, 10.0, 30.0, 60.0, 119.0, 121.0, 1500.0, 3700.0, 90_000.0, 0.0, -30.0, -7000.0)
)
"""Between two rounds: usual ones, gaps, and clocks that are set."""


@st.composite
def rounds(draw: st.DrawFn, steps: st.SearchStrategy[float] = STEPS) -> list[Round]:
    """Up to 30; counters grow, and now and then begin anew."""
    found, t_s, counters = [], 0.0, dict[tuple[int, str], float]()
    for _ in range(draw(st.integers(1, 30))):
        t_s += draw(steps) + draw(st.sampled_from((0.0, 0.00049, 0.0004)))
        samples = []
        for one in draw(st.lists(st.sampled_from(POOL), max_size=6, unique_by=lambda one: one.pid)):
            for gpu in draw(st.sampled_from((("GPU-a",), ("GPU-b",), GPUS))):
                worked = draw(st.sampled_from((0.0, 0.5, 3.0, 9.0, -100.0)))
                counter = max(0.0, counters.get((one.pid, gpu), 0.0) + worked)
                counters[one.pid, gpu] = counter
                samples.append(
                    Sample(
                        one,
                        gpu,
                        draw(st.sampled_from((None, 0, 3, 6, 20))),
                        draw(st.sampled_from((None, 0, 1, 4))),
                        draw(st.sampled_from((counter, counter, None))),
                    )
                )
        tenants = {"lab/x": {"GPU-a": 2.0 * len(found)}} if draw(st.booleans()) else {}
        found.append(at(t_s, *samples, tenants=tenants))
    return found


def _bound(draw: st.DrawFn, number: int) -> Bound:
    what = draw(st.sampled_from([one for one in What if one is not What.MAINTENANCE]))
    has_amount = what not in (What.GPUS, What.HOURS)
    per = draw(st.sampled_from(tuple(Per) if what not in (What.GPUS, What.GPU_SECONDS) else tuple(Per)[:4]))
    return Bound(
        limit=f"l{number}",
        per=per,
        what=what,
        amount=None if not has_amount else draw(st.sampled_from((0.0, 1.0, 5.0, 12.0))),
        of=None
        if per is Per.GPU
        else draw(st.sampled_from((None, None, frozenset({"alice", "lab", "all", "p"})))),
        gpus=draw(st.sampled_from((None, None, ("0",), ("GPU-b",)))),
        each_gpu=has_amount and draw(st.booleans()),
        allowed_gpus=("0",) if what is What.GPUS else (),
        hours=parse_hours(["mon 16:02-17:00", "tue 00:00-12:00"], "UTC") if what is What.HOURS else None,
        warnings=draw(st.integers(1, 3)),
        every_s=draw(st.sampled_from((1.0, 20.0, 300.0))),
        grace_s=draw(st.sampled_from((0.0, 15.0, 300.0))),
        soft=draw(st.sampled_from((Act.WARN, Act.HOLD))),
        is_hard=draw(st.sampled_from((True, True, False))),
    )


@st.composite
def rules(draw: st.DrawFn) -> GuardRules:
    bounds = tuple(_bound(draw, number) for number in range(draw(st.integers(1, 4))))
    project = Project("p", frozenset({"lab"}), frozenset({"alice"}), frozenset())
    return GuardRules(bounds, (project,), ALLOW)
