# SPDX-License-Identifier: Apache-2.0
"""One node for a test, with what tests ask of the daemon and do to it.

The libcuda is a copy: probes are by inode, so daemons of other tests on this machine neither see these tenants
nor slow them down.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairsched.simgpu import GpuSpec, Workload, daemon_process
from fairsched.simgpu.daemon_process import is_running as is_running
from fairsched.simgpu.node import SimNode
from tests.node.daemon.maps import Maps
from tests.support import let_run, wait_until

COMMAND = [*daemon_process.COMMAND]
START_S = 120.0
"""Compiling the BPF programs takes four seconds on an idle machine."""
PATIENCE_S = 45.0
"""For what happens at once where nothing else runs. Less than the longest hold may last."""
SHARES_S = 6.0
"""In less, a moment in which a tenant is measured shows (policy/solo.py: what it then owes is repaid in 2 s)."""

DECODE = Workload("decode", kernels=20, kernel_us=500, jitter_ratio=0.1, gap_us=500)
GREEDY = Workload("trainer", kernels=20, kernel_us=500, jitter_ratio=0.1, depth=8)
"""Keeps 80 ms of work queued: drains long after it was frozen."""
STEADY = replace(GREEDY, depth=4)
"""Has work also while the processors are busy. A decoder has none while it waits for one, and that part of the GPU
goes to the others, as it should: its share says as much of the machine as of the scheduler."""


def is_asked(cgroup: Path) -> bool:
    return (cgroup / "cgroup.freeze").read_text().strip() == "1"


def is_frozen(cgroup: Path) -> bool:
    return "frozen 1" in (cgroup / "cgroup.events").read_text()


def freeze(cgroup: Path, value: str = "1") -> None:
    """What docker pause and an operator do."""
    (cgroup / "cgroup.freeze").write_text(value)


def stand_still(pid: int) -> None:
    """SIGSTOP, and until it has stopped: the signal comes back before a write in progress is over."""
    os.kill(pid, signal.SIGSTOP)
    stat = Path(f"/proc/{pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(") ")[2][0] == "T", PATIENCE_S, f"{pid} stands still")


class Site(SimNode):
    """Call :meth:`close`, always."""

    count = 0

    def __init__(self, tmp_path: Path, gpus: int = 1, **nature: Any) -> None:
        """``nature``: of each GPU, as in :class:`GpuSpec`."""
        Site.count += 1
        directory = tmp_path / f"site{Site.count}"
        directory.mkdir()
        self.top = f"gpu.slice/fairsched-test.{os.getpid()}.{Site.count}"
        self.library_dir = Path(tempfile.gettempdir()) / f"fairsched-test-lib.{secrets.token_hex(4)}"
        specs = [GpuSpec(vram_bytes=1 << 44, **nature) for _ in range(gpus)]
        super().__init__(f"/{self.top}/", specs, directory=directory, library_dir=self.library_dir)
        self.open()
        self.daemon = self.make_daemon(patience_s=PATIENCE_S)
        self.run_dir, self.state_dir = self.daemon.run_dir, self.daemon.state_dir
        self.config_path, self.log_path = self.daemon.config_path, self.daemon.log_path
        self.socket_path = self.daemon.socket_path
        # The daemon's own, in a test's words.
        self.launch, self.ping, self.kill = self.daemon.launch, self.daemon.ping, self.daemon.kill
        self.ask, self.status, self.log = self.daemon.ask, self.daemon.status, self.daemon.log
        self.env, self.helpers, self.helpers_left = (
            self.daemon.env,
            self.daemon.helpers,
            self.daemon.helpers_left,
        )

    # ---- configuration ----

    def configure(self, tenants: Mapping[str, Mapping[str, Any]], **top: Any) -> None:
        """Write the configuration; each tenant has the cgroup of its name below ours.

        eBPF is required unless a test says otherwise: on samples alone every test would wait in vain.
        """
        document = {
            "mode": "enforce",
            "tenants": {name: {"cgroup": f"{self.top}/{name}", **values} for name, values in tenants.items()},
            **top,
            "mechanisms": {"ebpf": "required", **top.get("mechanisms", {})},
        }
        self.daemon.configure(document)
        for name in tenants:
            self.make_cgroup(name)

    # ---- the daemon ----

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        return self.daemon.process

    @property
    def pid(self) -> int:
        return self.daemon.pid

    @property
    def command(self) -> Sequence[str]:
        """A test may start the daemon in another way."""
        return self.daemon.command

    @command.setter
    def command(self, command: Sequence[str]) -> None:
        self.daemon.command = command

    def start(self, *options: str) -> None:
        """Start the daemon and wait until it answers."""
        self.launch(*options)
        self.wait_started()

    def wait_started(self) -> None:
        self.daemon.wait_for(lambda: self.ping() == self.pid, START_S, "the daemon answers")

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """SIGTERM; the exit status."""
        status = self.daemon.stop(timeout_s)
        assert status != -signal.SIGKILL, f"it did not end within {timeout_s} s"
        return status

    def tenant(self, name: str) -> dict[str, Any]:
        return next(item for item in self.status()["tenants"] if item["name"] == name)

    def gpu_time_s(self, name: str) -> float:
        """As the daemon accounts it; 0 while nothing is known."""
        return float(self.tenant(name)["gpu_time_s"] or 0)

    def maps(self) -> Maps:
        """The BPF maps of the running daemon."""
        return Maps(self.pid)

    def cli(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *args],
            **{"env": self.env(), "capture_output": True, "text": True, "timeout": 120, **options},
        )

    # ---- tenants ----

    def attach(self) -> None:
        """Have libcuda probed before the tenants come: of older contexts the GPU is a guess."""
        name = next(iter(self.status()["tenants"]))["name"]
        first = self.spawn(name, DECODE)
        wait_until(
            lambda: logged(self.log(), "library=.* probes=[1-9]"), PATIENCE_S, "libcuda has its probes"
        )
        first.kill()

    def shares(self, tenants: list[str], seconds: float = SHARES_S) -> dict[str, float]:
        """Parts of what ``tenants`` got together during the next ``seconds``."""
        before = self.truth_ns()
        let_run(seconds)
        after = self.truth_ns()
        got = {name: after[name] - before[name] for name in tenants}
        return {name: value / max(1, sum(got.values())) for name, value in got.items()}

    def wait_held(self, tenant: str, deadline_s: float = PATIENCE_S) -> None:
        wait_until(lambda: is_asked(self.cgroup(tenant)), deadline_s, f"{tenant} is held")

    def kill_while_holding(self, tenant: str) -> None:
        """The daemon is stopped first, so that it is known to have held ``tenant`` when it was killed."""

        def is_left() -> bool:
            self.wait_held(tenant)
            stand_still(self.pid)
            if is_asked(self.cgroup(tenant)):
                return True
            os.kill(self.pid, signal.SIGCONT)
            return False

        wait_until(is_left, PATIENCE_S, "the daemon stands still while it holds")
        self.kill()

    def decisions(self, tenant: str) -> list[dict[str, Any]]:
        return list(self.ask("explain", tenant=tenant))

    def decisions_logged(self, tenant: str) -> list[str]:
        return logged(self.log(), rf"decision=\w+ tenant={tenant} ")

    # ---- the end ----

    def close(self) -> None:
        """At once: whoever it held is let go all the same."""
        try:
            for daemon in self.daemons:
                daemon.kill()
            super().close()
        finally:
            with contextlib.suppress(OSError):
                os.rmdir(self.mount.absolute("/gpu.slice"))  # when nobody else uses it
            shutil.rmtree(self.library_dir, ignore_errors=True)


def logged(text: str, pattern: str) -> list[str]:
    return [line for line in text.splitlines() if re.search(pattern, line)]
