# SPDX-License-Identifier: Apache-2.0
"""Inside the container: from an older fairsched to this one and back, while it holds people.

Problem. An upgrade is a restart in the middle of work: somebody is held, totals grow, an override is in force, and the
files of one version are read by the other.

Approach. The older service enforces on a simulated GPU that belongs to neither version. Then each step is an install,
and after each it is asked for what must be kept: the mode, the override, totals that do not fall, rows of history. All
the while a process looks at the tenants' cgroups, and tells how long one was frozen without a break. In the end each
version is killed with its guardian while somebody is held, and without what would thaw then, and the other is installed
over what that leaves behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NEW = Path("/srv/fairsched")
STATE = Path("/var/lib/fairsched")
TENANTS = [Path(f"/sys/fs/cgroup/gpu.slice/gpu-{name}.slice") for name in ("chat", "batch")]
CONFIG = """\
mode: enforce
gpu: {source: nvml}
tenants:
  chat: {cgroup: gpu.slice/gpu-chat.slice, weight: 4}
  batch: {cgroup: gpu.slice/gpu-batch.slice, class: batch, max_freeze_ms: 2000}
history: {enabled: true, interval_s: 1}
"""
DROP_IN = Path("/run/systemd/system/fairsched.service.d/simgpu.conf")
IN_SIMULATION = "[Service]\nEnvironmentFile=/run/simgpu.env\nReadWritePaths=/run/fairsched-sim\n"
WITHOUT_THAW = "ExecStopPost=\nRestart=no\n"
LONGEST_HOLD_S = 2.0
SLACK_S = 2.0
"""What a busy machine may add to it."""


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        print(done.stdout, flush=True)
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}")
    return done.stdout


def ask(*arguments: str) -> Any:
    return json.loads(run("fairsched", *arguments))


def await_(seconds: float, what: str, is_so: Callable[[], Any]) -> None:
    end_s = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end_s:
            raise SystemExit(f"not within {seconds:g} s: {what}")
        time.sleep(0.2)


def frozen() -> list[Path]:
    """Tenants that are, or have a cgroup that is."""
    return [
        tenant
        for tenant in TENANTS
        if any(
            "frozen 1" in file.read_text()
            for file in (tenant / "cgroup.events", *tenant.glob("*/cgroup.events"))
        )
    ]


class Watch:
    """How long a tenant was frozen without a break, at the longest."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._since: dict[Path, float] = {}
        threading.Thread(target=self._look_on, daemon=True).start()

    def _look_on(self) -> None:
        while True:
            now_s, now = time.monotonic(), frozen()
            self._since = {tenant: self._since.get(tenant, now_s) for tenant in now}
            self.longest_s = max([self.longest_s, *(now_s - since_s for since_s in self._since.values())])
            time.sleep(0.02)

    def take(self) -> float:
        longest_s, self.longest_s = self.longest_s, 0.0
        return longest_s


def tenant(name: str) -> dict[str, Any]:
    (found,) = (one for one in ask("status", "--json")["tenants"] if one["name"] == name)
    return dict(found)


def gpu_time_s() -> float:
    return sum(tenant(name)["gpu_time_s"] or 0.0 for name in ("chat", "batch"))


def history() -> tuple[int, int]:
    """(rows, moment of the first)"""
    with sqlite3.connect(f"file:{STATE}/history.sqlite?mode=ro", uri=True) as base:
        tables = [name for (name,) in base.execute("select name from sqlite_master where type = 'table'")]
        table = next(name for name in ("nodes", "node") if name in tables)
        count, first = base.execute(f"select count(*), min(t) from {table}").fetchone()
        return int(count), int(first)


def install(source: Path) -> str:
    run("make", "install-service", cwd=source)
    return release()


def release() -> str:
    return str(Path("/opt/fairsched").resolve())


def check_kept(step: str, change: Callable[[], Any], watch: Watch) -> None:
    """Change the version, and ask for what must be as it was."""
    held_before, time_before_s, (rows, first) = tenant("batch")["holds"], gpu_time_s(), history()
    watch.take()
    begin_s = time.monotonic()
    change()
    took_s = time.monotonic() - begin_s
    await_(60, "the daemon answers", lambda: ask("status", "--json")["mode"] == "enforce")
    time_after_s = gpu_time_s()
    await_(60, "history goes on", lambda: history()[0] > rows)
    await_(300, "somebody is held again", frozen)
    await_(10, "and let go", lambda: not frozen())
    longest_s = watch.take()
    found = {
        "release": release(),
        "took_s": round(took_s, 1),
        "gpu_time_s": [round(time_before_s, 1), round(time_after_s, 1)],
        "holds_before": held_before,
        "history": [rows, *history()],
        "chat_weight": tenant("chat")["weight"],
        "frozen_at_most_s": round(longest_s, 2),
        "set_aside": sorted(str(path) for path in STATE.glob("*.damaged*")),
    }
    print(step, json.dumps(found), flush=True)
    assert time_before_s > 1, "there was something to keep"
    assert time_after_s >= time_before_s - 10, "totals are those of at most ten seconds before"
    assert history()[1] == first, "the first row is still there"
    assert found["chat_weight"] == 6, "the override is in force"
    assert found["set_aside"] == [], "each reads the other's files"
    assert longest_s < LONGEST_HOLD_S + SLACK_S, "nobody stays frozen"


def own_processes() -> list[int]:
    """The daemon and its helpers, the guardian first: it has left the cgroup of the service."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (directory / "cmdline").read_bytes()
            if b"/opt/fairsched" in command:
                found[int(directory.name)] = command
    return sorted(found, key=lambda pid: b"guardian" not in found[pid])


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def check_left_behind(step: str, change: Callable[[], Any]) -> None:
    """Kill it and its guardian while somebody is held, let nobody thaw, and change the version."""
    DROP_IN.write_text(IN_SIMULATION + WITHOUT_THAW)
    run("systemctl", "daemon-reload")
    end_s = time.monotonic() + 300
    while True:
        pids = own_processes()
        while not frozen():
            assert time.monotonic() < end_s, "somebody is held"
            time.sleep(0.002)
        kill(pids)
        time.sleep(LONGEST_HOLD_S + 1)
        left = frozen()
        if left:
            break
        run("systemctl", "reset-failed", "fairsched.service")
        run("systemctl", "start", "fairsched.service")  # it was being let go in that moment
    records = sorted(path.name for path in Path("/run/fairsched/holds").iterdir())
    DROP_IN.write_text(IN_SIMULATION)
    run("systemctl", "daemon-reload")
    run("systemctl", "reset-failed", "fairsched.service")
    change()
    await_(30, f"{left} is let go by the next version", lambda: not set(left) & set(frozen()))
    log = run("journalctl", "--no-pager", "--unit=fairsched.service", "--boot", "--output=cat")
    found = {
        "release": release(),
        "left": [path.name for path in left],
        "records": records,
        "damaged": [line for line in log.splitlines() if "damaged" in line or "corrupt" in line.lower()],
    }
    print(step, json.dumps(found), flush=True)
    assert records, "they were on record"
    assert tenant("chat")["weight"] == 6


def back() -> None:
    run("make", "rollback-service", cwd=NEW)


def main() -> None:
    engine = ["/usr/bin/python3", "-m", "fairsched.simgpu"]
    env = ["--property=Environment=PYTHONPATH=/srv/fairsched", "--property=EnvironmentFile=-/run/simgpu.env"]
    start = ["systemd-run", "--quiet", *env]
    run(*start, "--unit=simgpu", "--service-type=notify", *engine, "engine", "--env-file", "/run/simgpu.env")
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    DROP_IN.write_text(IN_SIMULATION)
    Path("/etc/fairsched/config.yaml").write_text(CONFIG)
    for name, kind in (("chat", "decode"), ("batch", "trainer")):
        slice_ = f"--slice=gpu-{name}.slice"
        run(*start, f"--unit={name}", slice_, *engine, "load", kind, "--seconds", "0")
    run("systemctl", "daemon-reload")
    run("systemctl", "restart", "fairsched.service")
    print("old", run("fairsched", "--version").strip(), release(), flush=True)
    run("fairsched", "tenant", "set", "chat", "--weight", "6")
    await_(300, "somebody is held", frozen)
    await_(60, "there is a history", lambda: (STATE / "history.sqlite").exists() and history()[0] > 3)
    watch = Watch()
    check_kept("upgrade", lambda: install(NEW), watch)
    check_kept("back", back, watch)
    check_kept("again", lambda: install(NEW), watch)
    check_left_behind("left by the newer", back)
    check_left_behind("left by the older", lambda: install(NEW))
    releases = [path.name for path in Path("/opt/fairsched.releases").iterdir() if path.is_dir()]
    assert len(releases) <= 3, releases  # one of them is a link to another


if __name__ == "__main__":
    sys.exit(main())
