# SPDX-License-Identifier: Apache-2.0
"""The client of DCGM on the stand-in libdcgm: where it connects, what it reads, and host engines that die or hang."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.base import beside
from fairsched.gpu import dcgm_abi as abi
from fairsched.gpu.dcgm import EMBEDDED, DcgmReader, _load_of
from fairsched.gpu.loads import LoadError, LoadWatch
from fairsched.simgpu import GpuSpec, SimHost, Workload, build
from fairsched.simgpu.hostengine import HostEngine
from tests.support import let_run, wait_until

PATIENCE_S = 30.0
HOUR_S = 3600.0


@pytest.fixture(scope="module")
def library() -> Path:
    return build().dcgm_dir / "libdcgm.so.4"


@pytest.fixture
def host() -> Iterator[SimHost]:
    with SimHost([GpuSpec(name="one"), GpuSpec(name="two")]) as host:
        yield host


@pytest.fixture
def read_from(
    host: SimHost, library: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., DcgmReader]]:
    """read_from(address, ...) -> a reader; it is closed, and the library forgets the GPUs, in the end."""
    monkeypatch.setenv("FAIRSCHED_SIM_DIR", str(host.state_dir))
    monkeypatch.setattr("fairsched.gpu.dcgm.PERIOD_US", 50_000)
    with contextlib.ExitStack() as stack:
        stack.callback(ctypes.CDLL(str(library)).dcgmShutdown)

        def begin(*addresses: str) -> DcgmReader:
            reader = DcgmReader(library, lambda: addresses)
            stack.callback(reader.close)
            return reader

        yield begin


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[HostEngine]:
    with HostEngine(str(tmp_path / "engine")) as engine:
        yield engine


RESPLIT = """
from ctypes import byref, c_uint
import pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
found, count = (n.c_nvmlGpuInstance_t * 7)(), c_uint(7)
n.nvmlDeviceGetGpuInstances(gpu, 14, found, byref(count))
parts, many = (n.c_nvmlComputeInstance_t * 7)(), c_uint(7)
n.nvmlGpuInstanceGetComputeInstances(found[0], 1, parts, byref(many))
n.nvmlComputeInstanceDestroy(parts[0])
n.nvmlGpuInstanceDestroy(found[0])
n.nvmlGpuInstanceCreateComputeInstance(n.nvmlDeviceCreateGpuInstance(gpu, 19), 0)
"""


def resplit(host: SimHost) -> None:
    """The 2g instance becomes a 1g, with a number of its own."""
    done = subprocess.run(
        [sys.executable, "-c", RESPLIT], env={**os.environ, **host.env()}, capture_output=True
    )
    assert done.returncode == 0, done.stderr


def read_loads(reader: DcgmReader) -> dict[str, float]:
    """By UUID, once all are known."""
    found: dict[str, float] = {}

    def is_known() -> bool:
        found.update({uuid: load.active_ratio for uuid, load in reader.read().items()})
        return len(found) == 2

    wait_until(is_known, PATIENCE_S, "the loads are known")
    return found


# ---- where it connects ----


def test_a_unix_socket_a_tcp_address_and_an_engine_of_our_own_are_the_same(
    read_from: Callable[..., DcgmReader], host: SimHost, engine: HostEngine
) -> None:
    with HostEngine("127.0.0.1:0") as tcp:
        for address in (engine.address, f"unix://{engine.address}", tcp.address, EMBEDDED):
            reader = read_from(address)
            assert set(read_loads(reader)) == set(host.uuids())
            assert ("embedded" if address == EMBEDDED else address) in reader.where
            assert reader.where.endswith("DCGM 4.6.0")
            reader.close()


def test_the_next_address_is_taken_where_the_first_does_not_answer(
    read_from: Callable[..., DcgmReader], tmp_path: Path
) -> None:
    reader = read_from(str(tmp_path / "nobody"), EMBEDDED)
    assert read_loads(reader) and reader.where.startswith("embedded")


def test_nobody_there_is_said_with_the_address_and_the_code(
    read_from: Callable[..., DcgmReader], tmp_path: Path
) -> None:
    path = str(tmp_path / "nobody")
    with pytest.raises(LoadError, match=rf"{path}: dcgmConnect_v2: .* \(-21\)"):
        read_from(path).read()


def test_without_an_address_nobody_is_asked(read_from: Callable[..., DcgmReader]) -> None:
    with pytest.raises(LoadError, match="no host engine of the system"):
        read_from().read()


def test_the_connection_begins_anew_where_another_address_is_told(
    host: SimHost, library: Path, engine: HostEngine, read_from: Callable[..., DcgmReader]
) -> None:
    addresses = [EMBEDDED]
    reader = DcgmReader(library, lambda: tuple(addresses))
    try:
        assert read_loads(reader) and reader.where.startswith("embedded")
        addresses.insert(0, engine.address)
        assert read_loads(reader) and engine.address in reader.where
    finally:
        reader.close()


@pytest.mark.parametrize("name", abi.LIBRARIES)
def test_the_library_is_found_as_nvidias_bindings_find_it(tmp_path: Path, library: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "lib").mkdir()
    shutil.copy(library, tmp_path / "lib" / name)
    environ = {"LD_LIBRARY_PATH": f"{tmp_path}/empty::{tmp_path}/lib"}
    assert abi.find_library(environ, "no-machine") == tmp_path / "lib" / name


def test_the_newer_library_is_taken_wherever_it_is() -> None:
    paths = list(abi.candidates({"LD_LIBRARY_PATH": "/first"}, "x86_64"))
    assert [str(path) for path in paths] == [
        "/first/libdcgm.so.4",
        "/usr/lib/x86_64-linux-gnu/libdcgm.so.4",
        "/usr/lib64/libdcgm.so.4",
        "/first/libdcgm.so.3",
        "/usr/lib/x86_64-linux-gnu/libdcgm.so.3",
        "/usr/lib64/libdcgm.so.3",
    ]


def test_a_file_that_is_no_libdcgm_is_said(tmp_path: Path) -> None:
    (tmp_path / "libdcgm.so.4").write_bytes(b"\x7fELF of no use")
    for path in (tmp_path / "libdcgm.so.4", build().library_dir / "libnvidia-ml.so.1"):
        with pytest.raises(LoadError, match="cannot be used"):
            DcgmReader(path, lambda: (EMBEDDED,)).read()


# ---- what it reads ----


def test_the_load_is_that_of_the_gpu_and_an_idle_one_is_at_zero(
    read_from: Callable[..., DcgmReader], host: SimHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairsched.gpu.dcgm.PERIOD_US", 1_000_000)
    host.spawn(Workload("decode", kernels=10, kernel_us=1000, gap_us=10_000))
    reader = read_from(EMBEDDED)
    reader.read()
    before = host.gpu_truth(0)
    let_run(2.5)
    load = reader.read()
    after = host.gpu_truth(0)
    truth = (after.busy_ns - before.busy_ns) / (after.as_of_ns - before.as_of_ns)
    busy, idle = (load[uuid] for uuid in host.uuids())
    # The last of two periods, on a machine with other work.
    assert 0.05 < truth < 0.95 and busy.active_ratio == pytest.approx(truth, abs=0.25)
    assert (idle.active_ratio, idle.what) == (0.0, "GR_ENGINE_ACTIVE")
    assert busy.sm_active_ratio == pytest.approx(0.8 * busy.active_ratio)
    assert 0.0 <= time.monotonic() - busy.at_s < PATIENCE_S


def test_without_profiling_the_utilisation_stands_in(
    read_from: Callable[..., DcgmReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRSCHED_SIM_DCGM_PROFILING", "off")
    reader = read_from(EMBEDDED)
    read_loads(reader)
    assert {load.what for load in reader.read().values()} == {"GPU_UTIL"}
    assert "without profiling counters" in reader.where


def test_a_gpu_that_is_lost_has_no_load(read_from: Callable[..., DcgmReader], host: SimHost) -> None:
    reader = read_from(EMBEDDED)
    read_loads(reader)
    host.close()
    assert reader.read() == {}


# ---- MIG ----


@pytest.fixture
def split_host(monkeypatch: pytest.MonkeyPatch, library: Path) -> Iterator[SimHost]:
    """One GPU in MIG mode with two instances."""
    with SimHost([GpuSpec(mig=(3, 2))]) as host, contextlib.ExitStack() as stack:
        monkeypatch.setenv("FAIRSCHED_SIM_DIR", str(host.state_dir))
        stack.callback(ctypes.CDLL(str(library)).dcgmShutdown)
        yield host


def test_the_load_of_each_gpu_instance_is_told_by_its_name(split_host: SimHost, library: Path) -> None:
    uuid, busy = split_host.uuids()[0], split_host.mig_uuids()[1]
    split_host.spawn(
        Workload("trainer", kernels=10, kernel_us=1000, depth=8), env={"CUDA_VISIBLE_DEVICES": busy}
    )
    reader = DcgmReader(library, lambda: (EMBEDDED,))
    try:
        loads = {}

        def is_known() -> bool:
            loads.update(reader.read())
            return loads.get(f"{uuid}/2") is not None and loads[f"{uuid}/2"].active_ratio > 0.5

        wait_until(is_known, PATIENCE_S, "the load of the second is known")
        assert loads[f"{uuid}/1"].active_ratio == 0.0 and loads[f"{uuid}/1"].what == "GR_ENGINE_ACTIVE"
    finally:
        reader.close()


def test_after_a_new_split_the_instances_are_watched_anew(
    split_host: SimHost, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairsched.gpu.dcgm.PERIOD_US", 50_000)
    uuid = split_host.uuids()[0]
    reader = DcgmReader(library, lambda: (EMBEDDED,))
    try:
        wait_until(lambda: f"{uuid}/1" in reader.read(), PATIENCE_S, "the load is known")
        resplit(split_host)
        wait_until(
            lambda: f"{uuid}/3" in (names := reader.read()) and f"{uuid}/2" not in names,
            PATIENCE_S,
            "of the new",
        )
    finally:
        reader.close()


def test_without_profiling_no_instance_has_a_load_and_gpus_are_read(
    split_host: SimHost, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRSCHED_SIM_DCGM_PROFILING", "off")
    monkeypatch.setattr("fairsched.gpu.dcgm.PERIOD_US", 50_000)
    reader = DcgmReader(library, lambda: (EMBEDDED,))
    try:
        wait_until(lambda: set(reader.read()) == set(split_host.uuids()), PATIENCE_S, "the GPU's is known")
    finally:
        reader.close()


@pytest.mark.parametrize("version", [abi.version_of(abi.Hierarchy, 3), 0])
def test_a_host_engine_that_knows_no_instances_tells_of_whole_gpus(
    read_from: Callable[..., DcgmReader], host: SimHost, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abi, "HIERARCHY_VERSION", version)
    assert set(read_loads(read_from(EMBEDDED))) == set(host.uuids())


# ---- versions ----


def test_connection_parameters_of_another_version_are_refused(
    read_from: Callable[..., DcgmReader], engine: HostEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abi, "CONNECT_PARAMS_VERSION", abi.version_of(abi.ConnectParams, 9))
    with pytest.raises(LoadError, match=r"dcgmConnect_v2: Version mismatch \(-12\)"):
        read_from(engine.address).read()


def test_values_of_another_layout_are_not_read(
    read_from: Callable[..., DcgmReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abi, "FIELD_VALUE_VERSION", abi.version_of(abi.FieldValue, 3))
    with pytest.raises(LoadError, match="0x2001020, and 0x3001020 is understood"):
        read_from(EMBEDDED).read()


# ---- host engines that die, come back, hang ----


def test_a_host_engine_that_dies_is_said_and_one_that_comes_back_is_watched_anew(
    read_from: Callable[..., DcgmReader], engine: HostEngine
) -> None:
    reader = read_from(engine.address)
    read_loads(reader)
    engine.stop()
    with pytest.raises(LoadError, match=r"\(-21\)"):
        reader.read()
    with pytest.raises(LoadError, match="dcgmConnect_v2"):
        reader.read()
    engine.start()
    assert read_loads(reader)


def test_a_restart_between_two_readings_costs_one_of_them(
    read_from: Callable[..., DcgmReader], engine: HostEngine
) -> None:
    reader = read_from(engine.address)
    read_loads(reader)
    engine.stop()
    engine.start()
    with pytest.raises(LoadError, match=r"\(-21\)"):
        reader.read()
    assert read_loads(reader)


def test_an_engine_that_forgot_our_watches_is_asked_anew(
    read_from: Callable[..., DcgmReader], library: Path
) -> None:
    reader = read_from(EMBEDDED)
    read_loads(reader)
    assert ctypes.CDLL(str(library)).dcgmUnwatchFields(ctypes.c_size_t(0x7FFFFFFF), 0x7FFFFFFF, 1) == 0
    with pytest.raises(LoadError, match="forgotten"):
        reader.read()
    assert read_loads(reader)


def test_nobody_waits_for_a_host_engine_that_hangs(
    read_from: Callable[..., DcgmReader],
    engine: HostEngine,
    host: SimHost,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = LoadWatch([read_from(engine.address)], host.uuids(), poll_s=0.05)
    try:
        assert watch.wait_live(PATIENCE_S)
        engine.hang()
        begun_s = time.monotonic()
        wait_until(lambda: (age_s := watch.age_s(0)) is None or age_s > 0.2, PATIENCE_S, "it has no news")
        watch.load(0)
        monkeypatch.setattr("fairsched.gpu.loads.STALE_PERIODS", 0)
        assert watch.load(0) is None and not watch.is_live
        assert time.monotonic() - begun_s < PATIENCE_S
        monkeypatch.setattr(beside, "_CLOSE_S", 0.01)
        watch.close()
    finally:
        engine.stop()
        wait_until(lambda: not watch._poller._thread.is_alive(), PATIENCE_S, "the call has returned")


def value(field: int, status: int, ratio: float) -> abi.FieldValue:
    """Of GPU 0, now."""
    found = abi.FieldValue(field=field, status=status, time_us=int(time.time() * 1e6))
    if field == abi.GPU_UTIL:
        found.value.i64 = round(100 * ratio)
    else:
        found.value.dbl = ratio
    return found


@pytest.mark.parametrize(
    ("active", "expected"),
    [
        ((0, 0.25), (0.25, "GR_ENGINE_ACTIVE")),
        ((abi.NO_DATA, abi.FP64_BLANK), None),  # its first period is not over
        ((-36, abi.FP64_BLANK), (0.75, "GPU_UTIL")),  # a profiler has taken the counters
        ((0, abi.FP64_BLANK + 2), None),
        ((0, -0.5), None),
        ((0, 1.0001), (1.0, "GR_ENGINE_ACTIVE")),
    ],
)
def test_a_blank_is_never_a_number_and_the_utilisation_stands_in_for_counters_that_were_taken(
    active: tuple[int, float], expected: tuple[float, str] | None
) -> None:
    values = {
        abi.GR_ENGINE_ACTIVE: value(abi.GR_ENGINE_ACTIVE, *active),
        abi.GPU_UTIL: value(abi.GPU_UTIL, 0, 0.75),
    }
    load = _load_of(values)
    assert (None if load is None else (load.active_ratio, load.what)) == expected
