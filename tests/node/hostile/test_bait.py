# SPDX-License-Identifier: Apache-2.0
"""Who did short work and goes on with long is charged what it has: what is known of it is of another kind.

What a tenant queued when it was held goes on, and how long is learnt from what it did before. Taken to be over in half
a millisecond, kernels of a third of a second were charged to its neighbours, who were held for them.
"""

from __future__ import annotations

import pytest

from fairsched.simgpu import Workload
from tests.node.daemon.site import DECODE, PATIENCE_S, Site, logged
from tests.node.hostile.shares import LONGER_S
from tests.support import let_run, wait_until

pytestmark = [pytest.mark.alone, pytest.mark.rest]

LONG = Workload("longkernel", kernels=1, kernel_us=300_000)
FLOOD = Workload("nosync", kernels=50, kernel_us=50)
TRAINER = Workload("longkernel", kernels=1, kernel_us=200_000, jitter_ratio=0.3)
BAITED_S, SETTLED_S, WATCHED_S = 2.0, 10.0, 10.0
MOST_WRONG = 0.1
"""Of the GPU. It was .36: chat was charged .417, and had .164."""


def watch(
    site: Site,
    names: tuple[str, ...],
    settled_s: float = SETTLED_S + LONGER_S / 2,
    watched_s: float = WATCHED_S + LONGER_S / 2,
) -> dict[str, tuple[float, float]]:
    """Parts of the GPU that they had, and were charged."""
    let_run(settled_s)
    before, charged, busy_ns = site.truth_ns(), charges(site, names), site.host.gpu_truth().busy_ns
    let_run(watched_s)
    after, charged_then, busy_ns = (
        site.truth_ns(),
        charges(site, names),
        site.host.gpu_truth().busy_ns - busy_ns,
    )
    found = {
        name: ((after[name] - before[name]) / busy_ns, (charged_then[name] - charged[name]) * 1e9 / busy_ns)
        for name in names
    }
    print(
        {name: [round(part, 3) for part in parts] for name, parts in found.items()}, site.status()["warnings"]
    )
    assert logged(site.log(), "misbehaviour=|tick failed|Traceback") == []
    return found


def charges(site: Site, names: tuple[str, ...]) -> dict[str, float]:
    return {name: site.gpu_time_s(name) for name in names}


@pytest.mark.parametrize("is_baited", [True, False])
def test_who_goes_on_with_longer_work_is_charged_for_it(site: Site, is_baited: bool) -> None:
    site.configure({"chat": {}, "train": {"class": "batch"}, "hog": {}})
    site.start()
    site.attach()
    site.spawn("chat", DECODE)
    site.spawn("train", TRAINER)
    if is_baited:
        bait = site.spawn("hog", DECODE)
        wait_until(lambda: site.gpu_time_s("hog") > 0.1, PATIENCE_S, "it is known")
        let_run(BAITED_S)
        bait.kill()
    for _ in range(4):
        site.spawn("hog", LONG)
    found = watch(site, ("chat", "train", "hog"))
    for name in ("chat", "train"):
        had, charged = found[name]
        assert abs(charged - had) < MOST_WRONG, name


def test_four_that_launch_without_end_and_never_ask_are_held(site: Site) -> None:
    site.configure({"chat": {"weight": 4}, "late": {}, "hog": {"weight": 3}})
    site.start()
    site.attach()
    site.spawn("chat", DECODE)
    site.spawn("late", DECODE)
    for _ in range(4):
        site.spawn("hog", FLOOD)
    found = watch(site, ("chat", "late", "hog"))
    assert found["chat"][0] > 0.4
