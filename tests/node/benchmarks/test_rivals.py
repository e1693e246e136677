# SPDX-License-Identifier: Apache-2.0
"""The rivals on real cgroups: they hold, they log it, and whatever ends them leaves nobody held."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef, Mount, find_mount
from fairsched.errors import HostUnsupported
from fairsched.simgpu import SimHost, Worker, Workload
from tests.support import let_run, wait_until

ROOT = Path(__file__).resolve().parents[3]
RIVALS = ("window-sigstop", "token", "nvml-feedback")
TRAINER = Workload("trainer", kernels=10, kernel_us=500, jitter_ratio=0.1, depth=4)
"""Always has work, and no more of it queued than 20 ms."""
PATIENCE_S = 30.0
PARENT = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); p.wait()"


class Field:
    """Two trainers with a simulated GPU, and whatever rival a test starts."""

    def __init__(self, host: SimHost, mount: Mount, refs: dict[str, CgroupRef], held_log: Path) -> None:
        self.host, self.held_log = host, held_log
        self.where = {leaf: Path(mount.absolute(ref.path)) for leaf, ref in refs.items()}
        self.workers: dict[str, Worker] = {}
        self.processes: list[subprocess.Popen[str]] = []
        self.orphans: list[int] = []
        for owner, leaf in enumerate(self.where, 1):
            env = {"FAIRSCHED_SIM_OWNER": str(owner)}
            self.workers[leaf] = host.spawn(TRAINER, self.where[leaf], leaf, env)

    def command(self, rival: str, weights: tuple[float, float], held_log: str | None = None) -> list[str]:
        tenants = [
            {
                "leaf": leaf,
                "cgroup": str(self.where[leaf]),
                "owner": owner,
                "weight_ratio": weight_ratio,
                "quota_ratio": None,
                "gpus": [0],
            }
            for owner, (leaf, weight_ratio) in enumerate(zip(self.where, weights, strict=True), 1)
        ]
        setup = {
            "sim_dir": str(self.host.state_dir),
            "held_log": held_log or str(self.held_log),
            "tenants": tenants,
        }
        return [sys.executable, "-m", "benchmarks.rivals", rival, json.dumps(setup)]

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        env = {**os.environ, **self.host.env()}
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def start_rival(self, rival: str, weights: tuple[float, float] = (0.3, 0.7)) -> subprocess.Popen[str]:
        process = self.start(self.command(rival, weights))
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def exec_ns(self) -> dict[str, int]:
        by_owner = {truth.owner: truth.exec_ns for truth in self.host.truth()}
        return {leaf: by_owner[owner] for owner, leaf in enumerate(self.where, 1)}

    def held(self) -> set[str]:
        """Frozen, or stopped."""
        return {
            leaf
            for leaf, worker in self.workers.items()
            if (self.where[leaf] / "cgroup.freeze").read_text() == "1\n" or state_of(worker.pid) in "Tt"
        }

    def assert_all_go_on(self) -> None:
        assert not self.held()
        before = {leaf: worker.step_count() for leaf, worker in self.workers.items()}
        for leaf, worker in self.workers.items():
            # More than the queue that a held one would still drain.
            enough = before[leaf] + 3 * TRAINER.depth
            wait_until(lambda w=worker, n=enough: w.step_count() > n, PATIENCE_S, f"{leaf} works")

    def holds(self) -> dict[str, list[tuple[int, int]]]:
        """By leaf, from the log."""
        found: dict[str, list[tuple[int, int]]] = {leaf: [] for leaf in self.where}
        for line in self.held_log.read_text().splitlines():
            entry = json.loads(line)
            assert set(entry) == {"leaf", "start_ns", "end_ns"}
            found[entry["leaf"]].append((entry["start_ns"], entry["end_ns"]))
        return found

    def close(self) -> None:
        for pidfd in self.orphans:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        for leaf, worker in self.workers.items():
            (self.where[leaf] / "cgroup.freeze").write_text("0")
            worker.kill()


def state_of(pid: int) -> str:
    """As in /proc/PID/stat; Z for one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    return "Z"


@pytest.fixture
def mount() -> Mount:
    try:
        return find_mount()
    except HostUnsupported as error:
        pytest.skip(f"needs cgroup v2: {error}")


@pytest.fixture
def cgroups(mount: Mount) -> Iterator[dict[str, CgroupRef]]:
    top = f"/fairsched-rivals-{os.getpid()}"
    refs = {leaf: tree.create(mount, f"{top}/{leaf.replace('/', '-')}") for leaf in ("team/a", "b")}
    yield refs
    for ref in (*refs.values(), CgroupRef.open(mount, top)):
        wait_until(lambda ref=ref: not tree.read_pids(ref), PATIENCE_S, "the tenant is empty")
        tree.remove(mount, ref)
        ref.close()


@pytest.fixture
def field(mount: Mount, cgroups: dict[str, CgroupRef], tmp_path: Path) -> Iterator[Field]:
    with SimHost() as host, contextlib.ExitStack() as undo:
        field = Field(host, mount, cgroups, tmp_path / "held.jsonl")
        undo.callback(field.close)
        yield field


@pytest.mark.parametrize("rival", RIVALS)
def test_a_rival_holds_logs_its_holds_and_lets_go_on_sigterm(field: Field, rival: str):
    process = field.start_rival(rival)
    wait_until(lambda: field.held_log.read_text(), PATIENCE_S, "a hold is over")
    wait_until(field.held, PATIENCE_S, "somebody is held")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    field.assert_all_go_on()
    holds = field.holds()
    assert holds["team/a"]
    for spans in holds.values():
        edges = [edge for span in sorted(spans) for edge in span]
        assert edges == sorted(set(edges)), "a hold ends after it began and before the next begins"


@pytest.mark.parametrize("rival", RIVALS)
def test_nobody_stays_held_when_the_parent_of_a_rival_is_killed(field: Field, rival: str):
    parent = field.start([sys.executable, "-c", PARENT, *field.command(rival, (0.3, 0.7))])
    assert parent.stdout is not None
    told = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
    assert "ready" in told
    pid = int((told - {"ready"}).pop())
    field.orphans.append(os.pidfd_open(pid))
    wait_until(field.held, PATIENCE_S, "somebody is held")
    parent.kill()
    wait_until(lambda: state_of(pid) in "ZX", PATIENCE_S, "the rival ends")
    field.assert_all_go_on()


@pytest.mark.parametrize("rival", RIVALS)
def test_nobody_stays_held_when_a_rival_fails(field: Field, rival: str):
    process = field.start(field.command(rival, (0.3, 0.7), held_log="/dev/full"))
    assert process.wait(PATIENCE_S) == 1
    field.assert_all_go_on()


def share_of_30(field: Field, rival: str, seconds: float) -> float:
    """What a weight of .3 gets beside one of .7, of what both execute: the engine's truth."""
    process = field.start_rival(rival)
    before = field.exec_ns()
    let_run(seconds)
    after = field.exec_ns()
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    grown = {leaf: after[leaf] - before[leaf] for leaf in after}
    return grown["team/a"] / sum(grown.values())


def test_caps_of_30_and_70_are_kept(field: Field):
    """A look every 100 ms: .36 is what that makes of .3. Without it they have .5 each."""
    assert 0.25 <= share_of_30(field, "window-sigstop", 3.0) <= 0.44


def test_the_token_serves_weights_of_30_and_70_by_their_proportion(field: Field):
    """In quanta of a quarter of a second: five seconds are twenty of them. Measured: .30 to .31."""
    assert share_of_30(field, "token", 5.0) == pytest.approx(0.3, abs=0.1)
