# SPDX-License-Identifier: Apache-2.0
"""Nobody is held for long while the GPU is idle, whatever the account believes.

A process that is stopped in mid-work (SIGSTOP, a debugger) has work open that is done: the account goes on to have it
run, and the living are held for it.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.node.daemon.site import PATIENCE_S, STEADY, Site, logged, stand_still
from tests.node.hostile.shares import expect_shares
from tests.support import let_run, wait_until

pytestmark = pytest.mark.alone

WEIGHTS = {"b": 2, "d": 1, "x": 9}
FOUND_S = 10.0
"""Two windows of 1.5 s, the first of which may have begun before it; and a machine that does other work as well."""
BUSY_RATIO = 0.8
"""Two steady loads keep a GPU busy to .95. It was .5 to .6 while they were held for who stood still."""
SHARE_ERROR = 0.08
CHARGED_S = 0.1
"""Of three seconds; it was two thirds of them."""


def test_who_stands_still_in_mid_work_has_nobody_held_for_long(site: Site) -> None:
    site.configure({name: {"weight": weight} for name, weight in WEIGHTS.items()})
    site.start()
    site.attach()
    workers = {name: site.spawn(name, STEADY) for name in WEIGHTS}
    wait_until(lambda: site.gpu_time_s("x") > 0.5, PATIENCE_S, "it is accounted")
    stand_still(workers["x"].pid)
    wait_until(lambda: logged(site.log(), "account=contradicted"), FOUND_S, "the account is contradicted")
    let_run(1)
    charged_s = site.gpu_time_s("x")
    busy_ns, begun_s = site.host.gpu_truth().busy_ns, time.monotonic()
    expect_shares(site, {"b": 2 / 3, "d": 1 / 3}, 3, SHARE_ERROR)
    busy_ratio = (site.host.gpu_truth().busy_ns - busy_ns) / 1e9 / (time.monotonic() - begun_s)
    assert busy_ratio > BUSY_RATIO
    assert site.gpu_time_s("x") - charged_s < CHARGED_S, "its work is over for the account"
    thaws = [one for name in ("b", "d") for one in site.decisions(name) if one["action"] == "thaw"]
    assert any(one["reason"]["code"] == "contradicted" for one in thaws), "whoever asks is told why"
    (gpu,) = site.status()["gpus"]
    assert gpu["contradictions_total"] >= 1
    os.kill(workers["x"].pid, signal.SIGCONT)
    steps = workers["x"].step_count()
    wait_until(lambda: workers["x"].step_count() > steps + 5, PATIENCE_S, "it goes on")
    let_run(1)
    shares = site.shares(list(WEIGHTS), 2)
    assert shares["x"] > 0.5, "and is not held for what it did not use"
