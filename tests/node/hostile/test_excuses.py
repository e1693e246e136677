# SPDX-License-Identifier: Apache-2.0
"""One odd process excuses nobody: neither its siblings from being held, nor its tenant from its weight.

Odd is work of which nobody can say on which GPU it is, and work past the exports of libcuda in processes that are gone
before anything can be said of one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fairsched.simgpu import Workload
from fairsched.simgpu.build import build
from fairsched.simgpu.workload import create_log
from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import GREEDY, PATIENCE_S, STEADY, Site, logged
from tests.node.hostile.hollow import Hollow
from tests.node.hostile.shares import LONGER_S
from tests.support import let_run, wait_until

pytestmark = pytest.mark.alone

CHAT, HOG = 8, 1
SETTLED_S, WATCHED_S = 6.0, 8.0
STATIC = Workload("static", kernels=20, kernel_us=500, seconds=0.5)
PLAYERS, PAUSE_S = 3, 0.4
LEAST = 0.75
"""Of the GPU, for chat. It had .200 while one whose GPU is a guess freed its siblings, and has .90."""
# Arguments: a pause, and a command that is run again and again.
_AGAIN = """
import subprocess, sys, time
while True:
    subprocess.run(sys.argv[2:])
    time.sleep(float(sys.argv[1]))
"""


def begin(site: Site, siblings: int = 4) -> None:
    """Without a play chat has its eight ninths, however many processes the other one has."""
    site.configure({"chat": {"weight": CHAT}, "hog": {"weight": HOG}})
    site.start()
    site.attach()
    for _ in range(siblings):
        site.spawn("hog", GREEDY)
    site.spawn("chat", STEADY)
    wait_until(lambda: site.gpu_time_s("chat") > 0.1, PATIENCE_S, "all is accounted")


def share_of_chat(site: Site) -> float:
    """Of all that the GPU did, by whomever it was asked."""
    let_run(SETTLED_S + LONGER_S / 2)
    before_ns, busy_ns = site.truth_ns()["chat"], site.host.gpu_truth().busy_ns
    let_run(WATCHED_S + LONGER_S / 2)
    share = (site.truth_ns()["chat"] - before_ns) / (site.host.gpu_truth().busy_ns - busy_ns)
    print(f"chat has {share:.3f}; {site.status()['warnings']}")
    assert logged(site.log(), "misbehaviour=.*tenant=chat|tick failed|Traceback") == []
    return share


def test_work_of_which_the_gpu_is_a_guess_excuses_no_sibling(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site(gpus=2)
    begin(site)
    hollow = Hollow(site, "hog", tmp_path, "play_nowhere", 60.0 + LONGER_S)
    hollow.go()
    assert share_of_chat(site) > LEAST
    assert site.tenant("hog")["confidence"] == "low"
    hollow.process.kill()


def test_unseen_processes_that_are_gone_at_once_are_charged_to_their_tenant(
    site: Site, tmp_path: Path
) -> None:
    begin(site, siblings=0)
    let_run(5)  # a daemon that has just begun charges nobody for what it has not seen
    create_log(tmp_path / "log")
    argv = [str(build().load), *STATIC.arguments(), "--log", str(tmp_path / "log")]
    again = [sys.executable, "-S", "-c", _AGAIN, str(PAUSE_S), *argv]
    players = [site.host.popen(again, site.cgroup("hog")) for _ in range(PLAYERS)]
    assert share_of_chat(site) > LEAST
    assert site.tenant("hog")["held_s"] > 1
    for player in players:
        player.kill()
