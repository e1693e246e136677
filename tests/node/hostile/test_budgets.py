# SPDX-License-Identifier: Apache-2.0
"""One tenant fills a table that all share. Its neighbours notice nothing, and nobody else is named or ended.

What its neighbours get is the engine's truth. Tolerances are those of a busy machine: without budgets each of these
plays moved a share by 15 to 47 points, or ended a process that did nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fairsched.bpf import abi, budgets
from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import PATIENCE_S, STEADY, Site, logged
from tests.node.hostile.cost import cost_of_two, modest, time_ticks
from tests.node.hostile.hollow import Hollow
from tests.node.hostile.shares import LONGER_S, expect_shares
from tests.support import let_run, wait_until

pytestmark = pytest.mark.alone

WEIGHTS = {"chat": 4, "late": 1}
DUE = {"chat": 0.8, "late": 0.2}
SHARE_ERROR = 0.08
SECONDS = 4.0
PLAYED_S = 60.0 + LONGER_S
FLOOD_TIMES = 3.5
"""What the daemon takes when nobody plays. It takes 1.5 to 2.8 times that; with ten times the edges 4 to 5.3."""
PER_PROCESS = 16
"""Contexts that are told apart (FS_MAX_PROC_CTXS)."""
SILENT_S = 2.0
"""Work that was never asked for counts as over after one."""


def prepare(site: Site, tmp_path: Path, play: str, *numbers: float) -> Hollow:
    """A daemon that ends who misbehaves, and a hostile tenant that is about to play."""
    tenants = {name: {"weight": weight} for name, weight in WEIGHTS.items()}
    site.configure({**tenants, "hog": {}}, tenant_defaults={"on_misbehaviour": "terminate"})
    time_ticks(site)
    site.start()
    site.attach()
    return Hollow(site, "hog", tmp_path, play, *numbers)


@contextmanager
def unharmed(site: Site, device: int = 0) -> Iterator[None]:
    """In the body the play begins, after one neighbour and before the other; then both have what they are due."""
    workload = replace(STEADY, device=device)
    workers = [site.spawn("chat", workload)]
    yield
    workers.append(site.spawn("late", workload))
    wait_until(lambda: site.gpu_time_s("late") > 0.05, PATIENCE_S, "the one that comes later is accounted")
    let_run(1)
    expect_shares(site, DUE, SECONDS, SHARE_ERROR)
    assert logged(site.log(), "misbehaviour=|terminate=|tick failed|exception=") == []
    assert all(worker.is_running for worker in workers)
    with site.maps() as maps:
        counts = maps.counts()
    lost = ("ctx_full", "proc_full", "use_full", "handle_full", "clock_range", "edge_dropped")
    assert not any(counts[what] for what in lost), counts


def test_who_opens_thousands_of_contexts_has_them_to_itself(site: Site, tmp_path: Path) -> None:
    part = budgets.divide(1 + len(WEIGHTS) + 1)[abi.Table.CONTEXTS]
    hog = prepare(site, tmp_path, "play_contexts", part.ceiling // PER_PROCESS + 10, PER_PROCESS, 0)
    before = cost_of_two(site, *DUE)
    with unharmed(site):
        hog.play()
        wait_until(lambda: "hog" in "".join(site.status()["warnings"]), PATIENCE_S, "status names it")
        with modest(site, before):
            let_run(SECONDS)  # in two a sweep more or less is too much chance
    assert logged(site.log(), "budget=exceeded tenant=hog tables=contexts")
    assert not logged(site.log(), "budget=exceeded tenant=(chat|late)")
    with site.maps() as maps:
        assert len(maps.contexts()) == part.ceiling + len(DUE)


def test_three_hundred_busy_contexts_of_one_tenant_are_counted(site: Site, tmp_path: Path) -> None:
    """A clock used to count to 255: who came then was in no account, and ended for it."""
    prepare(site, tmp_path, "play_contexts", 19, PER_PROCESS, 1).play()
    let_run(SILENT_S)
    with site.maps() as maps:
        assert maps.busy_contexts() > 300
    with unharmed(site):
        pass


def test_who_calls_cuinit_without_end_is_heard_once(site: Site, tmp_path: Path) -> None:
    hog = prepare(site, tmp_path, "play_init", PLAYED_S)
    before = cost_of_two(site, *DUE)
    with unharmed(site):
        hog.go()
        with modest(site, before):
            let_run(2)


def test_who_makes_more_events_than_it_may_is_charged_for_all_it_may_have_used(
    site: Site, tmp_path: Path
) -> None:
    hog = prepare(site, tmp_path, "play_bursts", PLAYED_S)
    before = cost_of_two(site, *DUE)
    with unharmed(site):
        hog.go()
        wait_until(lambda: "hog" in "".join(site.status()["warnings"]), PATIENCE_S, "status names it")
        with modest(site, before, FLOOD_TIMES):
            let_run(SECONDS)
    assert logged(site.log(), "budget=exceeded tenant=hog tables=edges")
    assert site.tenant("hog")["held_s"] > 1, "it is held for what nobody can see"


def test_gpus_that_do_not_exist_fill_no_table(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site(gpus=2)
    hog = prepare(site, tmp_path, "play_devices", 8, 9000)
    first, second = (gpu["uuid"] for gpu in site.status()["gpus"])
    # attach() has had a process work on the first.
    before = {name: site.tenant(name)["gpu_time_by_gpu_s"].get(first, 0) for name in DUE}
    with unharmed(site, device=1):
        hog.play()
        let_run(1)
    for name in DUE:
        on = site.tenant(name)["gpu_time_by_gpu_s"]
        assert on.get(first, 0) == before[name]
        assert on[second] > 0, "each is charged where it works"
