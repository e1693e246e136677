# SPDX-License-Identifier: Apache-2.0
"""Each hostile program really does its trick on this kernel, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from benchmarks import tricks
from fairsched.cgroup import tree
from fairsched.cgroup.path import Mount
from fairsched.simgpu import ContextTruth, SimHost, Worker, Workload
from fairsched.simgpu.workload import create_log
from tests.support import let_run, wait_until

STEP = Workload("step", kernels=4, kernel_us=250, depth=1, gap_us=500)
PATIENCE_S = 30.0


@dataclass
class Scene:
    """A tenant's cgroup in a slice of its own, and a simulated GPU."""

    mount: Mount
    slice: str
    host: SimHost
    tmp: Path

    @property
    def tenant(self) -> Path:
        return Path(self.mount.absolute(self.slice)) / "tenant"

    def start(self, name: str, workload: Workload = STEP) -> Worker:
        """Returns when it has begun its work."""
        log = self.tmp / "log"
        create_log(log)
        temporary = self.tmp / "tmp"
        temporary.mkdir()
        command = tricks.command(name, workload, log=log)
        process = self.host.popen(command, self.tenant, {"TMPDIR": str(temporary)})
        worker = Worker(name, process, log)
        worker.wait_ready()
        return worker

    def contexts(self) -> list[ContextTruth]:
        return self.host.truth()

    def first_pid(self) -> int:
        wait_until(self.contexts, PATIENCE_S, "a context is there")
        return self.contexts()[0].pid

    def pids(self) -> list[int]:
        return tree.read_pids_recursive(self.mount, self.slice)

    def freeze(self, value: str) -> None:
        (self.tenant / "cgroup.freeze").write_text(value)
        events = self.tenant / "cgroup.events"
        wait_until(lambda: f"frozen {value}" in events.read_text(), PATIENCE_S, "it is frozen or thawed")

    def end(self) -> None:
        directory = Path(self.mount.absolute(self.slice))
        (self.tenant / "cgroup.freeze").write_text("0")
        (directory / "cgroup.kill").write_text("1")
        wait_until(
            lambda: "populated 0" in (directory / "cgroup.events").read_text(), PATIENCE_S, "it is empty"
        )
        for child in sorted(directory.rglob("*"), reverse=True):
            if child.is_dir():
                child.rmdir()
        directory.rmdir()


@pytest.fixture
def scene(mount: Mount, tmp_path: Path) -> Iterator[Scene]:
    path = f"/fairsched-test-tricks.{os.getpid()}"
    tree.create(mount, f"{path}/tenant").close()
    with SimHost() as host:
        scene = Scene(mount, path, host, tmp_path)
        try:
            yield scene
        finally:
            scene.end()


def cgroup_of(pid: int, thread: int | None = None) -> str:
    where = Path(f"/proc/{pid}/task/{thread}/cgroup" if thread else f"/proc/{pid}/cgroup")
    return next(line[3:] for line in where.read_text().splitlines() if line.startswith("0::"))


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def tracer_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("TracerPid:"))


def family(process: subprocess.Popen[bytes]) -> list[int]:
    return [child.pid for child in psutil.Process(process.pid).children(recursive=True)]


@pytest.mark.parametrize("name", tricks.TRICKS)
def test_a_trick_uses_the_gpu_and_leaves_nothing_behind(scene: Scene, name: str) -> None:
    trick = scene.start(name)
    wait_until(lambda: sum(c.exec_ns for c in scene.contexts()) > 5_000_000, PATIENCE_S, "it uses the GPU")
    assert trick.is_running
    assert trick.stop() == 0
    wait_until(lambda: not scene.pids(), PATIENCE_S, "all its processes are gone")
    assert not [path for path in scene.tenant.iterdir() if path.is_dir()], "its cgroups are gone"
    assert not list((scene.tmp / "tmp").iterdir()), "its files are gone"
    wait_until(lambda: not any(c.is_alive for c in scene.contexts()), PATIENCE_S, "its contexts are gone")


@pytest.mark.parametrize("name", tricks.TRICKS)
def test_a_killed_trick_leaves_no_process_behind(scene: Scene, name: str) -> None:
    trick = scene.start(name)
    trick.kill()
    wait_until(lambda: not scene.pids(), PATIENCE_S, "all its processes are gone")


def test_sigcont_undoes_a_stop_of_the_whole_tenant_but_not_a_hold(scene: Scene) -> None:
    trick = scene.start("sigcont")
    wait_until(lambda: family(trick.process) != [], PATIENCE_S, "it has a helper")

    def outside() -> list[int]:
        inside = tree.read_pids_recursive(scene.mount, scene.slice + "/tenant")
        return [pid for pid in scene.pids() if pid not in inside]

    wait_until(lambda: len(outside()) == 1, PATIENCE_S, "one process is outside of any stop")
    for _ in range(5):
        steps = trick.step_count()
        for pid in (scene.tenant / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGSTOP)
        wait_until(lambda before=steps: trick.step_count() > before + 3, PATIENCE_S, "it goes on")
    scene.freeze("1")
    steps = trick.step_count()
    let_run(0.3)
    assert trick.step_count() == steps, "a frozen tenant stays frozen"


def test_without_the_trick_a_stop_lasts(scene: Scene) -> None:
    """Or the test above would show nothing."""
    worker = scene.host.spawn(STEP, scene.tenant)
    os.kill(worker.pid, signal.SIGSTOP)
    wait_until(lambda: state_of(worker.pid) == "T", PATIENCE_S, "it stands still")
    steps = worker.step_count()
    let_run(0.3)
    assert worker.step_count() == steps


@pytest.mark.parametrize(("name", "leaves_the_tenant"), [("move", True), ("move_within", False)])
def test_moving_changes_the_cgroup_again_and_again(scene: Scene, name: str, leaves_the_tenant: bool) -> None:
    scene.start(name)
    pid = scene.first_pid()
    seen: list[str] = []

    def has_been_everywhere_twice() -> bool:
        where = cgroup_of(pid)
        if not seen or seen[-1] != where:
            seen.append(where)
        return len(seen) >= 7

    wait_until(has_been_everywhere_twice, PATIENCE_S, "it moves")
    own = {path for path in seen if path.startswith(f"{scene.slice}/tenant/")}
    assert len(own) == 2
    assert set(seen) - own == ({scene.slice} if leaves_the_tenant else set())


def test_child_cgroups_have_workers_and_a_thread_apart_from_its_process(scene: Scene) -> None:
    scene.start("child_cgroups")
    wait_until(lambda: len(scene.contexts()) == 3, PATIENCE_S, "three workers")
    pids = [context.pid for context in scene.contexts()]
    depths = sorted(cgroup_of(pid).count("/") - scene.slice.count("/") for pid in pids)
    assert all(cgroup_of(pid).startswith(f"{scene.slice}/tenant/") for pid in pids)
    assert depths[:2] == [2, 2] or depths == [2, 3, 3]
    assert len({cgroup_of(pid) for pid in pids}) == 3

    def is_divided() -> bool:
        for pid in pids:
            threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
            if len({cgroup_of(pid, thread) for thread in threads}) > 1:
                return True
        return False

    wait_until(is_divided, PATIENCE_S, "the threads of one process are in two cgroups")


def test_a_fork_storm_is_many_processes_few_of_them_on_the_gpu(scene: Scene) -> None:
    trick = scene.start("fork_storm")
    seen: set[int] = set()

    def is_storm() -> bool:
        """On a busy machine most of those without a context come and go between two looks; of the others none does."""
        seen.update(scene.pids())
        on_gpu = {context.pid for context in scene.contexts()}
        return len(seen - on_gpu) > 40 and len(on_gpu) >= 3

    wait_until(is_storm, PATIENCE_S, "processes come and go, and some of them on the GPU")
    steps = trick.step_count()
    wait_until(lambda: trick.step_count() > steps, PATIENCE_S, "the worker goes on")


def test_short_lived_processes_follow_each_other(scene: Scene) -> None:
    scene.start("short_lived")

    def ended() -> list[ContextTruth]:
        return [context for context in scene.contexts() if context.ended_ns]

    wait_until(lambda: len(ended()) >= 9, PATIENCE_S, "nine have come and gone")
    contexts = scene.contexts()
    assert len({one.pid for one in contexts}) > 0.7 * len(contexts), "a pid may come again, not a process"
    assert all(context.exec_ns > 0 for context in ended())
    at_once = max(
        sum(c.created_ns <= moment < (c.ended_ns or 1 << 63) for c in scene.contexts())
        for moment in [c.created_ns for c in scene.contexts()]
    )
    assert 2 <= at_once <= 4, "three at a time; one that ends may be seen beside its successor"


def test_starving_takes_the_processors(scene: Scene) -> None:
    trick = scene.start("starve_cpu")

    def busy() -> int:
        return sum(psutil.Process(pid).cpu_times().user > 0.2 for pid in family(trick.process))

    wait_until(lambda: busy() >= min(2 * (os.cpu_count() or 1), 8), PATIENCE_S, "all spin")
    assert all(psutil.Process(pid).nice() == 0 for pid in family(trick.process))


def test_ptrace_stops_and_continues_a_held_process(scene: Scene) -> None:
    trick = scene.start("ptrace")
    pid = scene.first_pid()
    wait_until(lambda: tracer_of(pid), PATIENCE_S, "it is traced")
    assert tracer_of(pid) in family(trick.process)
    steps = trick.step_count()
    wait_until(lambda: trick.step_count() > steps + 5, PATIENCE_S, "it works while it is traced")
    scene.freeze("1")
    steps = trick.step_count()
    states: set[str] = set()

    def is_stopped_and_sent_on() -> bool:
        states.add(state_of(pid))
        return "t" in states and len(states) > 1

    wait_until(is_stopped_and_sent_on, PATIENCE_S, "it is stopped by its tracer and sent on while it is held")
    assert trick.step_count() <= steps + 1, "which does not let it work"
    (scene.tenant / "cgroup.freeze").write_text("0")
    wait_until(lambda: trick.step_count() > steps + 5, PATIENCE_S, "thawed, it goes on")


def test_who_feigns_has_less_to_do_per_launch_in_company(scene: Scene) -> None:
    trick = scene.start("feign")
    pid = scene.first_pid()

    def mean_ns() -> float:
        """Of a kernel of it, from now on."""
        before = next(one for one in scene.contexts() if one.pid == pid)
        steps = trick.step_count()
        wait_until(lambda: trick.step_count() > steps + 20, PATIENCE_S, "it works")
        after = next(one for one in scene.contexts() if one.pid == pid)
        return (after.exec_ns - before.exec_ns) / (after.kernels - before.kernels)

    alone_ns = mean_ns()
    scene.host.spawn(Workload("step", kernels=40, kernel_us=500, depth=4), scene.tenant)
    wait_until(lambda: len(scene.contexts()) == 2, PATIENCE_S, "it has company")
    wait_until(lambda: mean_ns() < 0.8 * alone_ns, PATIENCE_S, "it has less to do")


def test_an_endless_kernel_runs_in_every_context(scene: Scene) -> None:
    scene.start("endless", Workload("step", depth=1, contexts=3))

    def has_begun() -> bool:
        contexts = scene.contexts()
        return len(contexts) == 3 and all(context.exec_ns > 4_000_000 for context in contexts)

    wait_until(has_begun, PATIENCE_S, "three contexts execute")
    assert all(context.kernels == 0 for context in scene.contexts())


def test_a_copied_libcuda_is_another_file_under_another_name(scene: Scene) -> None:
    trick = scene.start("dlopen_copy")
    maps = Path(f"/proc/{scene.first_pid()}/maps").read_text()
    inodes = {int(line.split()[4]) for line in maps.splitlines() if "libcompute.so" in line}
    original = (scene.host.library_dir / "libcuda.so.1").stat().st_ino
    assert len(inodes) == 1 and original not in inodes
    assert "/libcuda.so" not in maps
    steps = trick.step_count()
    wait_until(lambda: trick.step_count() > steps, PATIENCE_S, "it works")
