# SPDX-License-Identifier: Apache-2.0
"""The commands on a simulated GPU: ps without a daemon and with one, reclaim, reset, and the audit log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.simgpu import Workload
from fairsched.simgpu.mps import MpsServer
from tests.node.daemon.site import COMMAND, GREEDY, PATIENCE_S, Site, freeze, is_asked, is_frozen
from tests.support import end_child, wait_until

GIB = 1 << 30
LOAD = Workload("decode", gap_us=5000, alloc_bytes=2 * GIB)


def run(site: Site, *arguments: str, status: int = 0, path: Path | None = None) -> str:
    env = {**site.env(), "FAIRSCHED_CONFIG": str(site.config_path)}
    if path is not None:
        env["PATH"] = f"{path}:{os.environ['PATH']}"
    done = site.cli(*arguments, env=env)
    assert done.returncode == status, (done.stdout, done.stderr)
    if "--json" not in arguments:
        assert all(len(line) <= 80 for line in done.stdout.splitlines()), done.stdout
    assert "Traceback" not in done.stderr
    return done.stdout


def listed(site: Site, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(site, "ps", "--json", *arguments))
    return found


def pids(site: Site, *arguments: str) -> set[int]:
    return {one["pid"] for one in listed(site, *arguments)}


def opener(device: Path) -> subprocess.Popen[bytes]:
    """A process that has inherited the descriptor, and does nothing with it."""
    with open(device) as file:
        return subprocess.Popen(["sleep", "300"], stdin=file)


def test_ps_lists_and_filters_without_a_daemon(site: Site) -> None:
    chat, batch = site.spawn("chat", LOAD), site.spawn("batch", Workload("decode", alloc_bytes=GIB, device=1))
    assert pids(site) == {chat.pid, batch.pid}
    for words, found in (
        (["--gpu", "1"], {batch.pid}),
        (["--tenant", "chat"], {chat.pid}),
        (["--vram-over", "1536M"], {chat.pid}),
        (["--user", "root"], {chat.pid, batch.pid}),
        (["--name", "--device 1"], {batch.pid}),
        (["--older-than", "1h"], set()),
        (["--idle-for", "1s"], set()),
        (["--filter", f"pid={chat.pid} vram>1G !zombie"], {chat.pid}),
        (["--orphans"], set()),
    ):
        assert pids(site, *words) == found, words
    row = listed(site, "--tenant", "chat")[0]
    assert (row["source"], row["vram_bytes"], row["user"]) == ("nvml", 2 * GIB, "root")
    assert f"{chat.pid}" in run(site, "ps", "--tree")


def test_ps_watches_until_it_is_interrupted(site: Site) -> None:
    worker = site.spawn("chat", LOAD)
    env = {**site.env(), "FAIRSCHED_CONFIG": str(site.config_path)}
    for words in (["--json"], []):
        command = [*COMMAND, "ps", "--watch", "0.1s", *words]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            seen: list[str] = []
            while sum(str(worker.pid) in line for line in seen) < 3:
                seen.append(process.stdout.readline())
            assert end_child(process) == 130
        if words:
            assert all(json.loads(line)[0]["pid"] == worker.pid for line in seen)


def test_reclaim_prints_a_plan_and_does_nothing_until_it_is_told(site: Site) -> None:
    worker = site.spawn("chat", LOAD)
    plan = run(site, "reclaim", "--gpu", "0")
    assert "to end: 1 process with 2.0G of GPU memory" in plan and "nothing was done" in plan
    assert worker.is_running and not (site.state_dir / "audit").exists()
    again = next(
        line for line in run(site, "reclaim", "--pid", str(worker.pid)).splitlines() if " --pid " in line
    )
    assert run(site, *again.split()[1:], "--reason", "a test").endswith("done: 1 of 1 ended\n")
    assert worker.process.wait(30) == 0
    assert site.host.gpu_truth().vram_used_bytes == 0
    shown = run(site, "audit", "show")
    assert "because: a test" in shown and "outcome of 1: done" in shown
    assert run(site, "audit", "verify").startswith("whole: 2 entries")


def test_the_beginning_of_all_uuids_ends_nobody(site: Site) -> None:
    worker = site.spawn("chat", LOAD)
    env = {**site.env(), "FAIRSCHED_CONFIG": str(site.config_path)}
    done = site.cli("reclaim", "--gpu", "GPU-", "--yes", env=env)
    assert done.returncode == 2 and "the beginning of 2 GPUs" in done.stderr
    assert pids(site, "--gpu", "GPU-") == {worker.pid}, "to look at them it is good enough"
    assert worker.is_running


def test_a_start_time_of_another_process_is_refused(site: Site) -> None:
    worker = site.spawn("chat", LOAD)
    said = " ".join(run(site, "reclaim", "--pid", f"{worker.pid}:1", "--yes", status=1).split())
    assert "it is another process now than the one that was named" in said
    assert worker.is_running


def test_a_full_disk_refuses_and_says_so(site: Site) -> None:
    worker = site.spawn("chat", LOAD)
    directory = site.state_dir / "audit"
    directory.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", directory], check=True)
    try:
        (directory / "fill").write_bytes(b"x" * 4096)
        env = {**site.env(), "FAIRSCHED_CONFIG": str(site.config_path)}
        done = site.cli("reclaim", "--gpu", "0", "--yes", env=env)
        assert done.returncode == 1
        assert "the audit log cannot be written (No space left on device), so nothing is done" in done.stderr
        assert "remedy: make room on its disk" in done.stderr
        assert worker.is_running
    finally:
        subprocess.run(["umount", directory], check=True)


def test_a_pause_of_somebody_else_stays_and_is_explained(site: Site) -> None:
    worker = site.spawn("chat", LOAD)
    freeze(site.cgroup("chat"))
    wait_until(lambda: is_frozen(site.cgroup("chat")), PATIENCE_S, "it is frozen")
    said = " ".join(run(site, "reclaim", "--tenant", "chat").split())
    assert "frozen by somebody else" in said and "/cgroup.freeze" in said
    run(site, "reclaim", "--tenant", "chat", "--yes", "--force", "--grace", "1s")
    assert worker.process.wait(30) in (0, -signal.SIGKILL, -signal.SIGTERM)
    assert is_asked(site.cgroup("chat"))


def test_what_a_daemon_holds_is_ended_and_the_daemon_thaws_it(site: Site) -> None:
    """And ps has the daemon's columns; the daemon and its helpers are never ended."""
    site.configure(
        {"chat": {"weight": 8}, "batch": {"weight": 1, "max_freeze_ms": 60_000, "quota": 0.05}},
        gpu={"device_dir": str(site.host.device_dir)},
    )
    site.start()
    batch = site.spawn("batch", GREEDY)
    site.wait_held("batch")
    rows = listed(site)
    assert [(row["source"], row["tenant"]) for row in rows] == [("daemon", "batch")]
    said = json.loads(run(site, "reclaim", "--tenant", "batch", "--yes", "--json"))
    assert said["outcome"]["is_whole"], said
    assert batch.process.wait(30) in (0, -signal.SIGTERM)
    wait_until(lambda: not is_asked(site.cgroup("batch")), PATIENCE_S, "the daemon has let go")
    assert site.ping() == site.pid
    for pid in (site.pid, *site.helpers().values()):
        answer = " ".join(run(site, "reclaim", "--pid", str(pid), "--yes", status=1).split())
        assert "never ended: a process of fairsched's daemon" in answer


def test_what_a_dead_daemon_held_is_thawed(site: Site) -> None:
    site.configure(
        {"batch": {"max_freeze_ms": 60_000, "quota": 0.05}},
        gpu={"device_dir": str(site.host.device_dir)},
        mechanisms={"guardian": "off"},
    )
    site.start()
    site.spawn("batch", GREEDY)
    site.kill_while_holding("batch")
    run(site, "reclaim", "--tenant", "batch", "--yes")
    assert not is_asked(site.cgroup("batch"))


def test_a_child_that_has_the_device_open_is_named(site: Site) -> None:
    """NVML does not list it; --pid may name it."""
    worker = site.spawn("chat", LOAD)
    device = site.host.device_dir / "nvidia0"
    with opener(device) as child:
        try:
            said = " ".join(run(site, "reclaim", "--gpu", "0", "--reset-gpu").split())
            assert f"its device file is open in {child.pid} (sleep)" in said
        finally:
            child.kill()
    assert worker.is_running


@pytest.fixture
def nvidia_smi(tmp_path: Path) -> Iterator[Path]:
    """Says what it was asked; refuses while there is a file called `no` beside it."""
    directory = tmp_path / "bin"
    directory.mkdir()
    program = directory / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {directory}/asked\n'
        f'[ ! -e {directory}/no ] || {{ echo "In use by another client"; exit 1; }}\n'
    )
    program.chmod(0o755)
    yield directory


def test_a_gpu_is_reset_when_nothing_runs_there(site: Site, nvidia_smi: Path) -> None:
    site.spawn("chat", LOAD)
    said = run(site, "reclaim", "--gpu", "0", "--reset-gpu", "--yes", path=nvidia_smi)
    assert "reset: done, and nothing is on it" in said
    assert (nvidia_smi / "asked").read_text() == f"--gpu-reset -i {site.host.uuids()[0]}\n"
    (nvidia_smi / "no").touch()
    said = run(site, "reclaim", "--gpu", "0", "--reset-gpu", "--yes", path=nvidia_smi, status=1)
    assert "the driver refused: In use by another client" in " ".join(said.split())


def test_a_gpu_on_which_somebody_stays_is_not_reset(site: Site, nvidia_smi: Path) -> None:
    site.spawn("chat", LOAD)
    with opener(site.host.device_dir / "nvidia0") as child:
        try:
            said = run(site, "reclaim", "--gpu", "0", "--reset-gpu", "--yes", path=nvidia_smi, status=1)
            assert f"its device file is open in {child.pid} (sleep)" in " ".join(said.split())
            assert not (nvidia_smi / "asked").exists()
        finally:
            child.kill()


def test_an_mps_server_is_not_ended_without_its_clients(site: Site, tmp_path: Path) -> None:
    with MpsServer(site.host, tmp_path) as server:
        assert server.worker is not None
        client = site.spawn("chat", LOAD, env=server.client_env())
        other = site.spawn("batch", LOAD, env=server.client_env())
        said = " ".join(run(site, "reclaim", "--pid", str(server.worker.pid), "--yes", status=1).split())
        assert "an MPS server: 2 clients that would end with it stay" in said
        assert server.worker.is_running
        said = " ".join(run(site, "reclaim", "--pid", str(client.pid)).split())
        assert f"a client of MPS: a kernel that it leaves running may fail the others ({other.pid})" in said
        run(site, "reclaim", "--gpu", "0", "--yes", "--force", "--grace", "1s")
        for worker in (server.worker, client, other):
            worker.process.wait(30)


def test_this_command_and_its_ancestors_are_never_ended(site: Site) -> None:
    """Also where they hold the GPU's device file."""
    with open(site.host.device_dir / "nvidia0"):
        said = " ".join(run(site, "reclaim", "--pid", str(os.getpid()), "--yes", status=1).split())
    assert "never ended: an ancestor of this command" in said
