# SPDX-License-Identifier: Apache-2.0
"""The host and its tenants: every kind of load works, and nothing outlives its host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fairsched.simgpu import KINDS, PRESETS, GpuSpec, SimGpuError, SimHost, Workload, build, layout
from tests.support import wait_until


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_mirror_has_the_layout_of_the_c_header():
    done = subprocess.run([build().engine, "--layout"], capture_output=True, text=True, check=True)
    offsets = json.loads(done.stdout)
    assert offsets.pop("sim_gpu") == layout.GPU_BYTES
    assert offsets.pop("sim_truth") == layout.ctypes.sizeof(layout.Truth)
    assert offsets.pop("sim_residency") == layout.ctypes.sizeof(layout.Residency)
    tables = {
        "samples": layout.SAMPLES_OFFSET,
        "residencies": layout.RESIDENCIES_OFFSET,
        "truths": layout.TRUTHS_OFFSET,
    }
    for name, offset in offsets.items():
        struct_name, field = name.split(".")
        mirror = layout.Gpu if struct_name == "sim_gpu" else layout.Truth
        assert offset == tables.get(field, getattr(getattr(mirror, field, None), "offset", None)), name


def test_what_is_built_is_built_once():
    first = build()
    stamp = first.engine.stat().st_mtime_ns
    assert build() == first
    assert first.engine.stat().st_mtime_ns == stamp


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_load_makes_steps(host: SimHost, kind: str):
    worker = host.spawn(replace(PRESETS[kind], kernel_us=200, gap_us=100, threads=3, seconds=120))
    wait_until(lambda: worker.step_count() >= 3, 60, "three steps")
    steps = worker.steps()
    assert all(step.tokens == 1 and step.latency_ns > 0 for step in steps)
    assert [s.end_ns for s in steps] == sorted(s.end_ns for s in steps)
    # A step of "nosync" ends when it was submitted: on a busy machine that is before its kernels ran.
    wait_until(lambda: host.truth_of(worker)[0].kernels >= 1, 60, "a kernel of it ran")
    assert worker.stop() == 0


def test_tokens_at_the_edge_of_a_window_count_by_their_part(host: SimHost):
    worker = host.spawn(Workload("decode", kernels=1, kernel_us=20_000, seconds=120))
    wait_until(lambda: worker.step_count() >= 5, 60, "five steps")
    second = worker.steps()[1]
    middle_ns = second.end_ns - second.latency_ns // 2
    assert worker.tokens(middle_ns, second.end_ns) == pytest.approx(0.5, abs=0.01)
    assert worker.tokens(end_ns=second.end_ns) == pytest.approx(2, abs=0.01)


def test_a_group_has_a_process_per_member_and_a_seed_each(host: SimHost):
    group = host.spawn_group(replace(PRESETS["trainer"], processes=3))
    assert len({worker.pid for worker in group}) == 3
    assert {truth.pid for truth in host.truth()} == {worker.pid for worker in group}


def test_nothing_is_left_after_the_block():
    with SimHost() as host:
        worker = host.spawn(PRESETS["nosync"])
        os.kill(worker.pid, signal.SIGSTOP)
        state_dir, engine_pid = host.state_dir, host.engine_pid
    assert not state_dir.exists()
    assert not is_alive(worker.pid)
    assert not is_alive(engine_pid)
    with pytest.raises(SimGpuError):
        host.env()


OWNER = """
import os, signal, sys
from fairsched.simgpu import PRESETS, SimHost
host = SimHost()
host.start()
worker = host.spawn(PRESETS["trainer"])
os.kill(worker.pid, signal.SIGSTOP)
print(host.state_dir, host.engine_pid, worker.pid, flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_after_the_owner_was_killed():
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    state_dir, engine_pid, worker_pid = owner.stdout.readline().decode().split()
    owner.kill()
    owner.communicate()
    wait_until(lambda: not is_alive(int(worker_pid)), 30, "the stopped worker is gone")
    wait_until(lambda: not is_alive(int(engine_pid)), 30, "the engine is gone")
    wait_until(lambda: not Path(state_dir).exists(), 30, "its directory is gone")
    assert not list(Path(state_dir).parent.glob(f"{owner.pid}-*"))


def test_a_client_is_told_when_the_engine_dies(host: SimHost):
    worker = host.spawn(Workload("longkernel", kernels=1, kernel_us=100_000_000))
    os.kill(host.engine_pid, signal.SIGKILL)
    assert worker.process.wait(30) == 1


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path):
    (tmp_path / "precious").write_text("x")
    with pytest.raises(SimGpuError, match="not empty"):
        SimHost([GpuSpec()], state_dir=tmp_path).start()
    assert (tmp_path / "precious").exists()


def test_a_worker_that_cannot_begin_says_so(host: SimHost):
    with pytest.raises(Exception, match="ended with 1 before it began"):
        host.spawn(Workload("decode", device=5))


def test_an_unknown_kind_is_refused_at_once():
    with pytest.raises(ValueError, match="no workload kind"):
        Workload("mining")
