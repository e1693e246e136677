# SPDX-License-Identifier: Apache-2.0
"""What a reload takes away or adds; bad files and changed weights are in test_config.py."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.node.daemon.site import DECODE, GREEDY, PATIENCE_S, Site, is_asked, logged, stand_still
from tests.support import let_run, wait_until

# Greedy is due so little that it is held nearly always, and no deadline lets it go.
TENANTS = {"chat": {"weight": 100}, "greedy": {"weight": 1, "class": "batch", "max_freeze_ms": 60_000}}


def load(site: Site) -> None:
    site.spawn("chat", DECODE)
    site.spawn("greedy", GREEDY)


def tenants_of(site: Site) -> set[str]:
    return {tenant["name"] for tenant in site.status()["tenants"]}


@pytest.mark.parametrize("how", ["signal", "socket"])
def test_a_parent_that_the_new_file_does_not_name_ends_nobody(site: Site, how: str) -> None:
    tenants = {"chat": {}, "team": {"children": {"p*": {"children": {"d": {}}}}}}
    site.configure(tenants, mechanisms={"guardian": "off"})
    for name in ("team/p1/d", "team/other"):
        site.make_cgroup(name)
    site.start()
    wait_until(
        lambda: {"team", "team/p1", "team/p1/d", "team/other"} <= tenants_of(site), PATIENCE_S, "all are seen"
    )
    site.configure({"chat": {}, "late": {}}, mechanisms={"guardian": "off"})
    if how == "signal":
        assert site.process is not None
        site.process.send_signal(signal.SIGHUP)
    else:
        assert site.ask("reload")
    wait_until(lambda: tenants_of(site) == {"chat", "late"}, PATIENCE_S, "the new file is in force")
    assert site.ping() == site.pid
    assert site.status()["own"]["errors"]["tick"] == 0
    assert logged(site.log(), "Traceback|tick failed|exception=") == []


def test_a_guardian_that_a_reload_started_is_the_last_to_go(site: Site) -> None:
    """Told to go before the thaw it would wait in vain, and be killed, with people frozen all the while."""
    site.configure(TENANTS, mode="observe")
    load(site)
    site.start()
    assert "guardian" not in site.helpers(), "nothing to guard"
    site.configure(TENANTS)
    site.ask("reload")
    assert "guardian" in site.helpers(), "before the first hold"
    for _ in range(10):
        site.wait_held("greedy")
        stand_still(site.pid)
        if is_asked(site.cgroup("greedy")):
            break
        os.kill(site.pid, signal.SIGCONT)
    assert site.process is not None
    site.process.terminate()
    os.kill(site.pid, signal.SIGCONT)
    assert site.process.wait(PATIENCE_S) == 0
    assert logged(site.log(), "stopping held=1")
    assert logged(site.log(), "guardian leaves: told to, and nothing is held")
    assert not is_asked(site.cgroup("greedy"))


def test_fifty_changes_leave_no_descriptor_behind_and_count_no_late_tick(site: Site) -> None:
    # A tick that is due at once is not late; one that is late by this much is on no machine.
    site.configure(TENANTS, mechanisms={"guardian": "off"}, tick_ms=10_000, inner_tick_ms=10_000)
    site.start()
    site.attach()

    def descriptors() -> int:
        site.ping()
        return len(os.listdir(f"/proc/{site.pid}/fd"))

    site.ask("reload")
    before = descriptors()
    for number in range(50):
        site.ask("tenant_set", tenant="chat", values={"weight": 2 + number})
    site.ask("reload")
    wait_until(lambda: descriptors() <= before, PATIENCE_S, f"no more than the {before} of before")
    assert site.status()["late_ticks_total"] == 0


@pytest.fixture
def holds(site: Site) -> Path:
    return site.run_dir / "holds"


def spoil(holds: Path) -> None:
    """No guardian comes up on it; who has the directory open goes on with it."""
    holds.rename(holds.with_suffix(".aside"))
    holds.write_text("")


def repair(holds: Path) -> None:
    holds.unlink()
    holds.with_suffix(".aside").rename(holds)


def warned(site: Site, text: str) -> bool:
    return any(text in warning for warning in site.status()["warnings"])


@pytest.mark.parametrize("how", ["signal", "socket"])
def test_nobody_is_held_while_a_required_guardian_does_not_start(site: Site, holds: Path, how: str) -> None:
    mechanisms = {"guardian": "required"}
    site.configure(TENANTS, mode="observe", mechanisms=mechanisms)
    load(site)
    site.start()
    spoil(holds)
    site.configure(TENANTS, mechanisms=mechanisms)
    if how == "signal":
        os.kill(site.pid, signal.SIGHUP)
    else:
        site.ask("reload")
    wait_until(lambda: warned(site, "nobody is held, because"), PATIENCE_S, "it is said")
    assert site.ping() == site.pid
    assert site.status()["mode"] == "dry_run"
    wait_until(
        lambda: logged(site.log(), "decision=hold tenant=greedy .*dry_run=true"), PATIENCE_S, "it would hold"
    )
    assert not is_asked(site.cgroup("greedy"))
    repair(holds)
    site.wait_held("greedy")
    assert not warned(site, "guardian")
    assert site.status()["mode"] == "enforce"


@pytest.mark.parametrize("mechanism", ["auto", "required"])
def test_a_guardian_that_cannot_be_replaced_is_said_and_tried_again(
    site: Site, holds: Path, mechanism: str
) -> None:
    site.configure(TENANTS, mechanisms={"guardian": mechanism})
    load(site)
    site.start()
    site.wait_held("greedy")
    spoil(holds)
    os.kill(site.helpers()["guardian"], signal.SIGKILL)
    if mechanism == "required":
        wait_until(lambda: warned(site, "nobody is held, because"), PATIENCE_S, "it is said")
        let_run(1)
        assert not is_asked(site.cgroup("greedy"))
    else:
        wait_until(lambda: warned(site, "would stay frozen if the daemon died"), PATIENCE_S, "it is said")
        site.wait_held("greedy")
    assert len(logged(site.log(), "guardian=absent")) < 5, "in a while, not at each look"
    repair(holds)
    wait_until(lambda: logged(site.log(), "guardian=restarted"), PATIENCE_S, "it is there again")
    wait_until(lambda: not warned(site, "guardian"), PATIENCE_S, "and nothing is said of it")
    site.wait_held("greedy")
    site.kill()
    wait_until(lambda: not is_asked(site.cgroup("greedy")), PATIENCE_S, "it thaws")
