# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the daemon and of each of its helpers, under load: nothing stays frozen, and it comes back."""

from __future__ import annotations

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor

from fairsched.cgroup.journal import Journal
from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import DECODE, GREEDY, Site, is_asked, is_frozen, is_running, logged
from tests.support import let_run, wait_until

IS_FULL = os.environ.get("FAIRSCHED_FULL", "0") not in ("", "0")
# Each life of a daemon costs the seconds that its BPF programs take to compile.
KILLS = 50 if IS_FULL else 12
LANES = 3
THAWED_WITHIN_S = 1.0
TENANTS = {"chat": {"weight": 4}, "greedy": {"weight": 1, "class": "batch"}}


def load(site: Site) -> None:
    site.spawn("chat", DECODE)
    site.spawn("greedy", GREEDY)
    site.spawn("greedy", GREEDY)


def anything_frozen(site: Site) -> bool:
    return any(is_asked(site.cgroup(name)) or is_frozen(site.cgroup(name)) for name in TENANTS)


def ill_treat(site: Site, kills: int, seed: int) -> int:
    """Kill daemon after daemon; two of five die while they start. Returns how many died holding somebody."""
    rng = random.Random(seed)
    in_hold = 0
    for number in range(kills):
        site.launch()
        if number % 5 < 2:
            let_run(rng.uniform(0, 4))
        else:
            site.wait_started()
            site.wait_held("greedy")
            let_run(rng.uniform(0, 0.4))
        in_hold += anything_frozen(site)
        site.kill()
        wait_until(lambda: not anything_frozen(site), THAWED_WITHIN_S, f"kill {number}: nothing is frozen")
        journal = Journal(str(site.run_dir / "holds"))
        wait_until(lambda: not journal.names(), THAWED_WITHIN_S, "the record is empty")  # noqa: B023
        journal.close()
        wait_until(lambda: not site.helpers_left(), 20, "guardian and attacher leave, too")
    return in_hold


def test_nothing_stays_frozen_whenever_the_daemon_is_killed(make_site: MakeSite) -> None:
    sites = [make_site() for _ in range(LANES)]
    for site in sites:
        site.configure(TENANTS)
        load(site)
    shares = [KILLS // LANES + (lane < KILLS % LANES) for lane in range(LANES)]
    with ThreadPoolExecutor(LANES) as pool:
        lanes = [pool.submit(ill_treat, site, shares[lane], lane) for lane, site in enumerate(sites)]
        results = [lane.result() for lane in lanes]
    assert sum(results) >= KILLS // 5, "too few died while they held somebody"
    for site in sites:
        assert logged(site.log(), "tick failed|exception=") == []
        site.start()
        site.wait_held("greedy")
        assert site.stop() == 0
        assert not anything_frozen(site)


def test_holds_of_a_killed_daemon_are_thawed_by_the_next_one(site: Site) -> None:
    """Without a guardian, as when both were killed."""
    site.configure(TENANTS, mechanisms={"guardian": "off"})
    load(site)
    site.start()
    site.wait_held("greedy")
    os.kill(site.pid, signal.SIGSTOP)
    held = is_asked(site.cgroup("greedy"))
    site.kill()
    assert is_asked(site.cgroup("greedy")) == held
    site.launch()
    wait_until(lambda: not anything_frozen(site), 5, "reconcile thaws before anything else")
    site.wait_started()
    if held:
        assert logged(site.log(), r"reconcile cgroup=\S+greedy outcome=thawed")


def test_killed_guardian_is_replaced_within_a_second(site: Site) -> None:
    site.configure(TENANTS)
    load(site)
    site.start()
    site.wait_held("greedy")
    first = site.helpers()["guardian"]
    for number in range(3):
        os.kill(first, signal.SIGKILL)
        wait_until(
            lambda: len(logged(site.log(), "guardian=restarted")) > number,  # noqa: B023
            1.0,
            "another guardian watches",
        )
        second = site.helpers()["guardian"]
        assert second != first
        first = second
    assert site.ping() == site.pid
    assert site.status()["warnings"] == []
    site.wait_held("greedy")
    site.kill()
    wait_until(lambda: not anything_frozen(site), THAWED_WITHIN_S, "the new guardian thaws")


def test_killed_attacher_blinds_nobody_for_long(site: Site) -> None:
    """Without probes the account is a guess: let go of everybody, say so, load them again."""
    site.configure(TENANTS)
    load(site)
    site.start()
    site.wait_held("greedy")
    before = site.gpu_time_s("greedy")
    attacher = site.helpers()["attacher"]
    os.kill(attacher, signal.SIGKILL)
    wait_until(lambda: logged(site.log(), "probes=lost"), 1.0, "the daemon notices")
    wait_until(lambda: not anything_frozen(site), 1.0, "nobody is held by what cannot be seen")
    wait_until(lambda: logged(site.log(), "probes=restarted"), 60, "the programs are loaded again")
    assert not is_running(attacher)
    site.wait_held("greedy")
    wait_until(lambda: site.gpu_time_s("greedy") > before + 0.1, 10, "it accounts again")
    shares = site.shares(list(TENANTS), 3)
    assert abs(shares["chat"] - 0.8) < 0.08, shares
    assert site.process is not None
    assert site.process.poll() is None
    assert site.stop() == 0
