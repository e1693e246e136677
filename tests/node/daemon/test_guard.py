# SPDX-License-Identifier: Apache-2.0
"""Limits in the real companion of the real daemon: who is over is warned, slowed down, ended, and nobody else is.

Tenants run as users of their own: what a limit of users adds up is theirs, whoever else is on the GPU.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.node.daemon.site import DECODE, PATIENCE_S, Site, is_running, logged
from tests.node.daemon.test_misbehaviour import free_port
from tests.support import let_run, wait_until

GIB = 1 << 30
EVE, ADAM = 70001, 70002
"""Users that nobody has named."""
LIMIT: dict[str, Any] = {
    "per": "user",
    "of": [EVE],
    "vram": "5GiB",
    "warnings": 2,
    "every": "1s",
    "grace": "3s",
    "soft": "hold",
    "hard": "end",
}
TENANTS: dict[str, dict[str, Any]] = {"eve": {}, "adam": {}}


def spawn(site: Site, tenant: str, uid: int, gib: float) -> subprocess.Popen[bytes]:
    """A decoder of that user, with so much memory besides what its context takes."""
    load = replace(DECODE, alloc_bytes=int(gib * GIB))
    user = ["/usr/bin/setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    argv = [*user, str(site.host._parts.load), *load.arguments()]
    process = site.host.popen(argv, cgroup_path=site.cgroup(tenant))
    wait_until(
        lambda: any(
            one["pid"] == process.pid and (one["vram_bytes"] or 0) >= load.alloc_bytes
            for one in site.ask("processes")
        ),
        PATIENCE_S,
        f"{tenant} has its memory",
    )
    return process


def guard(limits: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"mode": "act", "interval": "1s", "limits": dict(limits), **more}


def audit(site: Site) -> list[dict[str, Any]]:
    lines = []
    for path in sorted((site.state_dir / "audit").glob("*.jsonl")):
        lines += [json.loads(line) for line in path.read_text().splitlines()]
    return lines


def did(site: Site) -> list[str]:
    return [entry["did"] for entry in audit(site) if entry["event"] == "guard"]


def quota(site: Site, tenant: str = "eve") -> float | None:
    value = site.tenant(tenant)["quota_ratio"]
    return None if value is None else float(value)


def vram_limit(site: Site, tenant: str) -> int | None:
    (found,) = [
        one["value"]
        for one in site.ask("tenant_list")["settings"]
        if one["key"] == ["tenants", tenant, "vram_limit"]
    ]
    return None if found is None else int(found)


def warnings(site: Site) -> str:
    return "\n".join(site.status()["warnings"])


def wait_held(site: Site) -> None:
    wait_until(lambda: quota(site) == 0.05, PATIENCE_S, "eve is slowed down")


def test_who_is_over_is_warned_slowed_down_and_ended_and_its_neighbour_is_not(site: Site) -> None:
    port = free_port()
    site.configure(TENANTS, guard=guard({"people": LIMIT}), metrics={"listen": f":{port}"})
    site.start()
    site.attach()
    old, adam = spawn(site, "eve", EVE, 3), spawn(site, "adam", ADAM, 9)
    young = spawn(site, "eve", EVE, 3)
    wait_held(site)
    wait_until(lambda: f"guard: user {EVE}: " in warnings(site), PATIENCE_S, "it is said")
    assert quota(site, "adam") is None
    wait_until(lambda: not is_running(young.pid), PATIENCE_S, "the youngest is ended")
    wait_until(lambda: quota(site) is None, PATIENCE_S, "what is left is within the limit")
    assert not site.tenant("eve")["is_overridden"]
    wait_until(lambda: "outcome" in [one["event"] for one in audit(site)], PATIENCE_S, "it is written down")
    let_run(3)
    assert is_running(old.pid) and is_running(adam.pid)
    (reclaim,) = [one for one in audit(site) if one["event"] == "reclaim"]
    assert [one["pid"] for one in reclaim["targets"]] == [young.pid]
    assert str(EVE) in reclaim["asked"] and "people" in reclaim["asked"]
    order = [one.get("did", one["event"]) for one in audit(site)]
    assert order.index("warned") < order.index("lower") < order.index("reclaim") < order.index("outcome")
    assert "gave back" in order and "ADAM" not in str(audit(site)) and str(ADAM) not in str(audit(site))
    done = site.cli("audit", "verify", env={**site.env(), "FAIRSCHED_CONFIG": str(site.config_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    shown = site.cli("audit", "show", env={**site.env(), "FAIRSCHED_CONFIG": str(site.config_path)}).stdout
    assert "guard: warned (people)" in shown and all(len(line) <= 80 for line in shown.splitlines())
    assert logged(site.log(), "guard=end outcome=done limit=people")
    assert logged(site.log(), "Traceback") == []


@pytest.mark.rest
def test_a_dry_run_ends_nobody_and_says_whom_it_would(site: Site) -> None:
    site.configure(TENANTS, guard=guard({"people": LIMIT}, mode="dry_run"))
    site.start()
    site.attach()
    workers = [spawn(site, "eve", EVE, 3), spawn(site, "adam", ADAM, 9), spawn(site, "eve", EVE, 3)]
    wait_until(lambda: "would end" in did(site), PATIENCE_S, "it is written down whom it would end")
    entry = next(one for one in audit(site) if one.get("did") == "would end")
    assert [one["pid"] for one in entry["targets"]] == [workers[2].pid]
    assert {"warned", "would hold", "would end"} >= set(did(site)) and "would" in warnings(site)
    let_run(2)
    assert all(is_running(one.pid) for one in workers)
    assert quota(site) is None and not (site.state_dir / "overrides.yaml").exists()
    assert "reclaim" not in [one["event"] for one in audit(site)]


@contextmanager
def full_disk(directory: Path) -> Iterator[None]:
    """Not a byte of room is left in `directory`."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", directory], check=True)
    try:
        (directory / "filler").write_bytes(b"x" * 8192)
        yield
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


@pytest.mark.rest
def test_without_room_for_the_audit_log_nobody_is_touched_until_there_is(site: Site) -> None:
    log = site.state_dir / "audit"
    log.mkdir(parents=True, mode=0o700)
    site.configure(TENANTS, guard=guard({"people": LIMIT}))
    with full_disk(log):
        site.start()
        site.attach()
        workers = [spawn(site, "eve", EVE, 3), spawn(site, "eve", EVE, 3)]
        wait_until(lambda: "nobody is ended" in warnings(site), PATIENCE_S, "the refusal is said")
        assert "No space left" in warnings(site) and "make room" in warnings(site)
        let_run(3)
        assert all(is_running(one.pid) for one in workers) and quota(site) is None
    wait_until(lambda: not is_running(workers[1].pid), PATIENCE_S, "there is room, and it is tried again")
    assert is_running(workers[0].pid)


HOLD = {**LIMIT, "hard": "none"}


def test_a_companion_that_is_killed_in_mid_hold_leaves_nothing_lowered(site: Site) -> None:
    site.configure(TENANTS, guard=guard({"people": HOLD}))
    site.start()
    site.attach()
    eve = spawn(site, "eve", EVE, 6)
    wait_held(site)
    os.kill(site.helpers()["companion"], signal.SIGKILL)
    eve.kill()
    eve.wait()
    wait_until(lambda: quota(site) is None, PATIENCE_S, "the next one gives it back")
    assert not site.tenant("eve")["is_overridden"]


@pytest.mark.parametrize("mode", ["act", "off"])
def test_a_node_that_dies_in_mid_hold_comes_back_with_nothing_lowered(site: Site, mode: str) -> None:
    """Also where nobody keeps limits any more."""
    tenants = {**TENANTS, "eve": {"quota": 0.9}}
    site.configure(tenants, guard=guard({"people": HOLD}))
    site.start()
    site.attach()
    eve = spawn(site, "eve", EVE, 6)
    wait_held(site)
    companion = site.helpers()["companion"]
    os.kill(companion, signal.SIGKILL)
    site.kill()
    eve.kill()
    eve.wait()
    assert "0.05" in (site.state_dir / "overrides.yaml").read_text(), "it would stay so"
    site.configure(tenants, guard=guard({"people": HOLD}, mode=mode))
    site.start()
    wait_until(lambda: quota(site) == 0.9, PATIENCE_S, "the next one gives it back")
    assert not site.tenant("eve")["is_overridden"]


def test_what_a_person_sets_in_mid_hold_stays(site: Site) -> None:
    site.configure(TENANTS, guard=guard({"people": HOLD}))
    site.start()
    site.attach()
    eve = spawn(site, "eve", EVE, 6)
    wait_held(site)
    site.ask("tenant_set", tenant="eve", values={"quota": 0.5})
    wait_until(lambda: "ceded" in did(site), PATIENCE_S, "it is noticed")
    let_run(3)
    assert quota(site) == 0.5
    eve.kill()
    eve.wait()
    wait_until(lambda: "guard" not in warnings(site), PATIENCE_S, "nobody is over")
    assert quota(site) == 0.5 and did(site).count("lower") == 1


def test_a_reload_without_the_limit_gives_back_what_it_lowered(site: Site) -> None:
    """Of a hold, and of memory that a kernel may refuse."""
    memory = {"per": "tenant", "of": ["adam"], "vram": "8GiB", "each_gpu": True, "hard": "end"}
    site.configure(TENANTS, guard=guard({"people": HOLD, "memory": memory}))
    site.start()
    site.attach()
    spawn(site, "eve", EVE, 6)
    wait_held(site)
    wait_until(lambda: vram_limit(site, "adam") == 8 * GIB, PATIENCE_S, "the daemon's limit is the guard's")
    site.configure(TENANTS)
    os.kill(site.pid, signal.SIGHUP)
    wait_until(lambda: quota(site) is None, PATIENCE_S, "the hold is over")
    wait_until(lambda: vram_limit(site, "adam") is None, PATIENCE_S, "so is the limit")
    assert not site.tenant("adam")["is_overridden"] and not site.tenant("eve")["is_overridden"]


@pytest.mark.rest
def test_in_maintenance_everybody_goes_who_was_told_but_who_is_allowed(site: Site) -> None:
    """It has begun: everybody is told, and goes a minute later."""
    window = {"from": "2026-01-01 00:00", "until": "2099-01-01 00:00", "hard": "end", "warn_before": "60s"}
    allow = {"cgroups": [f"/{site.top}/adam"]}
    site.configure(TENANTS, guard=guard({}, maintenance={"driver": window}, allow=allow))
    site.start()
    site.attach()
    began_s = time.monotonic()
    eve, adam = spawn(site, "eve", EVE, 1), spawn(site, "adam", ADAM, 1)
    wait_until(lambda: f"guard: user {EVE}" in warnings(site), PATIENCE_S, "it is said")
    wait_until(lambda: not is_running(eve.pid), 60 + PATIENCE_S, "who was told is ended")
    assert time.monotonic() - began_s > 55
    let_run(3)
    assert is_running(adam.pid)


@pytest.mark.rest
def test_rounds_are_on_tapes_that_rules_and_limits_can_be_tried_on(site: Site) -> None:
    site.configure(TENANTS, guard=guard({"people": {**LIMIT, "vram": "100GiB"}}))
    site.start()
    site.attach()
    eve = spawn(site, "eve", EVE, 1)
    tapes = site.state_dir / "guard"
    wait_until(lambda: list(tapes.glob("*.tape")), PATIENCE_S, "there is one")
    let_run(4)
    (tape,) = tapes.glob("*.tape")
    done = site.cli(
        "audit",
        "rogue",
        "--replay",
        str(tape),
        "--json",
        "--min-score",
        "0",
        "--config",
        str(site.config_path),
    )
    assert json.loads(done.stdout)["rounds"] >= 3, done.stderr
    assert str(eve.pid) in tape.read_text() and tape.stat().st_mode & 0o077 == 0
