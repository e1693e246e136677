# SPDX-License-Identifier: Apache-2.0
"""Memory beyond a tenant's limit, where the kernel refuses nothing: told, held, ended; others are left alone."""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from fairsched.simgpu.workload import Worker
from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import DECODE, PATIENCE_S, Site, is_running, logged
from tests.node.daemon.test_misbehaviour import free_port, metrics
from tests.support import let_run, wait_until

GIB = 1 << 30
LIMIT = {"vram_limit": "4GiB"}


def spawn(site: Site, tenant: str, gib: float) -> Worker:
    """A decoder that has so much memory besides what its context takes."""
    return site.spawn(tenant, replace(DECODE, alloc_bytes=int(gib * GIB)))


def vram(site: Site, tenant: str) -> dict[str, Any]:
    (one,) = site.tenant(tenant)["vram"]
    return dict(one)


def wait_over(site: Site, tenant: str) -> None:
    wait_until(lambda: vram(site, tenant)["over_since_s"] is not None, PATIENCE_S, f"{tenant} is over")


@pytest.mark.rest
def test_who_is_beyond_its_limit_is_told_and_left_alone(site: Site) -> None:
    port = free_port()
    site.configure({"big": LIMIT, "small": LIMIT}, metrics={"listen": f":{port}"})
    site.start()
    big, small = spawn(site, "big", 5), spawn(site, "small", 2)
    wait_over(site, "big")
    wait_until(lambda: vram(site, "small")["used_bytes"] >= 2 * GIB, PATIENCE_S, "small is listed, too")
    one, other = vram(site, "big"), vram(site, "small")
    assert (one["source"], one["action"], one["is_kept_by_kernel"]) == ("nvml", "warn", False)
    assert one["used_bytes"] >= 5 * GIB and one["limit_bytes"] == 4 * GIB
    assert other["used_bytes"] < 4 * GIB and other["over_since_s"] is None
    gpu, is_over = site.host.uuids()[0], ("fairsched_vram_over", "big", "")
    wait_until(lambda: metrics(port).get(is_over) == 1, PATIENCE_S, "it is exported, a second later at most")
    told = metrics(port)
    assert told["fairsched_vram_limit_bytes", "big", ""] == 4 * GIB
    assert told["fairsched_vram_over", "small", ""] == 0
    screen = site.cli("status", "--socket", str(site.socket_path)).stdout
    assert f"! beyond its GPU memory on {gpu[:12]}" in screen
    let_run(3)
    assert big.is_running and small.is_running
    assert len(logged(site.log(), "vram=over")) == 1
    assert logged(site.log(), "terminate=|Traceback") == []
    big.kill()
    wait_until(lambda: logged(site.log(), "vram=within tenant=big"), PATIENCE_S, "the episode ends")


@pytest.mark.rest
def test_it_is_held_again_and_again_and_runs_between(site: Site) -> None:
    """For no longer than its class allows at a time; its neighbour is not, and the limit is what ends it.

    Of the two shares ``big`` has the smaller: until it is found to be over, and again afterwards, it is held and let go
    for its share as well, by rules of its own.
    """
    big_rules = {**LIMIT, "on_vram_limit": "hold", "max_freeze_ms": 400}
    site.configure({"big": big_rules, "small": {**LIMIT, "weight": 4}})
    site.start()
    big, small = spawn(site, "big", 5), spawn(site, "small", 1)
    wait_until(lambda: held(site, "big", "over_vram") >= 5, PATIENCE_S, "it is held again and again")
    steps = big.step_count()
    wait_until(lambda: big.step_count() > steps, PATIENCE_S, "it runs in between")
    holds = pairs(site, "big", "over_vram")
    assert len(holds) >= 4
    assert {thaw["reason"]["code"] for _, thaw in holds} == {"deadline"}, "nobody else lets it go"
    assert {round((hold["deadline_ns"] - hold["t_ns"]) / 1e6) for hold, _ in holds} == {400}
    usual_ms = statistics.median(thaw["held_ns"] / 1e6 for _, thaw in holds)
    assert 400 <= usual_ms < 800, "a thaw comes late only while this machine is busy"
    assert "it has more GPU memory than its limit: 5." in " ".join(
        site.cli("explain", "big", "--socket", str(site.socket_path)).stdout.split()
    )
    assert held(site, "small", "over_vram") == 0 and small.is_running
    site.ask("tenant_set", tenant="big", values={"vram_limit": 8 * GIB})
    wait_until(lambda: vram(site, "big")["over_since_s"] is None, PATIENCE_S, "the limit is higher now")
    count = held(site, "big", "over_vram")
    let_run(2)
    assert held(site, "big", "over_vram") == count
    assert big.is_running


def pairs(site: Site, tenant: str, code: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The holds for that reason which have ended, each with the thaw that ended it."""
    done = [record for record in site.decisions(tenant) if not record["error"]]
    return [
        (hold, thaw)
        for hold, thaw in pairwise(done)
        if (hold["action"], hold["reason"]["code"], thaw["action"]) == ("hold", code, "thaw")
    ]


def held(site: Site, tenant: str, code: str) -> int:
    return sum(
        record["action"] == "hold" and record["reason"]["code"] == code and not record["error"]
        for record in site.decisions(tenant)
    )


@pytest.mark.rest
def test_the_largest_process_ends_and_no_more_than_need_be(site: Site) -> None:
    """In the order of what they have, one at a time; who fits then goes on."""
    site.configure({"big": {**LIMIT, "on_vram_limit": "terminate"}, "small": LIMIT})
    site.start()
    workers = [spawn(site, "big", gib) for gib in (1, 3, 2)]
    neighbour = spawn(site, "small", 3)
    wait_until(lambda: not is_running(workers[1].pid), PATIENCE_S, "the largest ends")
    wait_until(lambda: vram(site, "big")["over_since_s"] is None, PATIENCE_S, "the episode is over")
    assert len(logged(site.log(), "terminate=SIGTERM tenant=big .*kind=over_vram")) == 1
    assert workers[0].is_running and workers[2].is_running and neighbour.is_running
    assert site.tenant("big")["terminations"] == {"over_vram": 1}


def test_a_parents_limit_is_of_all_its_children(make_site: MakeSite) -> None:
    site = make_site()
    site.configure({"team": {**LIMIT, "on_vram_limit": "terminate", "children": {"a": {}, "b": {}}}})
    for name in ("team/a", "team/b"):
        site.make_cgroup(name)
    site.start()
    first, second = spawn(site, "team/a", 2), spawn(site, "team/b", 3)
    wait_until(lambda: not is_running(second.pid), PATIENCE_S, "the larger of the two ends")
    assert first.is_running


def test_outside_enforce_nobody_is_touched(site: Site) -> None:
    tenants = {"a": {**LIMIT, "on_vram_limit": "hold"}, "b": {**LIMIT, "on_vram_limit": "terminate"}}
    site.configure(tenants, mode="observe")
    site.start()
    workers = [spawn(site, name, 5) for name in tenants]
    for name, action in (("a", "would_hold"), ("b", "would_terminate")):
        wait_over(site, name)
        assert vram(site, name)["action"] == action
    let_run(2)
    assert all(worker.is_running for worker in workers)
    assert site.decisions("a") == site.decisions("b") == []
    assert logged(site.log(), "terminate=") == []


def test_the_drivers_calls_tell_what_nvml_would(site: Site) -> None:
    """With the calls seen, the sums are theirs; of a process that is older than the daemon, NVML's."""
    nodes = str(site.host.state_dir / "dev")
    site.configure({"big": LIMIT}, gpu={"device_dir": nodes}, mechanisms={"driver": "required"})
    older = spawn(site, "big", 1)
    site.start()
    younger = spawn(site, "big", 2)

    def truth() -> int:
        pids = (older.pid, younger.pid)
        return sum(context.vram_bytes for context in site.host.truth() if context.pid in pids)

    assert truth() >= 3 * GIB
    wait_until(lambda: vram(site, "big")["used_bytes"] == truth(), PATIENCE_S, "both are counted")
    assert vram(site, "big")["source"] == "ioctls"
    older.kill()
    wait_until(lambda: vram(site, "big")["used_bytes"] == truth(), PATIENCE_S, "one is left")
