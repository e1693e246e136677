# SPDX-License-Identifier: Apache-2.0
"""Somebody else pauses a tenant in mid-work: docker pause, systemctl freeze, an operator.

Its demand ends, and its charges with what it had queued; the others share as if it were not there, and what is learnt
of them stays right.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.daemon.site import PATIENCE_S, SHARES_S, STEADY, Site, freeze, is_asked, is_frozen, logged
from tests.node.hostile.shares import expect_shares
from tests.support import let_run, wait_until

pytestmark = [pytest.mark.alone, pytest.mark.rest]

WEIGHTS = {"b": 2, "d": 1, "x": 3}
QUEUE_S = 0.5
"""Longer than what a steady load has queued takes among three."""
WATCHED_S = 3.0
CHARGED_S = 0.05
"""Of WATCHED_S. It was a third."""
SHARE_ERROR = 0.06
ACCOUNT_ERROR = 0.08
"""Of an account over WATCHED_S, on a machine that does other work as well. It was half."""


def charged(site: Site) -> dict[str, float]:
    return {name: site.gpu_time_s(name) for name in WEIGHTS}


def pause(site: Site, directory: Path, tenant: str) -> None:
    freeze(directory)
    wait_until(lambda: is_frozen(site.cgroup(f"pod-{tenant}/{tenant}")), PATIENCE_S, "it is paused")


@pytest.mark.parametrize(
    ("tenant", "where", "is_held"),
    [("x", "pod-x/x", False), ("x", "pod-x", False), ("d", "pod-d/d", True)],
    ids=["itself", "one above", "held by us"],
)
def test_who_is_paused_by_somebody_else_is_not_charged_and_the_others_share(
    site: Site, tenant: str, where: str, is_held: bool
) -> None:
    cgroups = {name: f"pod-{name}/{name}" for name in WEIGHTS}
    site.configure(
        {name: {"cgroup": f"{site.top}/{cgroups[name]}", "weight": w} for name, w in WEIGHTS.items()}
    )
    for name in WEIGHTS:
        site.make_cgroup(cgroups[name])
    site.start()
    for name in WEIGHTS:
        site.spawn(name, STEADY, site.cgroup(cgroups[name]))
    let_run(2)
    directory, others = site.cgroup(where), [name for name in WEIGHTS if name != tenant]
    if is_held:
        wait_until(lambda: is_asked(directory), PATIENCE_S, "we hold it")
    pause(site, directory, tenant)
    let_run(QUEUE_S)
    before, truth = charged(site), site.truth_ns()
    due = {name: WEIGHTS[name] / sum(WEIGHTS[other] for other in others) for name in others}
    expect_shares(site, due, WATCHED_S, SHARE_ERROR)
    after, truth_after = charged(site), site.truth_ns()
    assert truth_after[tenant] == truth[tenant], "it has nothing left to run"
    assert after[tenant] - before[tenant] < CHARGED_S
    for name in others:
        real_s = (truth_after[name] - truth[name]) / 1e9
        error = (after[name] - before[name]) / real_s - 1
        assert abs(error) < ACCOUNT_ERROR, (name, real_s, error)
    status = site.tenant(tenant)
    assert status["state"] == "foreign"
    assert not any(gpu["has_demand"] for gpu in status["gpus"])
    assert is_asked(directory), "nobody but who paused it thaws it"
    freeze(directory, "0")
    # From here on: it may be measured at once, and owe what it had then.
    shares = site.shares(list(WEIGHTS), SHARES_S)
    assert abs(shares[tenant] - WEIGHTS[tenant] / 6) < SHARE_ERROR, shares
    assert logged(site.log(), "tick failed|housekeeping failed|turns=") == [], "nothing was learnt from it"
