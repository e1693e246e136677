# SPDX-License-Identifier: Apache-2.0
"""MIG instances are GPUs of their own, and come and go while the daemon runs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import DECODE, GREEDY, PATIENCE_S, STEADY, Site, is_asked, logged
from tests.support import let_run, wait_until

pytestmark = pytest.mark.alone

TENANTS = {"chat": {"weight": 3}, "batch": {"weight": 1}, "left": {"weight": 1}, "right": {"weight": 1}}
ON_FIRST, ON_SECOND = ["chat", "batch"], ["left", "right"]
ERROR_POINTS = 1.5

RESPLIT = """
from ctypes import byref, c_uint
import pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
def instances(profile):
    count = c_uint(7)
    found = (n.c_nvmlGpuInstance_t * 7)()
    n.nvmlDeviceGetGpuInstances(gpu, profile, found, byref(count))
    return [found[i] for i in range(count.value)]
old = [one for one in instances(9) if n.nvmlGpuInstanceGetInfo(one).placement.start == PLACE][0]
count = c_uint(7)
parts = (n.c_nvmlComputeInstance_t * 7)()
n.nvmlGpuInstanceGetComputeInstances(old, 2, parts, byref(count))
n.nvmlComputeInstanceDestroy(parts[0])
n.nvmlGpuInstanceDestroy(old)
for profile, part in ((14, 1), (19, 0)):
    n.nvmlGpuInstanceCreateComputeInstance(n.nvmlDeviceCreateGpuInstance(gpu, profile), part)
"""


def resplit(site: Site, place: int) -> None:
    """The 3g instance that begins at memory slice ``place`` becomes a 2g and a 1g."""
    code = f"PLACE = {place}\n{RESPLIT}"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **site.host.env()}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def on(uuid: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": uuid}


def both_shares(site: Site, seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    before = site.truth_ns()
    let_run(seconds)
    after = site.truth_ns()
    got = {name: after[name] - before[name] for name in after}

    def parts(names: list[str]) -> dict[str, float]:
        total = sum(got[name] for name in names)
        return {name: got[name] / total for name in names}

    return parts(ON_FIRST), parts(ON_SECOND)


@pytest.mark.rest
def test_each_instance_is_shared_by_the_weights_of_those_on_it(make_site: MakeSite) -> None:
    site = make_site(mig=(3, 3))
    first, second = site.host.mig_uuids()
    site.configure(TENANTS)
    site.start()
    for tenant, uuid in (("chat", first), ("batch", first), ("left", second), ("right", second)):
        load = GREEDY if tenant == "right" else STEADY
        site.spawn(tenant, load, env=on(uuid))
        site.spawn(tenant, load, env=on(uuid))
    site.wait_held("batch")
    let_run(4)
    on_first, on_second = both_shares(site, 60)
    errors = {
        name: 100 * abs(share - due)
        for shares, dues in ((on_first, (0.75, 0.25)), (on_second, (0.5, 0.5)))
        for (name, share), due in zip(shares.items(), dues, strict=True)
    }
    print("share errors in points:", {name: round(error, 2) for name, error in errors.items()})
    assert max(errors.values()) <= ERROR_POINTS, errors
    status = site.status()
    known = {gpu["uuid"]: gpu for gpu in status["gpus"]}
    assert list(known) == [first, second]
    assert known[first]["parent_uuid"] == site.host.uuids()[0]
    assert known[first]["mig_profile"] and known[first]["gpu_instance"] == 1
    assert {gpu["uuid"] for gpu in site.tenant("chat")["gpus"]} == {first}
    shown = site.cli("status", "--socket", str(site.socket_path)).stdout
    assert "GPU 0/1/0 MIG-" in shown and "GPU 0/2/0 MIG-" in shown
    assert logged(site.log(), "Traceback|tick failed") == []


def test_an_instance_that_is_split_anew_under_load_leaves_nobody_held(make_site: MakeSite) -> None:
    """`both` is a gang on both instances, held for the one that goes; its part of the other one is its own again."""
    site = make_site(mig=(3, 3))
    first, second = site.host.mig_uuids()
    site.configure({**TENANTS, "both": {"weight": 1}})
    site.start()
    site.attach()
    for tenant, uuid in (("chat", first), ("both", first), ("left", second), ("both", second)):
        site.spawn(tenant, STEADY, env=on(uuid))
    site.spawn("both", replace(GREEDY, depth=32), env=on(second))
    wait_until(
        lambda: any(
            r["action"] == "hold" and (r["reason"]["gpu"] or "") == second for r in site.decisions("both")
        ),
        PATIENCE_S,
        "both is held for the second instance",
    )
    before = {name: site.gpu_time_s(name) for name in ("chat", "left", "both")}
    for worker in (*site.workers["left"], *site.workers["both"][1:]):
        worker.kill()
    wait_until(lambda: len(site.host.mig_uuids()) == 2 and not busy(site, second), PATIENCE_S, "it is free")
    resplit(site, place_of(site, second))
    now = site.host.mig_uuids()
    assert len(now) == 3 and first in now and second not in now
    wait_until(
        lambda: {gpu["uuid"] for gpu in site.status()["gpus"]} == set(now), PATIENCE_S, "it is noticed"
    )
    after = {name: site.gpu_time_s(name) for name in ("chat", "left", "both")}
    assert all(after[name] >= before[name] for name in before), (before, after)
    new = [uuid for uuid in now if uuid != first]
    site.spawn("left", STEADY, env=on(new[0]))
    site.spawn("right", DECODE, env=on(new[1]))
    wait_until(
        lambda: {g["uuid"] for g in site.tenant("left")["gpus"] if g["has_demand"]} == {new[0]},
        PATIENCE_S,
        "left is seen where it is now",
    )
    let_run(3)
    shares = site.shares(["chat", "both"], 6)
    assert abs(shares["both"] - 0.25) < 0.05, shares
    late = [r for r in site.decisions("both") if r["action"] == "hold" and r["reason"]["gpu"] == second]
    assert all(r["t_ns"] < site.status()["t_ns"] - 5_000_000_000 for r in late), (
        "nobody is held for what is gone"
    )
    for worker in [one for group in site.workers.values() for one in group]:
        worker.kill()
    wait_until(lambda: not is_asked(site.cgroup("both")), PATIENCE_S, "nobody is held any more")
    assert logged(site.log(), f"gpu=gone uuid={second}") and logged(site.log(), f"gpu=new uuid={new[0]}")
    assert logged(site.log(), "Traceback|tick failed|exception=") == []


def busy(site: Site, uuid: str) -> bool:
    return any(one.gpu_uuid == uuid and one.is_alive for one in site.host.truth())


def place_of(site: Site, uuid: str) -> int:
    return 4 if site.host.mig_uuids().index(uuid) == 0 else 0
