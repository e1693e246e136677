# SPDX-License-Identifier: Apache-2.0
"""Who schedules: nobody, fairsched, or a rival.

Problem. All must be started, watched and stopped alike, and none may look better for how it is attached.

Approach. A controller is a process beside the tenants. fairsched gets a configuration made from the scenario
and nothing that an operator would not know (the GPU's slice is the default, whatever the nature); rivals get
a JSON file (benchmarks/rivals). ``none`` is no process at all.

Terms. freezes: holds can be read from the kernel (holds.HoldWatch); one that stops processes by signal says
itself when it did.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.fair import rungs
from benchmarks.fair.holds import HoldWatch, StateWatch
from benchmarks.fair.recording import HeldTime
from benchmarks.fair.reference import entitled
from benchmarks.fair.rungs import TRACED, Rung
from benchmarks.fair.scenario import Play, Tenant
from benchmarks.rig import BenchError, Rig, RunningDaemon, cpu_s
from fairsched.config.models import Gpu
from fairsched.errors import ConfigError, ControlError
from fairsched.simgpu.hostengine import HostEngine

RIVALS = ("window-sigstop", "token", "nvml-feedback")
POLICIES = ("none", *rungs.ALL, TRACED, *RIVALS)
_ROOT = Path(__file__).resolve().parents[2]
_READY_S = 20.0
_DEFAULT = Gpu()
"""What the daemon assumes of a GPU that nobody describes."""


class Controller:
    """Nobody, and the base of the others."""

    freezes = False

    def watch(self, directories: dict[str, str]) -> HoldWatch | StateWatch | None:
        """Who sees in the kernel when leaves are held; None where the kernel does not tell."""
        return HoldWatch(directories) if self.freezes else None

    @contextlib.contextmanager
    def running(self, rig: Rig, play: Play, directories: Mapping[str, str]) -> Iterator[Controller]:
        """Attached on entry, gone afterwards with nobody held."""
        del rig, play, directories
        yield self

    def processes(self) -> list[psutil.Process]:
        return []

    def cpu_s(self) -> float | None:
        """Of its processes so far; None where there are none. Raises BenchError when one has ended."""
        with _all_there():
            found = self.processes()
            return sum(cpu_s(process) for process in found) if found else None

    def rss_bytes(self) -> int | None:
        """Likewise."""
        with _all_there():
            found = self.processes()
            return sum(int(process.memory_info().rss) for process in found) if found else None

    def account(self) -> dict[str, dict[str, Any]] | None:
        """By leaf: gpu_time_ns, confidence, misbehaviour. None for one without an account."""
        return None

    def held(self) -> tuple[HeldTime, ...]:
        """Holds the kernel does not tell of."""
        return ()

    def notes(self) -> list[str]:
        return []

    def check(self) -> None:
        """Raises BenchError when it is not there any more."""


@contextlib.contextmanager
def _all_there() -> Iterator[None]:
    try:
        yield
    except psutil.Error as error:
        raise BenchError(f"a process of the policy has ended: {error}") from error


class _Fairsched(Controller):
    def __init__(self, rung: Rung, *, is_traced: bool = False) -> None:
        """``is_traced``: with the GPU's trace of context switches, where contexts take turns."""
        self._rung, self._is_traced = rung, is_traced or rung.source == "trace"
        self.freezes = rung.brake == "freezer"
        self._daemon: RunningDaemon | None = None
        self._warnings: set[str] = set()
        self._sources: set[str] = set()
        self._processes: list[psutil.Process] = []

    def watch(self, directories: dict[str, str]) -> HoldWatch | StateWatch | None:
        states = {"sigstop": b"T", "freezer_v1": b"D"}.get(self._rung.brake)
        return super().watch(directories) if states is None else StateWatch(directories, states)

    @contextlib.contextmanager
    def running(self, rig: Rig, play: Play, directories: Mapping[str, str]) -> Iterator[Controller]:
        document = daemon_config(rig, play)
        document["gpu"] |= {
            "source": self._rung.source.partition("-")[0],
            "nvml_accounting": {"nvml-accounting": "on", "nvml": "off"}.get(self._rung.source, "auto"),
        }
        document["mechanisms"] = {"brake": self._rung.brake}
        if self._is_traced:
            # Side by side is what MPS does, and there the daemon follows no trace.
            takes_turns = all(spec.overlap == 1 and spec.mig is None for spec in rig.specs)
            document["mechanisms"] |= {"trace": "required" if takes_turns else "off", "driver": "off"}
            if self._rung.source == "trace" and not takes_turns:  # what such a host has: the next rung
                document["gpu"]["source"] = "nvml"
        with contextlib.ExitStack() as undo:
            if self._rung.source == "dcgm":
                engine = undo.enter_context(HostEngine(str(rig.directory / "hostengine")))
                document["gpu"]["dcgm_address"] = engine.address
            self._daemon = undo.enter_context(rig.daemon_of(document))
            self._processes = list(self._daemon.processes().values())
            yield self

    def processes(self) -> list[psutil.Process]:
        return self._processes

    def account(self) -> dict[str, dict[str, Any]] | None:
        assert self._daemon is not None
        try:
            status = self._daemon.status()
        except ControlError as error:
            self._warnings.add(f"status: {error}")
            return {}
        self._warnings |= set(status["warnings"])
        self._sources.add(str(status["source"]))
        return {
            tenant["name"]: {
                "gpu_time_ns": None if tenant["gpu_time_s"] is None else round(tenant["gpu_time_s"] * 1e9),
                "confidence": tenant["confidence"],
                "misbehaviour": (tenant.get("misbehaviour") or {}).get("kind"),
            }
            for tenant in status["tenants"]
        }

    def check(self) -> None:
        assert self._daemon is not None
        try:
            # It is left to be reaped by who started it.
            end = os.waitid(os.P_PID, self._processes[0].pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError as error:
            raise BenchError("the daemon has ended") from error
        if end is not None:
            raise BenchError(
                f"the daemon ended with status {end.si_status}; its log ends:\n{self._daemon.log_tail()}"
            )

    def notes(self) -> list[str]:
        assert self._daemon is not None
        words = ("level=error", "Traceback", "trace=lost", "turns=unsure", "turns=learnt", "turns=feigned")
        others = sorted(self._sources - {self._rung.source.partition("-")[0]})
        strayed = [f"for a while the account was of {source}" for source in others]
        return strayed + sorted(self._warnings) + self._daemon.log_lines(*words)


def daemon_config(rig: Rig, play: Play) -> dict[str, Any]:
    """What an operator would write for this scenario."""

    def node(tenant: Tenant, path: str) -> dict[str, Any]:
        document: dict[str, Any] = {"weight": tenant.weight, "class": tenant.tenant_class}
        if tenant.quota is not None:
            document["quota"] = tenant.quota
        if tenant.min:
            document["min"] = tenant.min
        if tenant.on_misbehaviour is not None:
            document["on_misbehaviour"] = tenant.on_misbehaviour
        if tenant.children:
            document["children"] = {
                name: node(child, f"{path}/{name}") for name, child in tenant.children.items()
            }
        if "/" not in path:
            document["cgroup"] = rig.cgroup_path(path).lstrip("/")
        return document

    told = play.scenario.gpus[0].told_slice_us
    return {
        "mode": "enforce",
        "gpu": {"timeslice_us": told or _DEFAULT.timeslice_us, "switch_us": _DEFAULT.switch_us},
        "tenants": {name: node(tenant, name) for name, tenant in play.scenario.tenants.items()},
    }


class _Rival(Controller):
    def __init__(self, name: str) -> None:
        self._name = name
        self.freezes = name != "window-sigstop"
        self._process: subprocess.Popen[str] | None = None
        self._held_log: Path | None = None
        self._directories: Mapping[str, str] = {}

    @contextlib.contextmanager
    def running(self, rig: Rig, play: Play, directories: Mapping[str, str]) -> Iterator[Controller]:
        self._directories = directories
        setup, self._held_log = rig.directory / "rival.json", rig.directory / "held.jsonl"
        self._held_log.touch()
        setup.write_text(json.dumps(self._setup(rig, play, directories)))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.rivals", self._name, str(setup)],
            cwd=_ROOT,
            env={**os.environ, **rig.host.env()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert self._process.stdout is not None
            if self._process.stdout.readline().strip() != "ready":
                raise BenchError(f"the rival {self._name} did not start")
            yield self
        finally:
            self._stop()

    def _setup(self, rig: Rig, play: Play, directories: Mapping[str, str]) -> dict[str, Any]:
        leaves = play.leaves()
        everybody = np.ones((1, len(leaves)), dtype=bool)
        owed = dict(zip(leaves, entitled(everybody, list(leaves), play.specs())[0], strict=True))
        return {
            "sim_dir": str(rig.host.state_dir),
            "held_log": str(self._held_log),
            "tenants": [
                {
                    "leaf": leaf,
                    "cgroup": directories[leaf],
                    "owner": number + 1,
                    "weight_ratio": float(owed[leaf]),
                    "quota_ratio": tenant.quota,
                    "gpus": sorted({load.gpu for load in tenant.loads}),
                }
                for number, (leaf, tenant) in enumerate(leaves.items())
            ],
        }

    def _stop(self) -> None:
        """Idempotent. Nobody is held afterwards."""
        assert self._process is not None and self._process.stdout is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_READY_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            print(f"warning: the rival {self._name} did not end by itself", file=sys.stderr)
        self._process.stdout.close()
        if self._process.returncode:  # it let everybody go, or it would have ended with 0
            for directory in self._directories.values():
                let_go(directory)

    def processes(self) -> list[psutil.Process]:
        assert self._process is not None
        return [psutil.Process(self._process.pid)]

    def check(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise BenchError(f"the rival {self._name} ended with {self._process.returncode}")

    def held(self) -> tuple[HeldTime, ...]:
        if self.freezes:
            return ()
        assert self._held_log is not None
        self._stop()
        lines = (json.loads(line) for line in self._held_log.read_text().splitlines())
        return tuple(HeldTime(line["leaf"], line["start_ns"], line["end_ns"]) for line in lines)


def let_go(directory: str) -> None:
    """Thaw the cgroup and continue every process in it and below it."""
    with contextlib.suppress(OSError):  # it is gone, or it is none
        Path(directory, "cgroup.freeze").write_text("0")
    for where, _, _ in os.walk(directory):
        with contextlib.suppress(OSError):  # a threaded one names no processes: those above it do
            for pid in Path(where, "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGCONT)


def controller(policy: str) -> Controller:
    """By name. Raises ConfigError for one that is not known."""
    if policy == "none":
        return Controller()
    if policy in rungs.ALL:
        return _Fairsched(rungs.ALL[policy])
    if policy == TRACED:
        return _Fairsched(Rung(), is_traced=True)
    if policy in RIVALS:
        return _Rival(policy)
    raise ConfigError(f"no policy {policy!r}", remedy=f"one of {', '.join(POLICIES)}")
