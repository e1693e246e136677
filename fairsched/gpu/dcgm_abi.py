# SPDX-License-Identifier: Apache-2.0
"""The part of libdcgm's binary interface that we use: layouts, version words and codes, and where the library is.

A struct begins with a version word: its size, and the number of its layout in the top 8 bits. Those used here are the
same in DCGM 3.x and 4.x.

Source: dcgm_structs.h, dcgm_fields.h and the Python bindings of NVIDIA/DCGM, 3.3.5 and 4.6.0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from pathlib import Path

LIBRARIES = ("libdcgm.so.4", "libdcgm.so.3")

OK = 0
NO_DATA = -14
NOT_WATCHED = -16
OPERATION_MODE_AUTO = 1
FE_GPU, FE_GPU_I = 1, 4
"""Kinds of entities: a GPU, and a GPU instance as of MIG."""
GROUP_ALL_GPUS, GROUP_ALL_INSTANCES = 0x7FFFFFFF, 0x7FFFFFFD
FLAG_LIVE_DATA = 1
FP64_BLANK = 140737488355328.0
"""This and what is above it stands for the lack of a number."""
INT64_BLANK = 0x7FFFFFFFFFFFFFF0
MAX_DEVICES = 32
_MAX_HIERARCHY = MAX_DEVICES * 14

UUID = 54
GPU_UTIL = 203
GR_ENGINE_ACTIVE = 1001
SM_ACTIVE = 1002

Handle = ctypes.c_size_t


def version_of(struct: type[ctypes.Structure], number: int) -> int:
    """The version word of a layout."""
    return ctypes.sizeof(struct) | number << 24


class ConnectParams(ctypes.Structure):
    """dcgmConnectV2Params_v2."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("persist_after_disconnect", ctypes.c_uint),
        ("timeout_ms", ctypes.c_uint),
        ("address_is_unix_socket", ctypes.c_uint),
    )


class EntityPair(ctypes.Structure):
    """dcgmGroupEntityPair_t."""

    _fields_ = (("entity_group", ctypes.c_uint), ("entity", ctypes.c_uint))


class _Value(ctypes.Union):
    _fields_ = (
        ("i64", ctypes.c_int64),
        ("dbl", ctypes.c_double),
        ("str", ctypes.c_char * 256),
        ("blob", ctypes.c_char * 4096),
    )


class FieldValue(ctypes.Structure):
    """dcgmFieldValue_v2."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("entity_group", ctypes.c_uint),
        ("entity", ctypes.c_uint),
        ("field", ctypes.c_ushort),
        ("type", ctypes.c_ushort),
        ("status", ctypes.c_int),
        ("unused", ctypes.c_uint),
        ("time_us", ctypes.c_int64),
        ("value", _Value),
    )


class VersionInfo(ctypes.Structure):
    """dcgmVersionInfo_v2."""

    _fields_ = (("version", ctypes.c_uint), ("text", ctypes.c_char * 512))


class _HierarchyEntry(ctypes.Structure):
    """dcgmMigHierarchyInfo_v2."""

    _fields_ = (
        ("entity", EntityPair),
        ("parent", EntityPair),
        ("gpu_uuid", ctypes.c_char * 128),
        ("nvml_gpu", ctypes.c_uint),
        ("nvml_instance", ctypes.c_uint),
        ("nvml_compute_instance", ctypes.c_uint),
        ("profile", ctypes.c_uint),
        ("slices", ctypes.c_uint),
    )


class Hierarchy(ctypes.Structure):
    """dcgmMigHierarchy_v2: GPU instances and compute instances of all GPUs."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("entries", _HierarchyEntry * _MAX_HIERARCHY),
    )


CONNECT_PARAMS_VERSION = version_of(ConnectParams, 2)
FIELD_VALUE_VERSION = version_of(FieldValue, 2)
VERSION_INFO_VERSION = version_of(VersionInfo, 2)
HIERARCHY_VERSION = version_of(Hierarchy, 2)

_uint_p = ctypes.POINTER(ctypes.c_uint)
_int_p = ctypes.POINTER(ctypes.c_int)
_ushort_p = ctypes.POINTER(ctypes.c_ushort)
_handle_p = ctypes.POINTER(Handle)

PROTOTYPES: dict[str, tuple[type, ...]] = {
    "dcgmInit": (),
    "dcgmConnect_v2": (ctypes.c_char_p, ctypes.POINTER(ConnectParams), _handle_p),
    "dcgmDisconnect": (Handle,),
    "dcgmStartEmbedded": (ctypes.c_int, _handle_p),
    "dcgmStopEmbedded": (Handle,),
    "dcgmHostengineVersionInfo": (Handle, ctypes.POINTER(VersionInfo)),
    "dcgmGetAllSupportedDevices": (Handle, _uint_p, _int_p),
    "dcgmGetGpuInstanceHierarchy": (Handle, ctypes.POINTER(Hierarchy)),
    "dcgmFieldGroupCreate": (Handle, ctypes.c_int, _ushort_p, ctypes.c_char_p, _handle_p),
    "dcgmWatchFields": (
        Handle,
        Handle,
        Handle,
        ctypes.c_longlong,
        ctypes.c_double,
        ctypes.c_int,
    ),
    "dcgmEntitiesGetLatestValues": (
        Handle,
        ctypes.POINTER(EntityPair),
        ctypes.c_uint,
        _ushort_p,
        ctypes.c_uint,
        ctypes.c_uint,
        ctypes.POINTER(FieldValue),
    ),
}
"""Arguments of the functions that are called; all return a code."""


def candidates(environ: Mapping[str, str], machine: str) -> Iterator[Path]:
    """Where a libdcgm is looked for, in order, as NVIDIA's own bindings do; the newer one first."""
    listed = [Path(item) for item in environ.get("LD_LIBRARY_PATH", "").split(":") if item]
    for name in LIBRARIES:
        for directory in (*listed, Path(f"/usr/lib/{machine}-linux-gnu"), Path("/usr/lib64")):
            yield directory / name


def find_library(environ: Mapping[str, str], machine: str) -> Path | None:
    """The first one that is there."""
    return next((path for path in candidates(environ, machine) if path.is_file()), None)
