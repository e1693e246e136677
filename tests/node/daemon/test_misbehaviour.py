# SPDX-License-Identifier: Apache-2.0
"""Tricks beyond a freezer's reach or the account's sight are found, named and acted on; their neighbours are not."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from fairsched.simgpu import Workload
from fairsched.simgpu.workload import PRESETS, Worker
from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import DECODE, PATIENCE_S, Site, is_running, logged
from tests.node.promptness import time_until
from tests.support import let_run, wait_until

ENDLESS = Workload("decode", kernels=1, kernel_us=1e9, contexts=4)
STATIC = Workload("static", kernels=20, kernel_us=500)
LONG = replace(PRESETS["longkernel"], kernel_us=200_000)
LONG_STEPS = PRESETS["trainer"]
FOUND_S = 5.0
SETTLED_S = 6.0
"""A daemon that has just begun believes that there may be work it has not seen yet."""


def named(site: Site) -> dict[str, str]:
    """Kind of misbehaviour by tenant."""
    tenants = site.status()["tenants"]
    return {one["name"]: one["misbehaviour"]["kind"] for one in tenants if one["misbehaviour"]}


def find(site: Site, tenant: str, workload: Workload) -> Worker:
    """A new process, once its tenant is named in status: in time, but for waits of this machine for a processor.

    That the law needs no longer than FOUND_S, whatever runs beside it, is a test in unit/policy.
    """
    worker = site.spawn(tenant, workload)
    took = time_until(lambda: tenant in named(site), PATIENCE_S, f"{tenant} is named")
    assert took.own_s <= FOUND_S, took
    return worker


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def metrics(port: int) -> dict[tuple[str, ...], float]:
    """(name, tenant, kind) -> value. The companion may be a moment behind the daemon when both have just begun."""
    text = ""

    def is_told() -> bool:
        nonlocal text
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
                text = answer.read().decode()
        except urllib.error.URLError:
            return False
        return "fairsched_up 1\n" in text

    wait_until(is_told, PATIENCE_S, "somebody answers scrapes, and the daemon him")
    return {
        (one.name, one.labels.get("tenant", ""), one.labels.get("kind", "")): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_endless_work_is_named_and_ended_and_nobody_else_is(site: Site) -> None:
    port = free_port()
    tenants: dict[str, dict[str, Any]] = {"chat": {}, "train": {"class": "batch"}, "bad": {}}
    site.configure(
        tenants,
        tenant_defaults={"on_misbehaviour": "terminate"},
        metrics={"listen": f":{port}"},
        misbehaviour={"grace_s": 3},
    )
    site.start()
    site.attach()
    chat, train = site.spawn("chat", DECODE), site.spawn("train", LONG)
    bad = find(site, "bad", ENDLESS)
    assert named(site) == {"bad": "endless"}
    one = site.tenant("bad")
    assert one["confidence"] == "low"
    assert one["misbehaviour"]["action"] == "terminate"
    assert f"pid {bad.pid}" in one["misbehaviour"]["detail"]

    def is_exported() -> bool:
        return metrics(port).get(("fairsched_misbehaving", "bad", "endless")) == 1

    wait_until(is_exported, PATIENCE_S, "a page that is at most a second old says so, too")
    exported = metrics(port)
    assert exported["fairsched_gpu_time_seconds_total", "chat", ""] > 0
    socket_option = ("--socket", str(site.socket_path))
    for command in (("status",), ("explain", "bad")):
        assert "! endless GPU work" in site.cli(*command, *socket_option).stdout
    wait_until(lambda: not is_running(bad.pid), PATIENCE_S, "SIGKILL ends what SIGTERM did not")
    assert len(logged(site.log(), "terminate=SIGTERM tenant=bad")) == 1
    assert len(logged(site.log(), "terminate=SIGKILL tenant=bad")) == 1
    wait_until(lambda: named(site) == {}, PATIENCE_S, "the episode is over")
    told = ("fairsched_terminations_total", "bad", "endless")
    wait_until(lambda: metrics(port).get(told) == 1, PATIENCE_S, "the termination is exported")
    assert chat.is_running and train.is_running
    assert logged(site.log(), "misbehaviour=(endless|unseen) .*tenant=(chat|train) ") == []


def test_tenants_older_than_the_daemon_are_accused_of_nothing_and_held(site: Site) -> None:
    """NVML remembers what they did before anybody charged them, and where they stand in the runlist is not known."""
    tenants: dict[str, dict[str, Any]] = {"chat": {"weight": 2}, "train": {"class": "batch"}}
    site.configure(tenants, tenant_defaults={"on_misbehaviour": "terminate"})
    workers = [site.spawn("chat", DECODE), *(site.spawn("train", LONG_STEPS) for _ in range(3))]
    let_run(SETTLED_S)
    site.start()
    site.attach()
    wait_until(lambda: site.tenant("train")["held_s"], PATIENCE_S, "the trainers are held")
    let_run(2 * SETTLED_S)
    assert named(site) == {}
    assert all(worker.is_running for worker in workers)
    assert logged(site.log(), "misbehaviour=|terminate=|turns=unsure|Traceback") == []


def test_work_past_the_exports_is_named_and_in_observe_nobody_is_ended(site: Site) -> None:
    site.configure({"chat": {}, "bad": {"on_misbehaviour": "terminate"}}, mode="observe")
    site.start()
    site.attach()
    chat = site.spawn("chat", DECODE)
    let_run(SETTLED_S)
    bad = find(site, "bad", STATIC)
    one = site.tenant("bad")
    assert (one["misbehaviour"]["kind"], one["misbehaviour"]["action"]) == ("unseen", "would_terminate")
    assert (one["confidence"], one["state"]) == ("low", "run")
    let_run(2)
    assert bad.is_running and chat.is_running
    assert logged(site.log(), "terminate=") == []
    assert named(site) == {"bad": "unseen"}


def test_unseen_processes_are_ended_and_their_cgroup_mates_are_not(site: Site) -> None:
    """Only what was seen to misbehave is signalled: a decoder in the same cgroup lives."""
    site.configure({"chat": {}, "bad": {"on_misbehaviour": "terminate"}})
    site.start()
    site.attach()
    mate = site.spawn("bad", DECODE)
    let_run(SETTLED_S)
    bad = find(site, "bad", STATIC)
    wait_until(lambda: not is_running(bad.pid), PATIENCE_S, "it is ended")
    wait_until(lambda: named(site) == {}, PATIENCE_S, "the episode is over")
    assert mate.is_running
    steps = mate.step_count()
    wait_until(lambda: mate.step_count() > steps, PATIENCE_S, "its mate works on")


def test_whoever_does_nothing_wrong_is_never_named(make_site: MakeSite) -> None:
    """Long kernels, deep queues, pauses, polling, no synchronisation at all, and holds of some of them."""
    innocent = {
        "long": LONG,
        "train": PRESETS["trainer"],
        "prefill": PRESETS["prefill"],
        "poll": PRESETS["poll"],
        "nosync": PRESETS["nosync"],
        "burst": PRESETS["burst"],
    }
    site = make_site()
    site.configure({name: {"on_misbehaviour": "terminate"} for name in innocent})
    site.start()
    site.attach()
    workers = [site.spawn(name, workload) for name, workload in innocent.items()]
    let_run(14)
    assert all(worker.is_running for worker in workers)
    assert logged(site.log(), "misbehaviour|terminate=|Traceback") == []
    assert any(one["held_s"] for one in site.status()["tenants"]), "somebody was held meanwhile"
