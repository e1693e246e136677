# SPDX-License-Identifier: Apache-2.0
"""The stand-in libcuda, through small client programs, against the exact truth of the engine."""

from __future__ import annotations

import os
import shutil
import signal
import uuid
from pathlib import Path

from fairsched.simgpu import GpuSpec, SimHost
from tests.support import wait_until
from tests.unit.simgpu.clients import (
    INSIDE_COPIES,
    LAUNCHES,
    NOT_INITIALIZED,
    NOT_READY,
    PEER_COPIES,
    SETS,
    WAITING_COPIES,
)
from tests.unit.simgpu.conftest import Client
from tests.unit.simgpu.mixes import SWITCH_NS


def test_execution_is_the_sum_of_the_kernels_to_the_nanosecond(host, start):
    client: Client = start(host, "exact")
    handle = client.says()["handle"]
    (truth,) = host.truth()
    assert truth.exec_ns == sum(100_000 + i for i in range(100)) + 250_000
    assert truth.kernels == 101
    assert (truth.pid, truth.handle) == (client.pid, handle)
    assert truth.switch_ns == SWITCH_NS


def test_a_stream_waits_for_the_event_of_another_and_a_third_for_nobody(host, start):
    seen = start(host, "events").says()
    assert seen["early"] == [NOT_READY, NOT_READY]
    assert seen["late"] == [0, 0]
    assert seen["a"] >= 20_000
    assert 1_000 <= seen["b"] <= 1_000 + 100, "b starts when a is done"
    assert seen["c"] >= 2_000


def test_the_legacy_stream_is_a_barrier_for_blocking_streams_only(host, start):
    seen = start(host, "legacy").says()
    assert seen["early"] == [NOT_READY, NOT_READY], "the free one is done, the others are not"
    assert seen["legacy"] >= 21_000
    assert seen["second"] >= 22_000


def test_a_graph_is_its_kernels(host, start):
    start(host, "graphs").says()
    (truth,) = host.truth()
    assert truth.kernels == 50
    assert truth.exec_ns == 5_000_000


def test_memory_beyond_the_gpu_is_refused_and_freed_memory_comes_back(host, start):
    client = start(host, "memory")
    seen = client.says()
    assert (seen["half"], seen["too_much"]) == (0, 2)
    assert seen["total"] - seen["free"] == 600 << 20
    assert host.truth()[0].vram_bytes == 600 << 20
    client.go_on()
    assert client.says() == {"again": 0, "unknown": 1}


def test_copies_run_beside_kernels_and_are_not_execution(host, start):
    client = start(host, "copies")
    seen = client.says()
    assert seen["beside"] < 20_000, "1 MB takes 1 ms on the copy engine, the kernel 20 ms"
    assert seen["after"] >= 21_000
    (truth,) = host.truth()
    assert truth.copy_ns == 2 * (1_000_000 + 10_000)
    assert truth.exec_ns == 20_000_000


def test_every_way_to_launch_is_the_kernel_in_the_stream_it_names(host, start):
    seen = start(host, "launches").says()
    (truth,) = host.truth()
    assert truth.exec_ns == sum(LAUNCHES.values()) + 1
    assert truth.kernels == len(LAUNCHES) + 1
    assert seen["held"] == NOT_READY, "none of them waited for a stream that only the legacy one waits for"
    for name, ns in LAUNCHES.items():
        assert seen["took_us"][name] * 1000 >= ns - 100, name


def test_copies_and_memsets_cost_what_they_move_and_those_wait_that_should(host, start):
    seen = start(host, "transfers").says()
    (truth,) = host.truth()
    sizes = [*PEER_COPIES.values(), *WAITING_COPIES.values(), *INSIDE_COPIES.values()]
    assert truth.copy_ns == sum(size + 10_000 for size in sizes)
    assert truth.exec_ns == sum(size // 1_000 + 2_000 for size in SETS.values())
    assert truth.kernels == len(SETS)
    assert seen["left"] == {**dict.fromkeys(WAITING_COPIES, 0), **dict.fromkeys(INSIDE_COPIES, NOT_READY)}


def test_host_functions_and_flags_keep_their_place_in_the_stream(host, start):
    assert start(host, "callbacks").says() == {"seen": [7], "flag": 42, "held": NOT_READY}


def test_a_killed_client_loses_its_queue_and_frees_its_memory(host, start):
    client = start(host, "queued", "100000000")
    client.says()
    wait_until(lambda: host.truth()[0].exec_ns > 0, 30, "it runs")
    os.kill(client.pid, signal.SIGKILL)
    wait_until(lambda: not host.truth()[0].is_alive, 30, "the engine notices")
    (dead,) = host.truth()
    assert 0 < dead.exec_ns < 30_000_000_000
    assert dead.vram_bytes == 0
    assert host.gpu_truth().vram_used_bytes == 0
    assert host.truth()[0].exec_ns == dead.exec_ns == host.gpu_truth().busy_ns


def test_a_stopped_client_s_queue_drains_to_its_end(host, start):
    client = start(host, "queued", "3000000")
    client.says()
    os.kill(client.pid, signal.SIGSTOP)
    wait_until(lambda: host.truth()[0].exec_ns == 900_000_000, 30, "all of it runs")
    assert host.truth()[0].kernels == 300


def test_visible_devices_are_chosen_by_index_or_uuid_and_in_that_order(two_gpus, start):
    bare = [uuid.UUID(u.removeprefix("GPU-")).hex for u in two_gpus.uuids()]
    second_uuid = two_gpus.uuids()[1]

    def seen(visible: str) -> dict[str, object]:
        return start(two_gpus, "devices", CUDA_VISIBLE_DEVICES=visible).says()

    assert start(two_gpus, "devices").says() == {"rc": 0, "uuids": bare}
    assert seen("1,0")["uuids"] == bare[::-1]
    assert seen(second_uuid)["uuids"] == [bare[1]]
    assert seen("0,7,1")["uuids"] == [bare[0]]
    assert seen("")["rc"] == 100


def test_one_process_on_two_gpus_with_an_event_between_them(two_gpus, start):
    client = start(two_gpus, "two_devices")
    assert client.says()["first"] == 0
    first, second = two_gpus.truth()
    assert (first.gpu, second.gpu) == (0, 1)
    assert (first.exec_ns, second.exec_ns) == (10_000_000, 3_000_000)
    assert first.pid == second.pid == client.pid


def test_a_forked_child_must_initialise_and_then_has_contexts_of_its_own(host, start):
    seen = start(host, "forked").says()
    assert seen == {"child": [NOT_INITIALIZED, NOT_INITIALIZED, 0], "parent": 0}
    assert len({truth.pid for truth in host.truth()}) == 2


def test_nothing_works_before_cuinit(host, start):
    seen = start(host, "uninitialised").says()
    assert seen == {"count": NOT_INITIALIZED, "sync": NOT_INITIALIZED, "init": 0}


def test_a_copy_of_the_library_on_another_inode_works_the_same(host, start, tmp_path: Path):
    copy = tmp_path / "compat" / "libcuda.so.550"
    copy.parent.mkdir()
    shutil.copyfile(host.library_dir / "libcuda.so.1", copy)
    start(host, "copy_of_library", str(copy)).says()
    assert host.truth()[0].exec_ns == 1_000_000


def test_without_a_host_there_is_no_device(start):
    with SimHost([GpuSpec()]) as host:
        assert start(host, "devices", FAIRSCHED_SIM_DIR="/nonexistent").says()["rc"] == 100
