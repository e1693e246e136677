# SPDX-License-Identifier: Apache-2.0
"""Start, stop, release, and what is not ours."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from fairsched.cgroup.journal import Journal
from tests.node.daemon.site import (
    DECODE,
    GREEDY,
    PATIENCE_S,
    Site,
    freeze,
    is_asked,
    is_frozen,
    is_running,
    logged,
    stand_still,
)
from tests.support import let_run, wait_until

TENANTS = {"chat": {"weight": 4}, "greedy": {"weight": 1, "class": "batch"}, "paused": {"weight": 1}}


def load(site: Site) -> None:
    site.spawn("chat", DECODE)
    site.spawn("greedy", GREEDY)


def test_pause_of_somebody_else_stays_through_start_run_stop_and_release(site: Site) -> None:
    site.configure(TENANTS)
    load(site)
    site.spawn("paused", GREEDY)
    paused = site.cgroup("paused")
    freeze(paused)
    wait_until(lambda: is_frozen(paused), PATIENCE_S, "somebody has paused it")

    site.start()
    site.wait_held("greedy")
    wait_until(
        lambda: site.tenant("paused")["state"] == "foreign", PATIENCE_S, "status says whose pause it is"
    )
    let_run(1)
    assert is_asked(paused)
    assert site.cli("release", "--run-dir", str(site.run_dir)).returncode == 0
    assert is_asked(paused)
    assert site.stop() == 0
    assert is_asked(paused)
    assert site.cli("release", "--run-dir", str(site.run_dir)).returncode == 0
    assert is_asked(paused)
    assert is_frozen(paused)
    assert site.decisions_logged("paused") == []


def test_who_started_it_with_sigint_ignored_ends_it_with_sigterm(site: Site) -> None:
    """As a script's ``fairsched run &``: Ctrl-C is for what is in the foreground."""
    site.configure(TENANTS)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        site.start()
    finally:
        signal.signal(signal.SIGINT, before)
    os.kill(site.pid, signal.SIGINT)
    let_run(0.5)
    assert site.tenant("chat")
    assert site.stop() == 0


def test_pause_during_our_hold_is_theirs_from_then_on(site: Site) -> None:
    site.configure(TENANTS)
    load(site)
    site.start()
    greedy = site.cgroup("greedy")

    def is_handed_over() -> bool:
        site.wait_held("greedy")
        freeze(greedy)
        let_run(0.1)
        return site.tenant("greedy")["state"] == "foreign"

    wait_until(is_handed_over, PATIENCE_S, "it is somebody else's")
    let_run(2.5)  # longer than any deadline of a hold
    assert is_asked(greedy)
    assert site.stop() == 0
    assert is_asked(greedy)


def test_sigterm_thaws_and_leaves_nothing_behind(site: Site) -> None:
    site.configure(TENANTS)
    load(site)
    site.start()
    assert set(site.helpers()) == {"guardian", "attacher"}
    site.wait_held("greedy")
    assert site.stop() == 0
    assert not any(is_asked(site.cgroup(name)) for name in TENANTS)
    wait_until(lambda: not site.helpers_left(), PATIENCE_S, "guardian and attacher have left")
    assert not site.socket_path.exists()
    journal = Journal(str(site.run_dir / "holds"))
    assert journal.names() == []
    journal.close()


@pytest.mark.rest
def test_totals_of_who_has_been_gone_for_a_day_are_dropped(site: Site) -> None:
    site.configure(TENANTS)
    site.start()
    assert site.stop() == 0
    path = site.state_dir / "state.json"
    state = json.loads(path.read_text())
    state["total_ns"] = [[name, "GPU-x", 7] for name in ("chat", "gone", "gone/long")]
    state["departed_s"] = {"chat": 90_000, "gone/long": 90_000}
    path.write_text(json.dumps(state))
    site.start()
    assert names_in(path) == {"chat", "gone", "gone/long"}
    wait_until(lambda: names_in(path) == {"chat", "gone"}, PATIENCE_S, "the next save has forgotten it")
    assert site.stop() == 0
    state = json.loads(path.read_text())
    assert state["departed_s"].keys() == {"gone"}
    assert ["chat", "GPU-x", 7] in state["total_ns"]


def names_in(path: Path) -> set[str]:
    return {name for name, _, _ in json.loads(path.read_text())["total_ns"]}


def test_sigterm_thaws_before_it_waits_for_anybody(site: Site) -> None:
    """The attacher lets go of its probes in its own time, or is killed; a held tenant does not wait for that."""
    site.configure(TENANTS, mechanisms={"guardian": "off"})  # which would thaw at the deadline
    load(site)
    site.start()
    attacher = site.helpers()["attacher"]
    site.wait_held("greedy")
    stand_still(attacher)
    assert site.process is not None
    site.process.terminate()
    wait_until(lambda: "stopping held=" in site.log(), PATIENCE_S, "it is told to end")
    wait_until(lambda: not any(is_asked(site.cgroup(name)) for name in TENANTS), PATIENCE_S, "all are thawed")
    assert is_running(attacher), "nobody waited for it"
    os.kill(attacher, signal.SIGCONT)
    assert site.process.wait(PATIENCE_S) == 0


def test_sigterm_during_the_start_ends_it(site: Site) -> None:
    site.configure(TENANTS)
    site.launch()
    wait_until(lambda: "loader" in site.helpers(), PATIENCE_S, "the BPF programs are compiled")
    stand_still(site.helpers()["loader"])  # so that this start would never end
    assert site.stop() == 0  # within PATIENCE_S, a third of what the daemon gives a loader
    wait_until(lambda: not site.helpers_left(), PATIENCE_S, "guardian and loader have left")


def test_dry_run_decides_and_logs_and_freezes_nothing(site: Site) -> None:
    site.configure(TENANTS)
    load(site)
    site.start("--dry-run")
    wait_until(
        lambda: logged(site.log(), "decision=hold tenant=greedy reason=over_entitlement .*dry_run=true"),
        PATIENCE_S,
        "it would hold the greedy one",
    )
    assert "guardian" not in site.helpers(), "nothing to guard"
    counted = 0
    end = time.monotonic() + 2
    while time.monotonic() < end:
        counted += 1
        assert not is_asked(site.cgroup("greedy"))
        assert not is_frozen(site.cgroup("greedy"))
    assert counted > 100
    assert site.status()["mode"] == "dry_run"
    records = site.decisions("greedy")
    assert records
    assert all(record["is_dry_run"] for record in records)
    share = site.shares(["chat", "greedy"], 2)["greedy"]
    assert share > 0.35, "it got what the GPU gives, not its 0.2"


def test_exec_runs_in_the_cgroup_of_the_tenant(site: Site) -> None:
    site.configure(TENANTS)
    done = site.cli("exec", "--config", str(site.config_path), "chat", "--", "cat", "/proc/self/cgroup")
    assert f"0::/{site.top}/chat\n" in done.stdout, done.stderr
    failed = site.cli("exec", "--config", str(site.config_path), "chat", "--", "sh", "-c", "exit 7")
    assert failed.returncode == 7
    unknown = site.cli("exec", "--config", str(site.config_path), "nobody", "--", "true")
    assert unknown.returncode == 2
    assert "no tenant 'nobody'" in unknown.stderr


def test_release_thaws_what_a_dead_daemon_left(site: Site) -> None:
    site.configure(TENANTS, mechanisms={"guardian": "off"})
    load(site)
    site.start()
    greedy = site.cgroup("greedy")
    site.kill_while_holding("greedy")
    assert is_asked(greedy), "no guardian, no thaw"
    done = site.cli("release", "--run-dir", str(site.run_dir))
    assert done.returncode == 0
    assert "thawed" in done.stdout
    assert not is_asked(greedy)
    again = site.cli("release", "--run-dir", str(site.run_dir))
    assert (again.returncode, again.stdout) == (0, "nothing is held by fairsched\n")


def test_ps_names_every_process_that_uses_a_gpu_and_whose_it_is(site: Site) -> None:
    site.configure({"chat": {"weight": 4}})
    worker = site.spawn("chat", DECODE)
    stranger = site.spawn("nobody", DECODE, site.make_cgroup("nobody"))
    site.start()

    def found() -> dict[int, dict[str, object]]:
        answer = site.cli("ps", "--json", "--socket", str(site.socket_path))
        return {one["pid"]: one for one in json.loads(answer.stdout)}

    wait_until(
        lambda: all((found().get(pid) or {}).get("gpu_time_s") for pid in (worker.pid, stranger.pid)),
        PATIENCE_S,
        "both are listed with their GPU time",
    )
    rows = found()
    assert rows[worker.pid]["tenant"] == "chat"
    assert rows[stranger.pid]["tenant"] is None
    assert rows[worker.pid]["gpu"] == site.host.uuids()[0]
    assert rows[worker.pid]["note"] is None
    assert str(rows[worker.pid]["command"]).split()
    worker.kill()
    wait_until(lambda: worker.pid not in found(), PATIENCE_S, "what is gone is not listed")


def test_contexts_and_memory_are_told_by_tenant_and_process(site: Site) -> None:
    nodes = str(site.host.state_dir / "dev")
    site.configure({"chat": {}}, gpu={"device_dir": nodes}, mechanisms={"driver": "required"})
    site.start()
    worker = site.spawn("chat", DECODE)
    wait_until(lambda: site.tenant("chat")["contexts_by_gpu"], PATIENCE_S, "its context is seen")
    (truth,) = [context for context in site.host.truth() if context.pid == worker.pid]
    tenant, gpu = site.tenant("chat"), site.host.uuids()[0]
    assert tenant["contexts_by_gpu"] == {gpu: 1}
    assert tenant["vram_by_gpu_bytes"] == {gpu: truth.vram_bytes}
    assert tenant["driver_calls"]["ioctls"] > 0
    answer = site.cli("ps", "--json", "--socket", str(site.socket_path))
    (row,) = json.loads(answer.stdout)
    assert (row["pid"], row["contexts"], row["vram_bytes"]) == (worker.pid, 1, truth.vram_bytes)
    worker.kill()
    wait_until(lambda: not site.tenant("chat")["contexts_by_gpu"], PATIENCE_S, "killed: it has none any more")
    assert site.status()["driver_hook"] in ("kprobe", "lsm", "tracepoint")


def test_status_says_why_containers_do_not_see_their_own_processes(site: Site) -> None:
    site.configure({"chat": {}}, mechanisms={"pid_view": "auto"})
    site.start()
    wait_until(
        lambda: (site.status()["pid_view"] or {}).get("reason") not in (None, "starting"),
        PATIENCE_S,
        "it has been looked at",
    )
    view = site.status()["pid_view"]
    assert view["is_on"] is False, "this machine has no driver whose lists could be rewritten"
    assert site.stop() == 0
