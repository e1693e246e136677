# SPDX-License-Identifier: Apache-2.0
"""Every MIG instance is a GPU of its own, and slots are never another's; NVML is the simulated GPU's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fairsched.bpf import abi
from fairsched.cli.status_text import Detail, _gpu_lines
from fairsched.cli.text import gpu_index, gpu_name, short_uuid
from fairsched.gpu.nvml import MAX_SLOTS, ONLY_MIG, Gpu, Mig, Nvml
from fairsched.gpu.sampler import open_readers
from fairsched.observe.gpus import changes
from fairsched.protocol.status import GpuStatus
from fairsched.simgpu import PRESETS, GpuSpec, SimHost, Workload
from tests.support import wait_until

CODE = """
import json, sys
from ctypes import byref, c_uint
import pynvml as n
from fairsched.gpu.nvml import Nvml
from fairsched.gpu.sampler import open_readers
nvml = Nvml()
said = []
def tell():
    said.append([nvml.refresh(), [[g.uuid, g.index, g.is_gone, g.mig and [g.mig.gpu_instance, g.mig.profile],
                 g.memory_total_bytes >> 30] for g in nvml.gpus], nvml.obstacle, nvml.has_mig,
                 sorted(map(list, nvml.listed())), [nvml.load(s) for s in range(len(nvml.gpus))],
                 [type(r).__name__ for r in open_readers(nvml)]])
tell()
gpu = n.nvmlDeviceGetHandleByIndex(0)
found, count = (n.c_nvmlGpuInstance_t * 7)(), c_uint(7)
n.nvmlDeviceGetGpuInstances(gpu, 14, found, byref(count))
parts, many = (n.c_nvmlComputeInstance_t * 7)(), c_uint(7)
n.nvmlGpuInstanceGetComputeInstances(found[0], 1, parts, byref(many))
try:
    n.nvmlComputeInstanceDestroy(parts[0])
    said.append("destroyed")
except n.NVMLError as error:
    said.append(str(error))
if sys.argv[1:]:
    tell()
print(json.dumps(said))
"""


def ask(host: SimHost, *again: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *again],
        env={**os.environ, **host.env()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def test_instances_are_gpus_and_a_gpu_in_mig_mode_is_none() -> None:
    with SimHost([GpuSpec(vram_bytes=40 << 30, mig=(3, 2)), GpuSpec(vram_bytes=8 << 30)]) as host:
        first, second = host.mig_uuids()
        whole = host.uuids()[1]
        worker = host.spawn(PRESETS["decode"], env={"CUDA_VISIBLE_DEVICES": second})
        (changed, gpus, obstacle, has_mig, listed, loads, readers), refused = ask(host)
        assert gpus == [
            [first, 0, False, [1, "3g.20gb"], 20],
            [second, 0, False, [2, "2g.10gb"], 10],
            [whole, 1, False, None, 8],
        ]
        assert (changed, obstacle, has_mig) == (False, None, True)
        assert listed == [[worker.pid, 1]], "NVML tells on which instance a process is"
        assert loads[:2] == [None, None] and loads[2] is not None
        assert readers == ["NoReader", "NoReader", "NvmlReader"]
        assert refused == "In use by another client"


def test_what_is_gone_keeps_its_slot_and_what_is_new_gets_another() -> None:
    with SimHost([GpuSpec(vram_bytes=40 << 30, mig=(3, 2))]) as host:
        first, second = host.mig_uuids()
        before, destroyed, after = ask(host, "again")
        assert before[2] == ONLY_MIG and destroyed == "destroyed"
        assert after[0], "it is noticed"
        assert [[gpu[0], gpu[2]] for gpu in after[1]] == [[first, False], [second, True]]


@pytest.mark.parametrize("slices", [(7,), (1,) * 7])
def test_all_of_a_gpu_may_be_given_out(slices: tuple[int, ...]) -> None:
    with SimHost([GpuSpec(vram_bytes=80 << 30, mig=slices)]) as host:
        assert len(set(host.mig_uuids())) == len(slices)


def test_a_part_of_a_gpu_has_that_part_of_its_speed() -> None:
    load = Workload("trainer", kernels=2, kernel_us=500)
    with SimHost([GpuSpec(mig=(4, 1))]) as host:
        for uuid in host.mig_uuids():
            host.spawn(load, env={"CUDA_VISIBLE_DEVICES": uuid})
        wait_until(lambda: all(one.kernels >= 20 for one in host.truth()), 20, "both have run some")
        for one, slices in zip(host.truth(), (4, 1), strict=True):
            each_ns = 500_000 * 7 / slices
            assert one.kernels * each_ns - 1000 <= one.exec_ns <= (one.kernels + 1) * each_ns


def fake(*gpus: Gpu) -> Nvml:
    found = Nvml.__new__(Nvml)
    found.gpus, found._handles, found._count = (), [], 1
    found._take_in([(gpu, object()) for gpu in gpus])
    return found


def part(number: int) -> Gpu:
    return Gpu(f"MIG-{number:08x}-0000-0000-0000-000000000000", 0, "A MIG 1g.5gb", 1, Mig("GPU-a", number, 0))


def test_there_are_as_many_slots_as_bpf_has_and_what_is_beyond_is_counted() -> None:
    assert MAX_SLOTS == abi.MAX_SLOTS
    nvml = fake(*(part(number) for number in range(MAX_SLOTS + 3)))
    assert (len(nvml.gpus), nvml.left_out) == (MAX_SLOTS, 3)


def test_an_instance_that_comes_back_has_its_slot_again() -> None:
    nvml = fake(part(1), part(2))
    nvml._take_in([(part(2), object()), (part(3), object())])
    assert [gpu.is_gone for gpu in nvml.gpus] == [True, False, False]
    assert nvml.handle(0) is None
    before = nvml.gpus
    nvml._take_in([(part(1), object()), (part(3), object())])
    assert [gpu.is_gone for gpu in nvml.gpus] == [False, True, False]
    assert [(slot, gpu.is_gone) for slot, gpu in changes(before, nvml.gpus)] == [(0, False), (1, True)]
    same = nvml.gpus
    nvml._take_in([(part(1), object()), (part(3), object())])
    assert nvml.gpus is same, "another tuple is news"


@pytest.mark.parametrize("code", [15, 999])
def test_an_error_is_no_news(code: int) -> None:
    """A GPU that does not answer has not lost its instances."""

    class NVMLError(Exception):
        value = code

    def refuse(*_args: Any) -> Any:
        raise NVMLError

    nvml = _with_mig(fake(part(1)))
    nvml._nvml = SimpleNamespace(NVMLError=NVMLError, nvmlDeviceGetHandleByIndex=refuse)
    before, handle = nvml.gpus, nvml.handle(0)
    assert nvml.refresh() is False
    assert nvml.gpus is before and nvml.handle(0) is handle and nvml.has_mig


def test_a_gpu_that_was_split_is_so_while_its_mode_is_not_told() -> None:
    """Or its instances are gone for a second, and with them all work on them; without MIG no answer is none."""

    class NVMLError(Exception):
        value = 999

    def refuse(*_args: Any) -> Any:
        raise NVMLError

    split, whole = part(1), Gpu("GPU-b", 1)
    nvml = _with_mig(fake(split, whole))
    nvml._count = 2
    nvml._nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMigMode=refuse,
        nvmlDeviceGetUUID=lambda handle: "GPU-a" if handle == 0 else "GPU-b",
        nvmlDeviceGetMaxMigDeviceCount=lambda _handle: 1,
        nvmlDeviceGetMigDeviceHandleByIndex=lambda _handle, _number: "instance",
    )
    nvml._describe = lambda index, *_: (split, whole)[index]  # type: ignore[method-assign]
    before = nvml.gpus
    assert nvml.refresh() is False
    assert nvml.gpus is before and nvml.has_mig


def test_the_uuid_of_an_old_driver_has_no_bytes_and_a_short_name() -> None:
    old = "MIG-GPU-5f2c1a90-0000-0000-0000-000000000000/1/0"
    assert Gpu(old).uuid_bytes is None and short_uuid(old) == "MIG-5f2c1a90/1/0"
    assert part(1).uuid_bytes == bytes.fromhex("00000001" + "0" * 24)


def test_readers_are_none_of_instances() -> None:
    assert all(one.read(0) == [] for one in open_readers(fake(part(1))))
    assert _with_mig(fake(part(1))).obstacle == ONLY_MIG


def _with_mig(nvml: Nvml) -> Nvml:
    nvml.error, nvml._splits = None, {0: True}
    return nvml


def test_status_and_top_name_an_instance_by_its_parts() -> None:
    whole = GpuStatus("GPU-5f2c1a90-1", 0, "NVIDIA A100", 0.5)
    split = GpuStatus("MIG-5f2c1a90-1", 1, "A MIG 3g.20gb", 0.5, None, 1 << 30, 20 << 30, parent_uuid="GPU-b")
    split = replace(split, gpu_instance=2, compute_instance=0, mig_profile="3g.20gb")
    assert [gpu_index(one) for one in (whole, split)] == ["0", "1/2/0"]
    assert [gpu_name(one) for one in (whole, split)] == ["NVIDIA A100", "MIG 3g.20gb"]
    (line,) = _gpu_lines([split], Detail.FULL)
    assert line.startswith("GPU 1/2/0 MIG-5f2c1a90 MIG 3g.20gb") and len(line) <= 80
    lines = _gpu_lines([split] * 7, Detail.TABLE)
    assert "GPU 1/2/0 busy" in lines[0] and all(len(one) <= 80 for one in lines)
