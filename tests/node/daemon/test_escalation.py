# SPDX-License-Identifier: Apache-2.0
"""Escalation in the real companion of the real daemon: from a queue delay to a higher guarantee and back."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from tests.node.daemon.site import DECODE, PATIENCE_S, STEADY, Site
from tests.support import wait_until

QUICK = {
    "enabled": True,
    "dry_run": False,
    "ladder": ["quota"],
    "queue_delay_p99_ms": 0.05,
    "token_rate_cv": None,
    "for_s": 1,
    "clear_for_s": 1,
    "cool_down_s": 1,
    "max_actions_per_hour": 60,
    "quota": {"max_raise": 0.02, "cool_down_s": 1},
}


def outcomes(site: Site) -> list[tuple[str, str]]:
    done = site.cli("escalation", "history", "--json", "-n", "1000", "--config", str(site.config_path))
    assert done.returncode == 0, done.stderr
    entries: list[dict[str, Any]] = json.loads(done.stdout)
    return [(entry["kind"], entry["outcome"]) for entry in entries if entry["event"] == "result"]


def test_who_waits_gets_more_and_gives_it_back_even_if_the_companion_dies(site: Site) -> None:
    """First in a dry run, then, after a reload, for real. One tenant of three contexts makes the other wait for three
    turns, where two that are alike would wait for one: that is no fault."""
    tenants: dict[str, dict[str, Any]] = {"chat": {}, "train": {"class": "batch"}}
    site.configure(tenants, escalation={**QUICK, "dry_run": True})
    site.start()
    site.attach()
    site.spawn("chat", DECODE)
    for _ in range(3):
        site.spawn("train", STEADY)
    wait_until(
        lambda: outcomes(site)[:1] == [("apply", "dry_run")], PATIENCE_S, "the dry run is in the history"
    )
    assert site.tenant("chat")["min_ratio"] == 0 and not site.tenant("chat")["is_overridden"]

    site.configure(tenants, escalation=QUICK)
    os.kill(site.pid, signal.SIGHUP)
    wait_until(
        lambda: site.tenant("chat")["min_ratio"] > 0.5, PATIENCE_S, "chat is guaranteed more than its half"
    )
    assert site.tenant("chat")["is_overridden"] and not site.tenant("train")["is_overridden"]
    wait_until(
        lambda: any("in force: quota" in warning for warning in site.status()["warnings"]),
        PATIENCE_S,
        "it is said",
    )
    os.kill(site.helpers()["companion"], signal.SIGKILL)
    for worker in [*site.workers["chat"], *site.workers["train"]]:
        worker.kill()
    wait_until(
        lambda: site.tenant("chat")["min_ratio"] == 0, 2 * PATIENCE_S, "it is taken back when nobody waits"
    )
    assert not site.tenant("chat")["is_overridden"]
    wait_until(lambda: outcomes(site)[-1] == ("rollback", "rolled_back"), PATIENCE_S, "it is in the history")
    assert ("apply", "done") in outcomes(site)
