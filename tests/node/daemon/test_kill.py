# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the daemon and of each of its helpers, under load: nothing stays frozen, and it comes back."""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairsched.cgroup.journal import Journal
from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import (
    GREEDY,
    PATIENCE_S,
    STEADY,
    Site,
    is_asked,
    is_frozen,
    is_running,
    logged,
    stand_still,
)
from tests.node.promptness import Took, expect_within, time_until
from tests.support import let_run, wait_until

IS_FULL = os.environ.get("FAIRSCHED_FULL", "0") not in ("", "0")
# Each life of a daemon costs the seconds that its BPF programs take to compile.
KILLS = 50 if IS_FULL else 12
LANES = 3
AT_ONCE_S = 1.0
"""The promise: thawed after a kill, the guardian replaced."""
AT_LAST_S = 3.0
"""On the clock, however busy the machine is."""
# No deadline of a hold thaws before a test gives up: what thaws is what the test is about.
TENANTS = {"chat": {"weight": 4}, "greedy": {"weight": 1, "class": "batch", "max_freeze_ms": 60_000}}


def load(site: Site) -> None:
    site.spawn("chat", STEADY)
    site.spawn("greedy", GREEDY)
    site.spawn("greedy", GREEDY)


def anything_frozen(site: Site) -> bool:
    return any(is_asked(site.cgroup(name)) or is_frozen(site.cgroup(name)) for name in TENANTS)


def ill_treat(site: Site, kills: int, seed: int) -> list[Took]:
    """Kill daemon after daemon; two of five die while they start.

    Returns, for those that died holding somebody, how long it took until nobody was frozen any more.
    """
    rng = random.Random(seed)
    thawed = []
    for number in range(kills):
        site.launch()
        if number % 5 < 2:
            let_run(rng.uniform(0, 2))
        else:
            site.wait_started()
            site.wait_held("greedy")
            let_run(rng.uniform(0, 0.4))
        in_hold = anything_frozen(site)
        site.kill()
        took = time_until(lambda: not anything_frozen(site), PATIENCE_S, f"kill {number}: nothing is frozen")
        if in_hold:
            thawed.append(took)
        journal = Journal(str(site.run_dir / "holds"))
        wait_until(lambda: not journal.names(), PATIENCE_S, "the record is empty")  # noqa: B023
        journal.close()
        wait_until(lambda: not site.helpers_left(), PATIENCE_S, "guardian and attacher leave, too")
    return thawed


@pytest.mark.timeout(900)
def test_nothing_stays_frozen_whenever_the_daemon_is_killed(make_site: MakeSite) -> None:
    sites = [make_site() for _ in range(LANES)]
    for site in sites:
        site.configure(TENANTS)
        load(site)
    shares = [KILLS // LANES + (lane < KILLS % LANES) for lane in range(LANES)]
    with ThreadPoolExecutor(LANES) as pool:
        lanes = [pool.submit(ill_treat, site, shares[lane], lane) for lane, site in enumerate(sites)]
        results = [lane.result() for lane in lanes]
    thawed = [took for lane in results for took in lane]
    assert len(thawed) >= KILLS // 5, "too few died while they held somebody"
    expect_within(thawed, AT_ONCE_S, AT_LAST_S)
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
    greedy = site.cgroup("greedy")
    site.kill_while_holding("greedy")
    assert is_asked(greedy), "no guardian, no thaw"
    site.launch()
    wait_until(lambda: not anything_frozen(site), PATIENCE_S, "reconcile thaws before anything else")
    site.wait_started()
    assert logged(site.log(), r"reconcile cgroup=\S+greedy outcome=thawed")


def test_killed_guardian_is_replaced_within_a_second(site: Site) -> None:
    site.configure(TENANTS)
    load(site)
    site.start()
    site.wait_held("greedy")
    first = site.helpers()["guardian"]
    replaced = []
    for number in range(3):
        os.kill(first, signal.SIGKILL)
        replaced.append(
            time_until(
                lambda: len(logged(site.log(), "guardian=restarted")) > number,  # noqa: B023
                PATIENCE_S,
                "another guardian watches",
            )
        )
        second = site.helpers()["guardian"]
        assert second != first
        first = second
    expect_within(replaced, AT_ONCE_S, AT_LAST_S)
    assert site.ask("ping")["pid"] == site.pid
    assert not any("guardian" in warning or "failed" in warning for warning in site.status()["warnings"])
    site.wait_held("greedy")
    site.kill()
    wait_until(lambda: not anything_frozen(site), PATIENCE_S, "the new guardian thaws")


def all_gpu_time_s(site: Site) -> float:
    return sum(site.gpu_time_s(name) for name in TENANTS)


def lose_probes(site: Site) -> int:
    """Kill the attacher; returns the pid of the loader that is to replace it, which stands still."""
    os.kill(site.helpers()["attacher"], signal.SIGKILL)
    wait_until(lambda: "loader" in site.helpers(), PATIENCE_S, "the programs are compiled again")
    loader = site.helpers()["loader"]
    stand_still(loader)
    return loader


def test_daemon_serves_while_its_probes_are_put_back(site: Site) -> None:
    """The compiler takes seconds, and here for ever; then it dies, too, and another one is tried."""
    site.configure(TENANTS, mechanisms={"ebpf": "auto"})
    load(site)
    site.start()
    site.wait_held("greedy")
    loader = lose_probes(site)
    status = site.status()
    assert status["source"] == "nvml"
    assert "being put back" in status["source_reason"]
    wait_until(lambda: not anything_frozen(site), PATIENCE_S, "nobody is held by what cannot be seen")
    then_ns, known_s = time.monotonic_ns(), all_gpu_time_s(site)
    wait_until(lambda: all_gpu_time_s(site) > known_s + 0.5, PATIENCE_S, "samples are the account meanwhile")
    site.ask("tenant_set", tenant="chat", values={"weight": 5})
    assert site.tenant("chat")["weight"] == 5
    os.kill(loader, signal.SIGKILL)
    wait_until(lambda: logged(site.log(), "probes=refused tries_left=2"), PATIENCE_S, "it is said")
    wait_until(lambda: logged(site.log(), "probes=restarted"), 2 * PATIENCE_S, "the next try succeeds")
    site.wait_held("greedy")
    assert site.status()["source"] == "ebpf"
    # Neither account charges what the other one did.
    charged_s = all_gpu_time_s(site) - known_s
    assert (
        0.3 * (time.monotonic_ns() - then_ns) / 1e9 < charged_s < 1.05 * (time.monotonic_ns() - then_ns) / 1e9
    )

    loader = lose_probes(site)
    assert site.stop() == 0
    assert not anything_frozen(site)
    os.kill(loader, signal.SIGCONT)
    wait_until(lambda: not site.helpers_left(), PATIENCE_S, "the loader finds nobody and leaves")
    assert logged(site.log(), "Traceback|tick failed|exception=") == []


def test_killed_attacher_blinds_nobody_for_long(site: Site) -> None:
    """Without probes the account is a guess: let go of everybody, say so, load them again."""
    site.configure(TENANTS)
    load(site)
    site.start()
    site.wait_held("greedy")
    before = site.gpu_time_s("greedy")
    attacher = site.helpers()["attacher"]
    os.kill(attacher, signal.SIGKILL)
    wait_until(lambda: logged(site.log(), "probes=lost"), PATIENCE_S, "the daemon notices")
    wait_until(lambda: not anything_frozen(site), PATIENCE_S, "nobody is held by what cannot be seen")
    wait_until(
        lambda: logged(site.log(), "probes=restarted"), 2 * PATIENCE_S, "the programs are loaded again"
    )
    assert not is_running(attacher)
    site.wait_held("greedy")
    wait_until(lambda: site.gpu_time_s("greedy") > before + 0.1, PATIENCE_S, "it accounts again")
    shares = site.shares(list(TENANTS))
    assert abs(shares["chat"] - 0.8) < 0.08, shares
    assert site.process is not None
    assert site.process.poll() is None
    assert site.stop() == 0
