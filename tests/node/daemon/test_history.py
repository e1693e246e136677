# SPDX-License-Identifier: Apache-2.0
"""What is kept, followed and drawn of a daemon that really holds people, and is restarted under way."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from fairsched.companion.history.read import Past, read_past
from fairsched.simgpu import Workload
from tests.node.daemon.site import COMMAND, GREEDY, PATIENCE_S, Site, logged
from tests.support import end_child, wait_until

LIGHT = Workload("decode", kernels=20, kernel_us=500, jitter_ratio=0.1, gap_us=500)
TENANTS = {"chat": {"weight": 4}, "greedy": {"weight": 1, "class": "batch"}}


def past_of(path: Path) -> Past:
    return read_past(path, time.time() - 600, time.time() + 5)


def rows_in(path: Path) -> int:
    try:
        with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as db:
            found = int(db.execute("SELECT count(*) FROM node").fetchone()[0])
        db.close()
    except sqlite3.Error:
        return 0
    return found


def is_row_of(lines: list[dict[str, Any]], event: str, tenant: str | None = None) -> bool:
    return any(one["event"] == event and tenant in (None, one.get("tenant")) for one in lines)


@pytest.mark.rest
def test_the_past_is_kept_followed_and_drawn_across_a_restart(site: Site, tmp_path: Path) -> None:
    site.configure(TENANTS, history={"enabled": True, "interval_s": 1})
    site.spawn("chat", LIGHT)
    site.spawn("greedy", GREEDY)
    site.start()
    history, events = site.state_dir / "history.sqlite", tmp_path / "events"
    follow = [*COMMAND, "events", "-f", "--socket", str(site.socket_path)]
    with open(events, "wb") as out:
        follower = subprocess.Popen(follow, env=site.env(), stdout=out, stderr=subprocess.DEVNULL)

    def followed() -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in events.read_text().splitlines(keepends=True) if line.endswith("\n")
        ]

    try:
        wait_until(lambda: rows_in(history) >= 3, PATIENCE_S, "rows are written")
        wait_until(lambda: is_row_of(followed(), "decision", "greedy"), PATIENCE_S, "holds are followed")
        assert site.stop() == 0
        count = len(followed())
        site.start()
        wait_until(lambda: is_row_of(followed()[count:], "gap"), PATIENCE_S, "the follower says it was away")
        wait_until(
            lambda: is_row_of(followed()[count:], "decision"), PATIENCE_S, "and follows the next daemon"
        )
        before = rows_in(history)
        os.kill(site.helpers()["companion"], signal.SIGKILL)
        wait_until(
            lambda: rows_in(history) >= before + 3, PATIENCE_S, "another companion goes on in the same file"
        )
    finally:
        end_child(follower)

    past = past_of(history)
    totals = {total.name: total for total in past.totals}
    assert totals["chat"].weight == 4
    assert (totals["chat"].gpu_time_s or 0) > 0
    assert totals["greedy"].holds > 0
    assert past.holds
    first = next(one for one in followed() if one["event"] == "decision")
    assert first["gpu"].startswith("GPU-")
    assert logged(site.log(), "decision=hold tenant=greedy reason=.* lag_ms="), "and the log has some of them"
    done = site.cli("report", "-c", str(site.config_path), "--since", "10m", "-o", str(tmp_path / "r.html"))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "r.html").read_text()
    assert "greedy" in page
    assert page.count("<svg") >= 4
    once = site.cli("top", "--once", "--socket", str(site.socket_path))
    assert once.returncode == 0, once.stderr
    assert "greedy" in once.stdout
