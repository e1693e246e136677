# SPDX-License-Identifier: Apache-2.0
"""What tenants get, when queues are deep and when a GPU stands still. Exactness is the benchmark's business."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairsched.simgpu import Workload
from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import DECODE, GREEDY, PATIENCE_S, STEADY, Site, is_asked, logged
from tests.support import let_run, wait_until

pytestmark = pytest.mark.alone

LATENCY_DEADLINE_MS = 500
BATCH_DEADLINE_MS = 20_000
"""So far away that only a daemon which does not thaw at all would leave it to its guardian."""
LATE_MS = 2000
"""A tick, the guardian's grace, and a machine that is busy with something else."""


def test_held_tenant_with_deep_queues_gets_its_share_again(site: Site) -> None:
    """The lock-out: what is queued when it is frozen must not be charged for ever."""
    site.configure({"chat": {"weight": 3}, "deep": {"weight": 1, "class": "batch"}})
    site.start()
    site.spawn("chat", STEADY)
    site.spawn("chat", STEADY)
    site.spawn("deep", replace(GREEDY, depth=32))
    site.wait_held("deep")
    let_run(3)  # an account that goes wrong at a hold needs a few to show
    shares = site.shares(["chat", "deep"], 8)
    assert abs(shares["deep"] - 0.25) < 0.1, shares


def test_graphs_of_many_lengths_have_their_share_and_are_told(site: Site) -> None:
    """A graph is one launch, whatever is in it: eight of them of 20 to 300 ms."""
    site.configure({"chat": {"weight": 2}, "train": {"weight": 2, "class": "batch"}, "graphs": {"weight": 1}})
    site.start()
    lengths = {"kernels": 1, "kernel_us": 100_000, "jitter_ratio": 0.6, "submit": "graph", "gap_us": 1000}
    site.spawn("chat", DECODE)
    site.spawn("train", STEADY)
    site.spawn("graphs", Workload("step", depth=1, **lengths))
    site.wait_held("graphs")
    let_run(8)  # each of the eight has to be seen
    shares = site.shares(["chat", "train", "graphs"], 10)
    assert abs(shares["graphs"] - 0.2) < 0.08, shares
    answer = site.cli("explain", "graphs", "--socket", str(site.socket_path))
    assert answer.returncode == 0, answer.stderr
    told = " ".join(answer.stdout.split())
    assert "graph launches of " in told, told
    assert "each runs as one piece" in told, told


def test_stalled_gpu_disturbs_no_other_gpu(make_site: MakeSite) -> None:
    """On GPU 1 a kernel never ends; GPU 0 is shared as before, and nobody is held past its deadline."""
    site = make_site(gpus=2)
    batch = {"weight": 1, "class": "batch", "max_freeze_ms": BATCH_DEADLINE_MS}
    tenants = {"chat": {"weight": 3}, "batch": batch, "stuck": {}, "beside": {}}
    site.configure(tenants)
    site.start()
    site.attach()
    site.spawn("stuck", Workload("longkernel", kernels=1, kernel_us=3_60_000_000, device=1))
    site.spawn("beside", replace(DECODE, device=1))
    site.spawn("chat", STEADY)
    site.spawn("batch", GREEDY)
    site.wait_held("batch")
    before = site.truth_ns()
    shares = site.shares(["chat", "batch"], 6)
    assert abs(shares["chat"] - 0.75) < 0.1, shares
    after = site.truth_ns()
    assert after["beside"] > before["beside"], "its neighbour goes on"
    limits = {"chat": LATENCY_DEADLINE_MS, "batch": BATCH_DEADLINE_MS}
    for name in tenants:
        limit_ms = limits.get(name, LATENCY_DEADLINE_MS)
        records = site.decisions(name)
        allowed = [(item["deadline_ns"] - item["t_ns"]) / 1e6 for item in records if item["action"] == "hold"]
        assert all(ms <= limit_ms for ms in allowed), (name, max(allowed))
        lasted = [item["held_ns"] / 1e6 for item in records if item["held_ns"]]
        assert all(ms <= limit_ms + LATE_MS for ms in lasted), (name, max(lasted))
    assert logged(site.log(), "tick failed|exception=") == []
    assert any(item["action"] == "thaw" for item in site.decisions("batch"))
    assert logged(site.log(), "guardian: thawed .*/batch ") == [], "the daemon thaws, not its guardian"


def test_tenant_alone_is_never_held(site: Site) -> None:
    site.configure({"chat": {"weight": 100}, "greedy": {"weight": 1}})
    site.start()
    site.spawn("greedy", GREEDY)
    wait_until(lambda: site.gpu_time_s("greedy") > 0.2, PATIENCE_S, "it is accounted")
    let_run(1)
    assert site.decisions("greedy") == []
    assert not is_asked(site.cgroup("greedy"))


def test_survivor_is_thawed_when_the_others_exit(site: Site) -> None:
    """Nobody delivers any more, so its lag cannot recover: the last one with demand runs."""
    site.configure(
        {"chat": {"weight": 9}, "greedy": {"weight": 1, "class": "batch", "max_freeze_ms": 60_000}}
    )
    site.start()
    others = [site.spawn("chat", DECODE) for _ in range(2)]
    worker = site.spawn("greedy", GREEDY)
    site.wait_held("greedy")
    for other in others:
        other.kill()
    wait_until(lambda: not is_asked(site.cgroup("greedy")), PATIENCE_S / 2, "it runs again")
    steps = worker.step_count()
    wait_until(lambda: worker.step_count() > steps + 5, PATIENCE_S, "it makes progress")
    let_run(1)
    assert not is_asked(site.cgroup("greedy"))


def test_who_ends_while_it_is_held_is_held_no_longer(site: Site) -> None:
    """Of a tenant with a process left nobody knows what it wants, and it is held on; of an empty one we do."""
    site.configure(
        {"chat": {"weight": 9}, "greedy": {"weight": 1, "class": "batch", "max_freeze_ms": 60_000}}
    )
    site.start()
    site.spawn("chat", STEADY)
    worker = site.spawn("greedy", replace(GREEDY, depth=400))
    site.wait_held("greedy")
    worker.kill()
    wait_until(lambda: not is_asked(site.cgroup("greedy")), PATIENCE_S / 2, "nobody is there to be held")
    (last,) = [item for item in site.decisions("greedy") if item["action"] == "thaw"][-1:]
    assert last["reason"]["code"] == "no_demand", last
