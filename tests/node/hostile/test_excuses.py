# SPDX-License-Identifier: Apache-2.0
"""One odd process of a tenant does not excuse its siblings from being held."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairsched.simgpu import Workload
from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import GREEDY, PATIENCE_S, STEADY, Site, logged
from tests.node.hostile.hollow import Hollow
from tests.node.hostile.shares import LONGER_S
from tests.support import let_run, wait_until

pytestmark = [pytest.mark.alone, pytest.mark.rest]

CHAT, HOG = 8, 1
ENDLESS = Workload("decode", kernels=1, kernel_us=1e9)
SETTLED_S, WATCHED_S = 6.0, 8.0
LEAST = 0.75
"""Of the GPU, for chat. It had .200 while the one whose GPU is a guess freed its siblings, and has .90."""

LEAST_BESIDE_ENDLESS = 0.4
"""Work that never ends takes its turns whoever is held, so half is all that there is for chat."""


def begin(site: Site) -> None:
    """Without a play chat has its eight ninths, however many processes the other one has."""
    site.configure({"chat": {"weight": CHAT}, "hog": {"weight": HOG}})
    site.start()
    site.attach()
    for _ in range(4):
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


def test_work_that_never_ends_excuses_no_sibling(site: Site) -> None:
    begin(site)
    site.spawn("hog", ENDLESS)
    wait_until(lambda: site.tenant("hog")["misbehaviour"], PATIENCE_S, "it is named")
    assert share_of_chat(site) > LEAST_BESIDE_ENDLESS
    assert site.tenant("hog")["held_s"] > 1
