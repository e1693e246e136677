# SPDX-License-Identifier: Apache-2.0
"""Plays a scenario under a policy and records what happened.

Problem. Policies are only comparable when everything else is the same, and only honest when what is recorded
does not pass through the policy's own hands.

Approach. Everything real but the GPU: tenants are processes in cgroups of their own below gpu.slice, started
with the same seeds; the policy (our daemon, a rival, or nobody) is a process beside them. One loop samples the
engine's truth every 20 ms, the kernel's count of frozen time every 10, and the engine's list of stays every
half second; the workloads write their own step logs. Processes are attributed by the owner tag they inherit,
whatever cgroup they move to. Nothing is printed and nothing is asked of the policy meanwhile, but twice a
second of our daemon whether it is sure of its account; ten times while a tenant waits to be found out.

Terms. clock: seconds since everybody who is there from the start works. cast: the processes of the tenants.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import tricks
from benchmarks.fair.controllers import Controller, controller
from benchmarks.fair.holds import HoldWatch, StateWatch
from benchmarks.fair.recording import AccountReading, HeldTime, Recording, Sample, Stay
from benchmarks.fair.scenario import Load, Play, Tenant
from benchmarks.rig import Rig, after_a_tick
from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef
from fairsched.simgpu import Worker
from fairsched.simgpu.node import PARENT

_LOOK_NS = 10_000_000
_SAMPLE_NS = 20_000_000
_CROWD_SAMPLE_NS = 100_000_000
_CROWD = 150
"""Contexts; more of them (dead ones count) make a sample so dear that it would disturb what it measures."""
_STAYS_NS = 500_000_000
_LOG_NS = 3_000_000_000
"""After the end: the longest hold there is, and a second."""
_ASK_NS = 500_000_000
_ASK_SOON_NS = 100_000_000
"""While somebody is there whom the daemon is to find out: how soon it does is what is measured."""

Progress = Callable[[float], None]
"""Called with the part that is done, 0..1."""


@dataclass
class _Actor:
    """One leaf on the stage."""

    leaf: str
    tenant: Tenant
    owner: int
    directory: str
    workers: list[Worker] = field(default_factory=list)
    think_ns: list[int | None] = field(default_factory=list)
    comes: list[tuple[float, float] | None] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    """Steps. This and the two before: by worker."""
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)
    start_ns: int = 0
    stop_ns: int | None = None

    def kill(self) -> None:
        """Everything in its cgroup, whoever started it."""
        with contextlib.suppress(OSError):
            Path(self.directory, "cgroup.kill").write_text("1")
        for worker in self.workers:
            worker.kill()
        for process in self.others:
            process.kill()
            process.wait()


def play(
    play: Play,
    policy: str,
    seed: int,
    seconds: float | None = None,
    *,
    build_dir: Path | None = None,
    on_progress: Progress = lambda _done: None,
) -> Recording:
    """One performance. Raises ConfigError for an unknown policy, BenchError when it cannot be measured."""
    chosen = controller(policy)
    scenario = play.scenario
    specs = [gpu.spec() for gpu in scenario.gpus]
    with Rig(*specs, build_dir=build_dir) as rig, contextlib.ExitStack() as undo:
        stage = Stage(rig, play, seed, undo)
        with chosen.running(rig, play, stage.directories()) as control:
            stage.open()
            return stage.record(control, policy, seconds or scenario.seconds, on_progress)


class Stage:
    """The tenants' cgroups, made at once; their processes, from ``open`` on; what ``record`` has seen of them."""

    def __init__(self, rig: Rig, play: Play, seed: int, undo: contextlib.ExitStack) -> None:
        self._rig, self._play, self._seed, self._undo = rig, play, seed, undo
        self._strangers: list[Worker] = []
        self._samples: list[Sample] = []
        self._stays: list[Stay] = []
        self._stays_seen = [0] * len(rig.specs)
        self._accounts: list[AccountReading] = []
        self._notes: list[str] = []
        self._owners: dict[tuple[int, int], int] = {}
        self._actors = [
            _Actor(leaf, tenant, number + 1, self._make_cgroup(leaf))
            for number, (leaf, tenant) in enumerate(play.leaves().items())
        ]
        self._leaf_of = {actor.owner: actor.leaf for actor in self._actors}

    # ---- setting up ----

    def _make_cgroup(self, leaf: str) -> str:
        """With its inner nodes."""
        return self._make(self._rig.cgroup_path(leaf))

    def _make(self, path: str) -> str:
        parent = os.path.dirname(path)
        if parent != PARENT and not os.path.isdir(self._rig.mount.absolute(parent)):
            self._make(parent)
        ref = tree.create(self._rig.mount, path)
        self._undo.callback(self._unmake, ref)
        return self._rig.mount.absolute(path)

    def _unmake(self, ref: CgroupRef) -> None:
        """With all that lives in it: a trick may have made cgroups and processes of its own."""
        directory = Path(self._rig.mount.absolute(ref.path))
        with contextlib.suppress(OSError):
            (directory / "cgroup.kill").write_text("1")
        for child in sorted(directory.rglob("*"), reverse=True):
            if child.is_dir():
                with contextlib.suppress(OSError):
                    child.rmdir()
        self._rig.remove_cgroup(ref)

    def directories(self) -> dict[str, str]:
        """Cgroup directory by leaf."""
        return {actor.leaf: actor.directory for actor in self._actors}

    def open(self) -> None:
        """Those who are there from the start."""
        for number, load in enumerate(self._play.scenario.strangers):
            where = Path(self._make(self._rig.cgroup_path(f"stranger{number}")))
            self._strangers += self._spawn(load, where, f"stranger{number}", 0, 90_000 + 1000 * number)[0]
        for actor in self._actors:
            if actor.tenant.start_s == 0:
                self._enter(actor, wait=True)

    def _enter(self, actor: _Actor, *, wait: bool) -> None:
        self._undo.callback(actor.kill)
        for number, load in enumerate(actor.tenant.loads):
            workers, others = self._spawn(
                load,
                Path(actor.directory),
                f"{actor.leaf.replace('/', '.')}.{number}",
                actor.owner,
                100 * actor.owner + 10 * number,
                wait=wait,
            )
            actor.workers += workers
            actor.think_ns += [load.think_ns] * len(workers)
            actor.comes += [load.comes] * len(workers)
            actor.in_flight += [load.queue_depth] * len(workers)
            actor.others += others
        actor.start_ns = time.monotonic_ns()

    def _spawn(
        self, load: Load, where: Path, name: str, owner: int, seed: int, *, wait: bool = True
    ) -> tuple[list[Worker], list[subprocess.Popen[bytes]]]:
        workers: list[Worker] = []
        others: list[subprocess.Popen[bytes]] = []
        # A trick that is killed leaves its files: in the rig's directory they go with it.
        env = {"TMPDIR": str(self._rig.directory)}
        if owner:
            env["FAIRSCHED_SIM_OWNER"] = str(owner)
        for process in range(load.processes):
            workload = load.workload(self._libcuda(load), self._seed * 100_003 + seed + process)
            if load.trick:
                others.append(self._rig.host.popen(tricks.command(load.trick, workload), where, env))
            else:
                workers.append(self._rig.host.spawn(workload, where, f"{name}.{process}", env, wait))
        return workers, others

    def _libcuda(self, load: Load) -> str:
        if load.libcuda != "private":
            return "libcuda.so.1"
        directory = self._rig.directory / "private"
        directory.mkdir(exist_ok=True)
        return str(tricks.private_copy(self._rig.libcuda, directory))

    # ---- playing ----

    def record(self, control: Controller, policy: str, seconds: float, on_progress: Progress) -> Recording:
        clock_ns = time.monotonic_ns()
        start_ns = clock_ns + int(self._play.settle_s(policy) * 1e9)
        end_ns = start_ns + int(seconds * 1e9)
        watch = control.watch(self.directories())
        try:
            self._run_until(start_ns, clock_ns, end_ns, control, watch, on_progress)
            start_ns = self._read_account(control)
            used_s, begun_ns = control.cpu_s(), time.monotonic_ns()
            end_ns = start_ns + int(seconds * 1e9)
            self._run_until(end_ns, clock_ns, end_ns, control, watch, on_progress)
            cost = _ratio(used_s, control.cpu_s(), time.monotonic_ns() - begun_ns)
            rss = control.rss_bytes()
            end_ns = self._read_account(control)
            held = watch.finish() if watch else ()
        finally:
            if watch:
                watch.close()
        self._notes += control.notes()
        self._finish_logs(end_ns)
        return self._recording(policy, start_ns, end_ns, (*held, *control.held()), cost, rss)

    def _run_until(
        self,
        until_ns: int,
        clock_ns: int,
        end_ns: int,
        control: Controller,
        watch: HoldWatch | StateWatch | None,
        on_progress: Progress,
    ) -> None:
        sample_ns = stays_ns = ask_ns = now_ns = time.monotonic_ns()
        while now_ns < until_ns:
            self._cues(now_ns - clock_ns)
            if watch:
                watch.look()
            if now_ns >= sample_ns:
                sample_ns = now_ns + self._sample()
            if now_ns >= stays_ns:
                stays_ns = now_ns + _STAYS_NS
                self._collect_stays()
                on_progress(min(1.0, (now_ns - clock_ns) / (end_ns - clock_ns)))
            if now_ns >= ask_ns:
                self._ask(control)
                ask_ns = now_ns + self._ask_every_ns()
            control.check()
            time.sleep(max(0, now_ns + _LOOK_NS - time.monotonic_ns()) / 1e9)
            now_ns = time.monotonic_ns()
        self._sample()
        self._collect_stays()

    def _cues(self, clock_ns: int) -> None:
        for actor in self._actors:
            tenant = actor.tenant
            if not actor.start_ns and clock_ns >= tenant.start_s * 1e9:
                self._enter(actor, wait=False)
            if tenant.stop_s is not None and actor.stop_ns is None and clock_ns >= tenant.stop_s * 1e9:
                actor.kill()
                actor.stop_ns = time.monotonic_ns()

    def _sample(self) -> int:
        """Read the truth; returns for how long not to."""
        busy: list[int] = []
        ran: dict[tuple[str, int], int] = {}
        waited: dict[tuple[str, int], int] = {}
        at_ns, seen = time.monotonic_ns(), 0
        for gpu in range(len(self._rig.specs)):
            truth, contexts = self._rig.host.snapshot(gpu, sync=False)
            busy.append(truth.busy_ns)
            at_ns = truth.as_of_ns
            seen += len(contexts)
            for context in contexts:
                self._owners[gpu, context.id] = context.owner
                leaf = self._leaf_of.get(context.owner)
                if leaf is not None:
                    ran[leaf, gpu] = ran.get((leaf, gpu), 0) + context.exec_ns
                    waited[leaf, gpu] = waited.get((leaf, gpu), 0) + context.wait_ns
        self._samples.append(Sample(at_ns, tuple(busy), ran, waited))
        return _SAMPLE_NS if seen <= _CROWD else _CROWD_SAMPLE_NS

    def _collect_stays(self) -> None:
        for gpu, seen in enumerate(self._stays_seen):
            fresh = self._rig.host.reader.residencies_since(gpu, seen)
            self._stays_seen[gpu] = fresh.count
            if any((gpu, stay.context_id) not in self._owners for stay in fresh.stays):
                self._sample()  # a context younger than the last one
            if fresh.lost:
                self._notes.append(f"{fresh.lost} stays on GPU {gpu} were overwritten before they were read")
            for stay in fresh.stays:
                leaf = self._leaf_of.get(self._owners.get((gpu, stay.context_id), 0))
                if leaf is not None:
                    self._stays.append(Stay(leaf, gpu, stay.start_ns, stay.end_ns))

    def _ask(self, control: Controller) -> None:
        answer = control.account()
        if answer is not None:
            self._accounts.append(self._reading(answer))

    def _ask_every_ns(self) -> int:
        named = {leaf for reading in self._accounts for leaf in reading.misbehaviour}
        is_watched = any(
            actor.start_ns and actor.stop_ns is None and actor.leaf not in named
            for actor in self._actors
            if actor.tenant.on_misbehaviour is not None
        )
        return _ASK_SOON_NS if is_watched else _ASK_NS

    def _reading(self, answer: dict[str, dict[str, Any]]) -> AccountReading:
        self._sample()
        truth: dict[str, int] = {}
        for (leaf, _), exec_ns in self._samples[-1].exec_ns.items():
            truth[leaf] = truth.get(leaf, 0) + exec_ns
        return AccountReading(
            time.monotonic_ns(),
            {leaf: said["gpu_time_ns"] for leaf, said in answer.items() if said["gpu_time_ns"] is not None},
            truth,
            {leaf: said["confidence"] for leaf, said in answer.items()},
            {leaf: said["misbehaviour"] for leaf, said in answer.items() if said["misbehaviour"]},
        )

    def _read_account(self, control: Controller) -> int:
        """Just after the daemon has booked a tick, because an account is as old as its last one."""
        answer = after_a_tick(control.account)
        if answer is not None:
            self._accounts.append(self._reading(answer))
        self._sample()
        return time.monotonic_ns()

    def _finish_logs(self, end_ns: int) -> None:
        """A step is logged at its end: give those that were under way a moment, with samples going on.

        They may have run already: whoever is held logs them when the hold has ended.
        """
        due = [
            (worker, worker.step_count() + steps)
            for actor in self._actors
            for worker, steps in zip(actor.workers, actor.in_flight, strict=True)
        ]
        while time.monotonic_ns() < end_ns + _LOG_NS:
            self._sample()
            if all(worker.step_count() >= count or not worker.is_running for worker, count in due):
                break
            time.sleep(0.02)
        self._collect_stays()

    def _recording(
        self,
        policy: str,
        start_ns: int,
        end_ns: int,
        held: tuple[HeldTime, ...],
        cpu_ratio: float | None,
        rss_bytes: int | None,
    ) -> Recording:
        for actor in self._actors:
            self._notes += _ended(actor)
        return Recording(
            scenario=self._play.name,
            policy=policy,
            seed=self._seed,
            start_ns=start_ns,
            end_ns=end_ns,
            specs=self._play.specs(),
            leaves=tuple(actor.leaf for actor in self._actors),
            hostile=frozenset(actor.leaf for actor in self._actors if actor.tenant.is_hostile),
            present_ns={
                actor.leaf: (actor.start_ns, actor.stop_ns or end_ns)
                for actor in self._actors
                if actor.start_ns
            },
            samples=tuple(self._samples),
            stays=tuple(self._stays),
            steps={
                actor.leaf: tuple(tuple(worker.steps()) for worker in actor.workers) for actor in self._actors
            },
            is_always_wanting={actor.leaf: _never_waits(actor.tenant) for actor in self._actors},
            held=held,
            think_ns={actor.leaf: tuple(actor.think_ns) for actor in self._actors},
            comes={actor.leaf: tuple(actor.comes) for actor in self._actors},
            expected={
                actor.leaf: kind for actor in self._actors if (kind := _expected(actor.tenant)) is not None
            },
            accounts=tuple(self._accounts),
            cpu_ratio=cpu_ratio,
            rss_bytes=rss_bytes,
            overlap=max(spec.overlap for spec in self._rig.specs),
            notes=tuple(dict.fromkeys(self._notes)),
        )


def _ended(actor: _Actor) -> list[str]:
    """Who did before it was time to."""
    if actor.stop_ns is not None:
        return []
    workers = [f"{actor.leaf}: {w.name} ended by itself" for w in actor.workers if not w.is_running]
    tricks = [
        f"{actor.leaf}: its trick ended with {p.returncode}" for p in actor.others if p.poll() is not None
    ]
    return workers + tricks


def _never_waits(tenant: Tenant) -> bool:
    return any(load.wait == "none" or load.trick is not None for load in tenant.loads)


def _expected(tenant: Tenant) -> str | None:
    """What a detector has to call it: only of what it does can that be told."""
    kinds = [load.misbehaves_as for load in tenant.loads]
    return next((kind.value for kind in kinds if kind is not None), None)


def _ratio(before_s: float | None, after_s: float | None, wall_ns: int) -> float | None:
    if before_s is None or after_s is None:
        return None
    return (after_s - before_s) / (wall_ns / 1e9)
