# SPDX-License-Identifier: Apache-2.0
"""One node for a test: simulated GPUs, a libcuda of its own, cgroups, a configuration and the real daemon.

The libcuda is a copy: probes are by inode, so daemons of other tests on this machine neither see these tenants
nor slow them down.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

import fairsched
from fairsched.cgroup import tree
from fairsched.cgroup.path import Mount
from fairsched.errors import ControlError
from fairsched.protocol.client import ControlClient
from fairsched.simgpu import GpuSpec, SimHost, Workload
from fairsched.simgpu.build import build
from fairsched.simgpu.workload import Worker
from tests.node.daemon.maps import Maps
from tests.support import let_run, wait_until

PACKAGE_ROOT = Path(fairsched.__file__).resolve().parents[1]
COMMAND = [sys.executable, "-c", "from fairsched.cli import main; main()"]
START_S = 120.0
"""Compiling the BPF programs takes four seconds on an idle machine."""
PATIENCE_S = 45.0
"""For what happens at once where nothing else runs. Less than the longest hold may last."""

DECODE = Workload("decode", kernels=20, kernel_us=500, jitter_ratio=0.1, gap_us=500)
GREEDY = Workload("trainer", kernels=20, kernel_us=500, jitter_ratio=0.1, depth=8)
"""Keeps 80 ms of work queued: drains long after it was frozen."""
STEADY = replace(GREEDY, depth=4)
"""Has work also while the processors are busy. A decoder has none while it waits for one, and that part of the GPU
goes to the others, as it should: its share says as much of the machine as of the scheduler."""


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def is_running(pid: int) -> bool:
    """Zombies do not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


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


class Site:
    """Call :meth:`close`, always."""

    count = 0

    def __init__(self, tmp_path: Path, mount: Mount, gpus: int = 1) -> None:
        Site.count += 1
        self._tmp = tmp_path / f"site{Site.count}"
        self._tmp.mkdir()
        self.run_dir, self.state_dir = self._tmp / "run", self._tmp / "state"
        self.config_path, self.log_path = self._tmp / "config.yaml", self._tmp / "daemon.log"
        self.socket_path = self.run_dir / "fairsched.sock"
        self.mount = mount
        self.top = f"gpu.slice/fairsched-test.{os.getpid()}.{Site.count}"
        self.library_dir = Path(tempfile.mkdtemp(prefix="fairsched-test-lib."))
        shutil.copytree(build().library_dir, self.library_dir, dirs_exist_ok=True)
        self.host = SimHost([GpuSpec(vram_bytes=1 << 44) for _ in range(gpus)])
        self.process: subprocess.Popen[bytes] | None = None
        self.command = COMMAND
        """A test may start the daemon in another way."""
        self.workers: dict[str, list[Worker]] = {}
        self._helpers: set[int] = set()
        try:
            self.host.start()
        except BaseException:
            self.close()
            raise

    # ---- configuration ----

    def configure(self, tenants: Mapping[str, Mapping[str, Any]], **top: Any) -> None:
        """Write the configuration; each tenant has the cgroup of its name below ours.

        eBPF is required unless a test says otherwise: on samples alone every test would wait in vain.
        """
        document = {
            "mode": "enforce",
            "run_dir": str(self.run_dir),
            "state_dir": str(self.state_dir),
            "tenants": {name: {"cgroup": f"{self.top}/{name}", **values} for name, values in tenants.items()},
            **top,
            "mechanisms": {"ebpf": "required", **top.get("mechanisms", {})},
        }
        self.config_path.write_text(yaml.safe_dump(document))
        for name in tenants:
            self.make_cgroup(name)

    def cgroup(self, tenant: str) -> Path:
        return Path(self.mount.absolute(f"/{self.top}/{tenant}"))

    def make_cgroup(self, name: str) -> Path:
        tree.create(self.mount, f"/{self.top}/{name}").close()
        return self.cgroup(name)

    # ---- the daemon ----

    def env(self) -> dict[str, str]:
        env = {**os.environ, **self.host.env(), "LD_LIBRARY_PATH": str(self.library_dir)}
        env.setdefault("PYTHONPATH", str(PACKAGE_ROOT))
        return env

    def launch(self, *options: str) -> None:
        """Start the daemon and do not wait for it."""
        assert self.process is None or self.process.poll() is not None
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*self.command, "run", "--config", str(self.config_path), *options],
                env=self.env(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def start(self, *options: str) -> None:
        """Start the daemon and wait until it schedules."""
        self.launch(*options)
        self.wait_started()

    def wait_started(self) -> None:
        def is_up() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"the daemon ended:\n{self.log()}"
            return self.ping() == self.process.pid

        wait_until(is_up, START_S, "the daemon answers")

    def ping(self) -> int | None:
        """The pid that answers; None = nobody does yet."""
        try:
            return int(ControlClient(self.socket_path, timeout_s=2).request("ping")["pid"])
        except ControlError:
            return None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def helpers(self) -> dict[str, int]:
        """guardian and attacher (loader while it still compiles) -> pid."""
        found = {}
        for pid in children_of(self.pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"-m" in words:  # what it runs for a moment (ldconfig) is no helper
                    found[words[words.index(b"-m") + 1].decode().rpartition(".")[2]] = pid
                    self._helpers.add(pid)
        return found

    def kill(self) -> None:
        """kill -9, in mid-whatever."""
        assert self.process is not None
        self.helpers()
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        self.helpers()
        self.process.terminate()
        return self.process.wait(timeout_s)

    def helpers_left(self) -> list[int]:
        return [pid for pid in self._helpers if is_running(pid)]

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def ask(self, request: str, **args: Any) -> Any:
        return ControlClient(self.socket_path, timeout_s=PATIENCE_S).request(request, **args)

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.ask("status")
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

    def spawn(self, tenant: str, workload: Workload, cgroup: Path | None = None) -> Worker:
        group = self.workers.setdefault(tenant, [])
        worker = self.host.spawn(
            replace(workload, seed=workload.seed + len(group)),
            cgroup or self.cgroup(tenant),
            f"{tenant}{len(group)}",
            env={"LD_LIBRARY_PATH": str(self.library_dir)},
        )
        group.append(worker)
        return worker

    def attach(self) -> None:
        """Have libcuda probed before the tenants come: of older contexts the GPU is a guess."""
        name = next(iter(self.status()["tenants"]))["name"]
        first = self.spawn(name, DECODE)
        wait_until(
            lambda: logged(self.log(), "library=.* probes=[1-9]"), PATIENCE_S, "libcuda has its probes"
        )
        first.kill()

    def truth_ns(self) -> dict[str, int]:
        """What each tenant's processes really executed."""
        owner = {worker.pid: tenant for tenant, group in self.workers.items() for worker in group}
        total = dict.fromkeys(self.workers, 0)
        for context in self.host.truth():
            if context.pid in owner:
                total[owner[context.pid]] += context.exec_ns
        return total

    def shares(self, tenants: list[str], seconds: float) -> dict[str, float]:
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
        top = Path(self.mount.absolute(f"/{self.top}"))
        if self.process is not None and self.process.poll() is None:
            self.kill()
        with contextlib.suppress(AssertionError):
            # by itself the attacher lets go of its probes all at once; killed, one by one for seconds
            wait_until(lambda: not self.helpers_left(), 5, "guardian and attacher leave")
        for pid in self.helpers_left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.host.close()
        for directory in [top, *(Path(path) for path, _, _ in os.walk(top))]:
            with contextlib.suppress(OSError):
                freeze(directory, "0")
                (directory / "cgroup.kill").write_text("1")

        def is_removed() -> bool:
            for path, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)
            return not top.exists()

        wait_until(is_removed, PATIENCE_S, f"{top} is removed")
        with contextlib.suppress(OSError):
            os.rmdir(top.parent)  # when it was made for us and nobody else uses it
        shutil.rmtree(self.library_dir, ignore_errors=True)


def logged(text: str, pattern: str) -> list[str]:
    return [line for line in text.splitlines() if re.search(pattern, line)]
