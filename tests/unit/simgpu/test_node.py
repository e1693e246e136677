# SPDX-License-Identifier: Apache-2.0
"""A simulated node's parts that need no root: who is a helper, what was executed by whom, what a daemon is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from fairsched.base.package import PACKAGE_ROOT
from fairsched.simgpu.daemon_process import DaemonProcess, NodeError, is_running, role_of, wait_until
from fairsched.simgpu.node import SimNode, executed_ns


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("python -S -s -m fairsched.guardian.process 7 /run/holds", "guardian"),
        ("python -m fairsched.bpf.attacher 9", "attacher"),
        ("python -m fairsched.companion --socket /run/s", "companion"),
        ("ldconfig -p", None),
        ("python -m http.server", None),
        ("python -m", None),
        ("", None),
    ],
)
def test_a_helper_is_known_by_its_module(command: str, role: str | None) -> None:
    assert role_of(command.split()) == role


def test_what_a_tenant_executed_is_the_sum_over_its_processes() -> None:
    contexts: list[Any] = [
        SimpleNamespace(pid=pid, exec_ns=ns) for pid, ns in ((1, 5), (1, 6), (2, 7), (3, 9))
    ]
    workers: dict[str, Any] = {"chat": [SimpleNamespace(pid=1), SimpleNamespace(pid=2)], "idle": []}
    assert executed_ns(contexts, workers) == {"chat": 18, "idle": 0}


def test_a_configuration_says_where_the_daemons_files_are(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path)
    daemon.configure({"mode": "observe"})
    assert yaml.safe_load(daemon.config_path.read_text()) == {
        "mode": "observe",
        "run_dir": str(tmp_path / "run"),
        "state_dir": str(tmp_path / "state"),
    }
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    assert daemon.argv("--once")[-4:] == ["run", "--config", str(daemon.config_path), "--once"]


def test_a_daemon_imports_this_package_and_tells_no_service_manager_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    monkeypatch.setenv("PYTHONPATH", "/opt/other")
    env = DaemonProcess(tmp_path, {"FAIRSCHED_SIM_DIR": "/run/sim"}).env()
    assert "NOTIFY_SOCKET" not in env
    assert env["PYTHONPATH"] == f"{PACKAGE_ROOT}:/opt/other"
    assert env["FAIRSCHED_SIM_DIR"] == "/run/sim"


def test_a_daemon_that_was_never_launched_can_be_ended(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path)
    assert (daemon.is_running, daemon.status_of_end, daemon.log()) == (False, None, "")
    assert (daemon.stop(), daemon.kill()) == (0, 0)
    daemon.close()
    with pytest.raises(NodeError):
        _ = daemon.pid


def test_waiting_for_a_daemon_that_ended_says_what_it_said_last(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path)
    daemon.command = [sys.executable, "-c", "import sys; print('no BPF here'); sys.exit(3)"]
    daemon.launch()
    with pytest.raises(NodeError, match=r"ended with 3; its log ends:\nno BPF here"):
        daemon.wait_for(lambda: False, 60, "it answers")
    assert daemon.status_of_end == 3
    assert daemon.stop() == 3


def test_a_daemon_that_hears_no_signal_is_killed(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path)
    code = "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    daemon.command = [sys.executable, "-c", code]
    daemon.launch()
    wait_until(lambda: daemon.log() == "up\n", 60, "it runs")
    with pytest.raises(NodeError, match="runs already"):
        daemon.launch()
    assert daemon.stop(0.01) == -9
    assert not is_running(daemon.pid)


def test_who_is_dead_does_not_run_and_who_was_not_reaped_neither() -> None:
    assert is_running(os.getpid())
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running(child.pid)
    child.wait()
    assert not is_running(child.pid)


def test_a_node_that_is_not_open_has_nothing_and_can_be_closed(mount_of_this_host: object) -> None:
    node = SimNode("/gpu.slice/never-")
    assert node.cgroup_path("chat") == "/gpu.slice/never-chat"
    with pytest.raises(NodeError, match="not open"):
        _ = node.host
    node.close()


@pytest.fixture
def mount_of_this_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A host without cgroup v2 will do."""
    from fairsched.cgroup.path import Mount

    monkeypatch.setattr("fairsched.simgpu.node.find_mount", lambda: Mount(str(tmp_path)))
