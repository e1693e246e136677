# SPDX-License-Identifier: Apache-2.0
"""The PyTorch tenant: its log, its clock, how it counts its launches, and, where there is PyTorch, its steps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.gpu import tenant
from benchmarks.gpu.facts import look, missing
from benchmarks.gpu.steplog import StepLog
from benchmarks.gpu.tenant import SPIN_KERNELS, GpuClock, count_launches
from fairsched.errors import HostUnsupported
from fairsched.gpu.nvml import Gpu
from fairsched.simgpu import Step, Worker
from fairsched.simgpu.workload import LOG_CAPACITY, create_log

READY = {"torch": "2.6.0", "cuda": "12.4", "is_available": True, "why": "", "maps": ["/usr/lib/libcuda.so.1"]}
GPUS = (Gpu("GPU-1", 0), Gpu("GPU-2", 1))


def reader(path: Path) -> Worker:
    return Worker("test", cast(Any, SimpleNamespace(pid=1)), path)


def test_the_harness_reads_what_the_tenant_writes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    create_log(path)
    log, worker = StepLog(path), reader(path)
    assert not worker.is_ready
    log.ready()
    log.step(1000, 1.0, 10)
    log.step(2000, 2.5, -5)
    assert worker.is_ready
    assert worker.steps() == [Step(1000, 1.0, 10), Step(2000, 2.5, 0)]


def test_a_full_log_keeps_the_latest(tmp_path: Path) -> None:
    path = tmp_path / "log"
    create_log(path)
    log, worker = StepLog(path), reader(path)
    for number in range(LOG_CAPACITY + 3):
        log.step(number, 1.0, 1)
    assert worker.step_count() == LOG_CAPACITY + 3
    assert [step.end_ns for step in worker.steps()] == list(range(3, LOG_CAPACITY + 3))


def test_another_file_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(bytes(4096))
    with pytest.raises(ValueError, match="no step log"):
        StepLog(path)


class FakeDevice:
    """Events are the GPU's time in ns; the host's clock is 1000 ns ahead."""

    def __init__(self) -> None:
        self.now_ns = 0

    def mark(self) -> int:
        return self.now_ns

    def wait(self, event: int) -> None:
        pass

    def between_ns(self, first: int, second: int) -> int:
        return second - first


def test_a_late_look_does_not_move_the_gpus_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant.time, "monotonic_ns", lambda: 1400)  # the first event was seen 400 late
    clock = GpuClock(cast(Any, FakeDevice()))
    assert clock.reached_ns(100, seen_ns=1900) == 1500
    assert clock.reached_ns(200, seen_ns=1201) == 1201  # seen at once: now the offset is known
    assert clock.reached_ns(300, seen_ns=9000) == 1301


def fake_torch(*steps: list[str]) -> Any:
    """A profiler that shows these names on the GPU, step by step, and a call on the CPU beside them."""
    shown = iter(steps)

    class Profile:
        def __init__(self, activities: object) -> None:
            self._names = next(shown)

        def __enter__(self) -> Profile:
            return self

        def __exit__(self, *exc_info: object) -> None:
            pass

        def events(self) -> list[SimpleNamespace]:
            on_gpu = [
                SimpleNamespace(name=name, device_type="DeviceType.CUDA", is_user_annotation="user" in name)
                for name in self._names
            ]
            return [*on_gpu, SimpleNamespace(name="cudaLaunchKernel", device_type="DeviceType.CPU")]

    members = {name: SimpleNamespace(name=name) for name in ("CPU", "CUDA", "XPU")}
    kinds = SimpleNamespace(__members__=members)
    return SimpleNamespace(profiler=SimpleNamespace(profile=Profile, ProfilerActivity=kinds))


def launches(*steps: list[str]) -> tuple[int | None, str]:
    device = SimpleNamespace(sync=lambda: None)
    return count_launches(fake_torch(*steps), cast(Any, device), lambda: None)


def test_what_the_gpu_ran_is_what_was_launched() -> None:
    step = ["gemm", "softmax", "Memcpy DtoD (Device -> Device)", "Memset (Device)"]
    notes = ["ProfilerStep#1", "Optimizer.step#SGD.step", "a range of the user's"]
    assert launches([*step, *notes], [*step, *notes]) == (4, "profiler")


def test_steps_that_differ_or_cannot_be_seen_are_not_multiplied() -> None:
    count, why = launches(["gemm"], ["gemm", "gemm"])
    assert count is None and "1 and 2" in why
    count, why = launches([], [])
    assert count is None and "saw nothing" in why


def test_a_machine_that_has_everything_lacks_nothing() -> None:
    assert missing(READY, GPUS, None, 1) == []


@pytest.mark.parametrize(
    ("changed", "gpus", "index", "said"),
    [
        ({"torch": None, "is_available": False, "why": "No module"}, GPUS, 0, "pip install torch"),
        ({}, (), 0, "nvidia-smi"),
        ({}, GPUS, 2, "there are 2"),
        ({"is_available": False, "why": "no CUDA"}, GPUS, 0, "a build for CUDA"),
        ({"maps": []}, GPUS, 0, "libcuda.so.1"),
    ],
)
def test_each_missing_thing_is_named_with_its_remedy(
    changed: dict[str, Any], gpus: tuple[Gpu, ...], index: int, said: str
) -> None:
    (line,) = missing({**READY, **changed}, gpus, "not found", index)
    assert said in line


def test_a_python_that_cannot_be_run_is_named() -> None:
    with pytest.raises(HostUnsupported, match="/does/not/exist") as caught:
        look("/does/not/exist", {}, 0)
    assert caught.value.exit_status == 3
    assert "--python" in caught.value.remedy


@pytest.mark.parametrize("kind", tenant.KINDS)
def test_a_tenant_makes_the_steps_it_was_asked_for(tmp_path: Path, kind: str) -> None:
    """The whole program, on a CPU: the model, the loop, the logs and the report."""
    pytest.importorskip("torch", reason="no PyTorch, which only the GPU checks use: pip install torch")
    log, gpu_log, report = tmp_path / "log", tmp_path / "gpu", tmp_path / "report"
    create_log(log)
    create_log(gpu_log)
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu.tenant",
        "--kind",
        kind,
        "--device",
        "cpu",
        "--steps",
        "3",
    ]
    command += ["--log", str(log), "--gpu-log", str(gpu_log), "--report", str(report)]
    command += ["--count", "--width", "64", "--layers", "1", "--threads", "2", "--queue-ms", "1"]
    subprocess.run(command, check=True, cwd=Path(__file__).resolve().parents[3], timeout=240)
    said = json.loads(report.read_text())
    assert said["launches"] == {"spin": SPIN_KERNELS, "graph": 1}.get(kind), said
    assert ("profiler" in said["launches_from"]) == (kind in ("decode", "trainer"))
    assert said["depth"] == (2 if kind == "trainer" else 1)
    for worker in (reader(log), reader(gpu_log)):
        ends = [step.end_ns for step in worker.steps()]
        assert len(ends) == 3 and ends == sorted(ends)
