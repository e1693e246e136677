# SPDX-License-Identifier: Apache-2.0
"""The stand-in libdcgm: exports, version words and return codes as NVIDIA's has them, for clients that are not ours."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.gpu import dcgm_abi as abi
from fairsched.simgpu import GpuSpec, SimHost, Workload, build
from fairsched.simgpu.hostengine import HostEngine
from tests.support import wait_until
from tests.unit.simgpu.test_libraries import exported_functions

BADPARAM, UNINITIALIZED, VER_MISMATCH, NO_DATA, NOT_WATCHED = -1, -10, -12, -14, -16
CONNECTION_NOT_VALID, DUPLICATE_KEY, PROFILING_NOT_SUPPORTED = -21, -26, -36
UNKNOWN_FIELD, NOT_SUPPORTED = -13, -6
EMBEDDED = ctypes.c_size_t(0x7FFFFFFF)
ALL_GPUS, ALL_INSTANCES = ctypes.c_size_t(0x7FFFFFFF), ctypes.c_size_t(0x7FFFFFFD)
GPU, GPU_INSTANCE, COMPUTE_INSTANCE = 1, 4, 5
PID_INFO, PID_INFO_BYTES, PID_GPU_BYTES = 0x2004528, 17704, 536
FIELD_VALUE_BYTES = 4120


@pytest.fixture
def dcgm(host: SimHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The library, initialised."""
    monkeypatch.setenv("FAIRSCHED_SIM_DIR", str(host.state_dir))
    library = ctypes.CDLL(str(build().dcgm_dir / "libdcgm.so.4"))
    library.errorString.restype = ctypes.c_char_p
    assert library.dcgmInit() == 0
    yield library
    library.dcgmShutdown()


@pytest.fixture
def embedded(dcgm: Any) -> Any:
    handle = ctypes.c_size_t()
    assert dcgm.dcgmStartEmbedded(1, ctypes.byref(handle)) == 0
    assert handle.value == EMBEDDED.value
    return dcgm


def test_exports_are_names_of_dcgm_only() -> None:
    exports = exported_functions(build().dcgm_dir / "libdcgm.so.4")
    assert all(name.startswith(("dcgm", "DcgmFields", "errorString")) for name in exports), exports
    assert len(exports) > 30


def test_it_lies_apart_for_most_hosts_have_none(host: SimHost) -> None:
    assert not list(host.library_dir.glob("libdcgm*"))
    assert str(build().dcgm_dir) not in host.env()["LD_LIBRARY_PATH"]
    assert host.dcgm_env()["LD_LIBRARY_PATH"].startswith(f"{build().dcgm_dir}:")


def test_before_the_beginning_and_after_the_end_nothing_answers(dcgm: Any) -> None:
    dcgm.dcgmShutdown()
    handle = ctypes.c_size_t()
    assert dcgm.dcgmShutdown() == UNINITIALIZED
    assert dcgm.dcgmStartEmbedded(1, ctypes.byref(handle)) == UNINITIALIZED
    assert dcgm.dcgmConnect(b"127.0.0.1:1", ctypes.byref(handle)) == UNINITIALIZED
    assert dcgm.dcgmUpdateAllFields(EMBEDDED, 1) == UNINITIALIZED


@pytest.mark.parametrize(
    ("name", "size", "number"),
    [
        ("dcgmVersionInfo", 516, 2),
        ("dcgmHostengineVersionInfo", 516, 2),
        ("dcgmHostengineIsHealthy", 8, 1),
        ("dcgmGetDeviceAttributes", 5220, 3),
        ("dcgmGroupGetInfo", 8456, 3),
        ("dcgmGroupGetInfo", 776, 2),
        ("dcgmGetPidInfo", PID_INFO_BYTES, 2),
        ("dcgmGetGpuInstanceHierarchy", 8 + 448 * 164, 2),
        ("dcgmStartEmbedded_v2", 72, 1),
    ],
)
def test_a_struct_is_taken_in_its_own_version_and_in_no_other(
    embedded: Any, name: str, size: int, number: int
) -> None:
    before = {
        "dcgmVersionInfo": (),
        "dcgmStartEmbedded_v2": (),
        "dcgmGetDeviceAttributes": (EMBEDDED, 0),
        "dcgmGroupGetInfo": (EMBEDDED, ALL_GPUS),
        "dcgmGetPidInfo": (EMBEDDED, ALL_GPUS),
    }.get(name, (EMBEDDED,))

    def call(version: int) -> int:
        struct = (ctypes.c_uint * ((size + 3) // 4))(version, 1)
        return int(getattr(embedded, name)(*before, struct))

    assert call(size | number << 24) in (0, NO_DATA)
    for wrong in (0, size, size | (number + 1) << 24, (size + 4) | number << 24):
        assert call(wrong) == VER_MISMATCH, hex(wrong)


def test_both_versions_of_connection_parameters_are_taken(dcgm: Any, tmp_path: Path) -> None:
    handle = ctypes.c_size_t()
    with HostEngine("127.0.0.1:0") as tcp, HostEngine(str(tmp_path / "engine")) as local:
        first = (ctypes.c_uint * 2)(8 | 1 << 24, 0)
        assert dcgm.dcgmConnect_v2(tcp.address.encode(), first, ctypes.byref(handle)) == 0
        second = (ctypes.c_uint * 4)(16 | 2 << 24, 0, 1000, 1)
        assert dcgm.dcgmConnect_v2(local.address.encode(), second, ctypes.byref(handle)) == 0
        third = (ctypes.c_uint * 3)(12 | 1 << 24, 0, 1000)
        assert dcgm.dcgmConnect_v3(f"unix://{local.address}".encode(), third, ctypes.byref(handle)) == 0
        assert dcgm.dcgmConnect_v3(local.address.encode(), third, ctypes.byref(handle)) == BADPARAM
        third[0] = 12 | 2 << 24
        assert dcgm.dcgmConnect_v3(b"tcp://h", third, ctypes.byref(handle)) == VER_MISMATCH


def test_a_connection_is_as_alive_as_its_host_engine(dcgm: Any) -> None:
    handle, ids, count = ctypes.c_size_t(), (ctypes.c_uint * 32)(), ctypes.c_int()
    with HostEngine("127.0.0.1:0") as engine:
        assert dcgm.dcgmConnect(engine.address.encode(), ctypes.byref(handle)) == 0
        assert dcgm.dcgmGetAllDevices(handle, ids, ctypes.byref(count)) == 0 and count.value == 1
        engine.stop()
        assert dcgm.dcgmGetAllDevices(handle, ids, ctypes.byref(count)) == CONNECTION_NOT_VALID
        assert dcgm.dcgmConnect(engine.address.encode(), ctypes.byref(handle)) == CONNECTION_NOT_VALID
    assert dcgm.dcgmDisconnect(ctypes.c_size_t(999)) == BADPARAM
    assert dcgm.errorString(CONNECTION_NOT_VALID) == b"Connection is not valid"


def statuses(dcgm: Any, *fields: int, kind: int = GPU) -> list[int]:
    """Of the latest values of fields of the first GPU, or GPU instance."""
    values = (ctypes.c_char * (FIELD_VALUE_BYTES * len(fields)))()
    listed = (ctypes.c_ushort * len(fields))(*fields)
    rc = dcgm.dcgmEntityGetLatestValues(EMBEDDED, kind, 0, listed, len(fields), values)
    if rc:
        return [rc]
    return [ctypes.c_int.from_buffer(values, at + 8).value for at in range(0, len(values), FIELD_VALUE_BYTES)]


def watch(dcgm: Any, name: bytes, *fields: int, of: ctypes.c_size_t = ALL_GPUS) -> int:
    group = ctypes.c_size_t()
    listed = (ctypes.c_ushort * len(fields))(*fields)
    created = dcgm.dcgmFieldGroupCreate(EMBEDDED, len(fields), listed, name, ctypes.byref(group))
    if created:
        return int(created)
    return int(
        dcgm.dcgmWatchFields(EMBEDDED, of, group, ctypes.c_longlong(1_000_000_000), ctypes.c_double(1), 0)
    )


def test_a_field_has_a_value_once_it_is_watched_and_two_looks_have_been(embedded: Any) -> None:
    assert statuses(embedded, 1001, 203, 1091, 40_000) == [
        NOT_WATCHED,
        NOT_WATCHED,
        NOT_SUPPORTED,
        UNKNOWN_FIELD,
    ]
    assert watch(embedded, b"mine", 1001) == 0
    assert watch(embedded, b"mine", 1001) == DUPLICATE_KEY
    assert statuses(embedded, 1001)[0] in (NO_DATA, 0)
    wait_until(
        lambda: (
            embedded.dcgmUpdateAllFields(EMBEDDED, 1) == 0
            and statuses(embedded, 1001, 203) == [0, NOT_WATCHED]
        ),
        30,
        "two looks",
    )


def test_gpu_instances_are_entities_with_the_profiling_fields_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with SimHost([GpuSpec(mig=(3, 2))]) as host:
        monkeypatch.setenv("FAIRSCHED_SIM_DIR", str(host.state_dir))
        library = ctypes.CDLL(str(build().dcgm_dir / "libdcgm.so.4"))
        try:
            assert library.dcgmInit() == 0
            assert library.dcgmStartEmbedded(1, ctypes.byref(ctypes.c_size_t())) == 0
            found = abi.Hierarchy(version=abi.HIERARCHY_VERSION)
            assert library.dcgmGetGpuInstanceHierarchy(EMBEDDED, ctypes.byref(found)) == 0
            said = [
                (
                    one.entity.entity_group,
                    one.entity.entity,
                    one.parent.entity_group,
                    one.nvml_instance,
                    one.slices,
                )
                for one in found.entries[: found.count]
            ]
            assert said == [
                (GPU_INSTANCE, 0, GPU, 1, 3),
                (COMPUTE_INSTANCE, 3, GPU_INSTANCE, 1, 3),
                (GPU_INSTANCE, 1, GPU, 2, 2),
                (COMPUTE_INSTANCE, 4, GPU_INSTANCE, 2, 2),
            ]
            assert found.entries[0].gpu_uuid.decode() == host.uuids()[0]
            assert statuses(library, 1001, kind=COMPUTE_INSTANCE) == [BADPARAM], "not modelled"
            assert statuses(library, 1001, 203, kind=GPU_INSTANCE) == [NOT_WATCHED, NOT_SUPPORTED]
            assert watch(library, b"gpus", 1001) == 0
            assert statuses(library, 1001, kind=GPU_INSTANCE) == [NOT_WATCHED], "all GPUs are no instances"
            assert watch(library, b"instances", 1001, of=ALL_INSTANCES) == 0
            wait_until(
                lambda: (
                    library.dcgmUpdateAllFields(EMBEDDED, 1) == 0
                    and statuses(library, 1001, kind=GPU_INSTANCE) == [0]
                ),
                30,
                "two looks",
            )
        finally:
            library.dcgmShutdown()


def test_without_profiling_its_fields_cannot_be_watched(
    embedded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRSCHED_SIM_DCGM_PROFILING", "off")
    assert watch(embedded, b"both", 203, 1001) == PROFILING_NOT_SUPPORTED
    assert watch(embedded, b"one", 203) == 0


def pid_info(dcgm: Any, pid: int) -> tuple[int, int, float]:
    """(return code, number of GPUs, utilisation of the first in percent)."""
    info = (ctypes.c_char * PID_INFO_BYTES)()
    ctypes.c_uint.from_buffer(info, 0).value = PID_INFO
    ctypes.c_uint.from_buffer(info, 4).value = pid
    rc = dcgm.dcgmGetPidInfo(EMBEDDED, ALL_GPUS, info)
    first = 16 + PID_GPU_BYTES
    return rc, ctypes.c_int.from_buffer(info, 12).value, ctypes.c_double.from_buffer(info, first + 96).value


@pytest.mark.skipif(
    os.geteuid() != 0, reason="the driver's accounting mode takes root: run the tests as root"
)
def test_a_process_has_what_nvmls_accounting_says_once_it_is_watched(embedded: Any, host: SimHost) -> None:
    worker = host.spawn(Workload("trainer", kernels=10, kernel_us=500, depth=40))
    assert pid_info(embedded, worker.pid)[0] == NO_DATA
    watched = embedded.dcgmWatchPidFields(
        EMBEDDED, ALL_GPUS, ctypes.c_longlong(1_000_000), ctypes.c_double(10), 0
    )
    assert watched == 0
    wait_until(lambda: pid_info(embedded, worker.pid)[2] > 50, 60, "it was sampled")
    assert pid_info(embedded, worker.pid)[:2] == (0, 1)
    assert pid_info(embedded, 1)[0] == NO_DATA
