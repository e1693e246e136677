# SPDX-License-Identifier: Apache-2.0
"""Work past the exports of libcuda is charged to its tenant, which is held for it, however short its processes live."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fairsched.simgpu import Workload
from fairsched.simgpu.build import build
from fairsched.simgpu.workload import create_log
from tests.node.daemon.site import GREEDY, PATIENCE_S, STEADY, Site, logged
from tests.node.hostile.shares import LONGER_S
from tests.support import let_run, wait_until

pytestmark = pytest.mark.alone

CHAT, HOG = 8, 1
STATIC = Workload("static", kernels=20, kernel_us=500)
ALL_THE_TIME_S = 3600.0
PAUSE_S = 0.4
BLIND_S = 5.0
"""A daemon that has just begun charges nobody for what it has not seen."""
SETTLED_S, WATCHED_S = 6.0, 10.0
LEAST = 0.7
"""Of the GPU, for chat, which is owed .889: hog's queues go on for a while in each of its holds, which end after half a
second. Beside what comes and goes it had .46, beside one that stays .5."""
MOST_WRONG = 0.15
"""Parts of the GPU, of what chat is charged: samples are few."""
# Arguments: a pause, and a command that is run again and again.
_AGAIN = """
import subprocess, sys, time
while True:
    subprocess.run(sys.argv[2:])
    time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("lives_s", "players", "siblings"),
    [
        pytest.param(0.5, 3, 0, id="flicker"),
        pytest.param(0.5, 3, 1, id="flicker beside a seen one", marks=pytest.mark.rest),
        pytest.param(3.5, 1, 0, id="seconds", marks=pytest.mark.rest),
        pytest.param(ALL_THE_TIME_S, 1, 0, id="always", marks=pytest.mark.rest),
    ],
)
def test_a_tenant_is_held_for_what_it_does_unseen(
    site: Site, tmp_path: Path, lives_s: float, players: int, siblings: int
) -> None:
    site.configure({"chat": {"weight": CHAT}, "hog": {"weight": HOG}})
    site.start()
    site.attach()
    for _ in range(siblings):
        site.spawn("hog", GREEDY)
    site.spawn("chat", STEADY)
    wait_until(lambda: site.gpu_time_s("chat") > 0.1, PATIENCE_S, "it is accounted")
    let_run(BLIND_S)
    create_log(tmp_path / "log")
    argv = [str(build().load), *replace(STATIC, seconds=lives_s).arguments(), "--log", str(tmp_path / "log")]
    again = [sys.executable, "-S", "-c", _AGAIN, str(PAUSE_S), *argv]
    started = [site.host.popen(again, site.cgroup("hog")) for _ in range(players)]
    let_run(SETTLED_S + LONGER_S / 2)
    before_ns, busy_ns = site.truth_ns(), site.host.gpu_truth().busy_ns
    charged_s = site.gpu_time_s("chat")
    let_run(WATCHED_S + LONGER_S / 2)
    all_ns = site.host.gpu_truth().busy_ns - busy_ns
    had, charged = (site.truth_ns()["chat"] - before_ns["chat"]) / all_ns, site.gpu_time_s("chat") - charged_s
    print(f"chat has {had:.3f} of {all_ns / 1e9:.1f} s, charged {charged:.2f} s; {site.status()['warnings']}")
    print({name: (site.tenant(name)["confidence"], site.tenant(name)["held_s"]) for name in ("chat", "hog")})
    assert had > LEAST
    assert abs(charged * 1e9 / all_ns - had) < MOST_WRONG
    assert site.tenant("hog")["held_s"] > 1
    assert site.tenant("chat")["confidence"] in ("sampled", "high"), (
        "with its sibling it may have what it is charged"
    )
    assert logged(site.log(), "misbehaviour=.*tenant=chat|tick failed|Traceback") == []
    for player in started:
        player.kill()
