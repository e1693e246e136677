# SPDX-License-Identifier: Apache-2.0
"""Reads the load of the GPUs from NVIDIA's DCGM through libdcgm.so, 3.x or 4.x.

Problem. DCGM's numbers per process are NVML's accounting and samples under another name (dcgmGetPidInfo), so they
attribute no better, and watching them would switch the driver's accounting mode on. They are not asked for. What NVML
does not have is the part of the time in which a GPU's engine was active.

Approach. Connect to the host engine that runs, else start one in this process; watch GR_ENGINE_ACTIVE, SM_ACTIVE and
GPU_UTIL of all GPUs at a period of one second; take the latest values. Where counters for profiling cannot be had
(GPUs for desktops, a profiler that has them), GPU_UTIL stands in: the part of a sixth of a second to a second in
which a kernel ran. GPU instances, as of MIG, are entities of their own (FE_GPU_I) and have the profiling fields
only; they are watched apart, so that whole GPUs are read where instances cannot be. Which there are is asked at each
reading: after a new split all begins anew. Any failure closes the connection, and the next reading begins anew: a host
engine that was restarted knows no watches. By ctypes, because NVIDIA's own bindings come with DCGM, one set for each
major version.

Calls may block for as long as a host engine that hangs lets them: only a thread beside the loop may read.

Errors: LoadError with the call, DCGM's word for the code, and the code. Source: :mod:`fairsched.gpu.dcgm_abi`.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairsched.gpu import dcgm_abi as abi
from fairsched.gpu.loads import DeviceLoad, LoadError

EMBEDDED = "embedded"
PERIOD_US = 1_000_000
_KEEP_S = 10.0
_CONNECT_TIMEOUT_MS = 2000
_ALL_FIELDS = (abi.GR_ENGINE_ACTIVE, abi.SM_ACTIVE, abi.GPU_UTIL)
_UNPROFILED_FIELDS = (abi.GPU_UTIL,)
_INSTANCE_FIELDS = (abi.GR_ENGINE_ACTIVE, abi.SM_ACTIVE)
_Entity = tuple[int, int]
"""Kind and number."""

_numbers = itertools.count()
"""For names of groups, which are unique on a host engine."""


class DcgmReader:
    """One client of DCGM.

    ``addresses`` tells where to connect, in order: HOST[:PORT], /path or unix:///path of a socket, or EMBEDDED. When it
    tells something else than before, the connection begins anew.
    """

    name = "dcgm"
    period_s = PERIOD_US / 1e6

    def __init__(self, library: Path, addresses: Callable[[], tuple[str, ...]]) -> None:
        self._path, self._addresses = library, addresses
        self._tried: tuple[str, ...] = ()
        self._library: Any = None
        self._handle: abi.Handle | None = None
        self._address = ""
        self._uuids: dict[int, str] = {}
        """By DCGM's number of the GPU."""
        self._instances: dict[int, str] = {}
        """Names of GPU instances (see :attr:`Gpu.load_name`) by DCGM's number."""
        self._watched: frozenset[int] = frozenset()
        """Those of them that are watched."""
        self._fields: tuple[int, ...] = ()
        self._version = ""

    @property
    def where(self) -> str:
        """Which host engine answers."""
        engine = "embedded" if self._address == EMBEDDED else f"host engine at {self._address}"
        version = f", DCGM {self._version}" if self._version else ""
        limit = "" if self._fields == _ALL_FIELDS else ", without profiling counters"
        return f"{engine}{version}{limit}"

    def read(self) -> Mapping[str, DeviceLoad]:
        """Loads by GPU UUID, and by the name of each GPU instance. Raises LoadError."""
        if self._handle is not None and self._addresses() != self._tried:
            self.close()
        try:
            if self._handle is not None and self._named_instances() != self._instances:
                self.close()
            if self._handle is None:
                self._connect()
            values = self._latest([(abi.FE_GPU, gpu) for gpu in self._uuids], self._fields)
            values |= self._latest([(abi.FE_GPU_I, one) for one in sorted(self._watched)], _INSTANCE_FIELDS)
            names = {(abi.FE_GPU, gpu): uuid for gpu, uuid in self._uuids.items()}
            names |= {(abi.FE_GPU_I, one): name for one, name in self._instances.items()}
            return {
                names[entity]: load
                for entity, found in values.items()
                if entity in names and (load := _load_of(found)) is not None
            }
        except LoadError:
            self.close()
            raise

    def close(self) -> None:
        """Disconnect, or stop the host engine in this process."""
        handle, self._handle = self._handle, None
        if handle is not None:
            is_embedded = self._address == EMBEDDED
            (self._library.dcgmStopEmbedded if is_embedded else self._library.dcgmDisconnect)(handle)

    # ---- beginning ----

    def _connect(self) -> None:
        if self._library is None:
            self._library = _load(self._path)
        self._call("dcgmInit")
        refusals = []
        self._tried = self._addresses()
        for address in self._tried:
            try:
                self._handle, self._address = self._open(address), address
                break
            except LoadError as error:
                refusals.append(f"{address}: {error}")
        else:
            raise LoadError("; ".join(refusals) or "no host engine of the system listens")
        self._version = self._engine_version()
        self._uuids = self._named_gpus()
        self._fields = self._watch()
        self._instances = self._named_instances()
        self._watched = self._watch_instances()

    def _open(self, address: str) -> abi.Handle:
        handle = abi.Handle()
        if address == EMBEDDED:
            self._call("dcgmStartEmbedded", abi.OPERATION_MODE_AUTO, ctypes.byref(handle))
            return handle
        path = address.removeprefix("unix://")
        params = abi.ConnectParams(
            version=abi.CONNECT_PARAMS_VERSION,
            timeout_ms=_CONNECT_TIMEOUT_MS,
            address_is_unix_socket=int(path.startswith("/")),
        )
        self._call("dcgmConnect_v2", path.encode(), ctypes.byref(params), ctypes.byref(handle))
        return handle

    def _engine_version(self) -> str:
        info = abi.VersionInfo(version=abi.VERSION_INFO_VERSION)
        self._call("dcgmHostengineVersionInfo", self._handle, ctypes.byref(info))
        pairs = (item.partition(":") for item in bytes(info.text).decode(errors="replace").split(";"))
        return next((value for key, _, value in pairs if key == "version"), "")

    def _named_gpus(self) -> dict[int, str]:
        ids, count = (ctypes.c_uint * abi.MAX_DEVICES)(), ctypes.c_int()
        self._call("dcgmGetAllSupportedDevices", self._handle, ids, ctypes.byref(count))
        self._uuids = dict.fromkeys(ids[: max(0, min(count.value, abi.MAX_DEVICES))], "")
        named = {}
        gpus = [(abi.FE_GPU, gpu) for gpu in self._uuids]
        for (_, gpu), found in self._latest(gpus, (abi.UUID,), abi.FLAG_LIVE_DATA).items():
            value = found.get(abi.UUID)
            if value is not None and value.status == abi.OK:
                named[gpu] = bytes(value.value.str).decode(errors="replace")
        return named

    def _named_instances(self) -> dict[int, str]:
        hierarchy = abi.Hierarchy(version=abi.HIERARCHY_VERSION)
        try:
            self._call("dcgmGetGpuInstanceHierarchy", self._handle, ctypes.byref(hierarchy))
        except LoadError:
            return {}  # this host engine does not know of them: whole GPUs are read
        entries = hierarchy.entries[: min(hierarchy.count, len(hierarchy.entries))]
        return {
            one.entity.entity: f"{self._uuids[one.parent.entity]}/{one.nvml_instance}"
            for one in entries
            if one.entity.entity_group == abi.FE_GPU_I and one.parent.entity in self._uuids
        }

    def _watch(self) -> tuple[int, ...]:
        """Which fields are watched. Raises LoadError when not even the utilisation can be."""
        try:
            self._watch_fields(abi.GROUP_ALL_GPUS, _ALL_FIELDS)
        except LoadError:
            self._watch_fields(abi.GROUP_ALL_GPUS, _UNPROFILED_FIELDS)
            return _UNPROFILED_FIELDS
        return _ALL_FIELDS

    def _watch_instances(self) -> frozenset[int]:
        """Which instances are watched: all, or none where their counters cannot be had."""
        if not self._instances:
            return frozenset()
        try:
            self._watch_fields(abi.GROUP_ALL_INSTANCES, _INSTANCE_FIELDS)
        except LoadError:
            return frozenset()
        return frozenset(self._instances)

    def _watch_fields(self, watched: int, fields: Sequence[int]) -> None:
        group, name = abi.Handle(), f"fairsched-{os.getpid()}-{next(_numbers)}"
        listed = (ctypes.c_ushort * len(fields))(*fields)
        self._call(
            "dcgmFieldGroupCreate", self._handle, len(fields), listed, name.encode(), ctypes.byref(group)
        )
        self._call("dcgmWatchFields", self._handle, watched, group, PERIOD_US, _KEEP_S, 0)

    # ---- asking ----

    def _latest(
        self, entities: Sequence[_Entity], fields: Sequence[int], flags: int = 0
    ) -> dict[_Entity, dict[int, abi.FieldValue]]:
        """By entity and field. Raises LoadError, also where the library has other layouts than ours."""
        if not entities:
            return {}
        pairs = (abi.EntityPair * len(entities))(*(abi.EntityPair(*one) for one in entities))
        listed = (ctypes.c_ushort * len(fields))(*fields)
        values = (abi.FieldValue * (len(entities) * len(fields)))()
        self._call(
            "dcgmEntitiesGetLatestValues",
            self._handle,
            pairs,
            len(entities),
            listed,
            len(fields),
            flags,
            values,
        )
        found: dict[_Entity, dict[int, abi.FieldValue]] = {}
        for value in values:
            if value.version != abi.FIELD_VALUE_VERSION:
                raise LoadError(
                    f"{self._path.name} has values of version {value.version:#x}, "
                    f"and {abi.FIELD_VALUE_VERSION:#x} is understood: install DCGM 3.x or 4.x"
                )
            found.setdefault((value.entity_group, value.entity), {})[value.field] = value
        return found

    def _call(self, name: str, *arguments: object) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code != abi.OK:
            word = self._library.errorString(code)
            raise LoadError(f"{name}: {word.decode(errors='replace') if word else 'error'} ({code})")


def _load(path: Path) -> Any:
    """The library with the types of its functions. Raises LoadError."""
    try:
        library = ctypes.CDLL(str(path))
        for name, arguments in abi.PROTOTYPES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        library.errorString.argtypes, library.errorString.restype = (ctypes.c_int,), ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise LoadError(f"{path} cannot be used: {error}") from None
    return library


def _load_of(found: Mapping[int, abi.FieldValue]) -> DeviceLoad | None:
    """Of one GPU or instance; None: it has none yet, or is lost.

    Raises LoadError where the host engine watches nothing: then it is not the one that was told to.
    """
    if any(value.status == abi.NOT_WATCHED for value in found.values()):
        raise LoadError("the host engine has forgotten what it was to watch")
    source, what = found.get(abi.GR_ENGINE_ACTIVE), "GR_ENGINE_ACTIVE"
    if source is None or source.status not in (abi.OK, abi.NO_DATA):
        source, what = found.get(abi.GPU_UTIL), "GPU_UTIL"
    ratio = _ratio(source)
    if ratio is None or source is None:
        return None
    age_s = max(0.0, time.time() - source.time_us / 1e6)
    return DeviceLoad(ratio, time.monotonic() - age_s, what, _ratio(found.get(abi.SM_ACTIVE)))


def _ratio(value: abi.FieldValue | None) -> float | None:
    """0 ... 1; None: there is no number."""
    if value is None or value.status != abi.OK:
        return None
    if value.field == abi.GPU_UTIL:
        percent = int(value.value.i64)
        return None if percent >= abi.INT64_BLANK or percent < 0 else min(1.0, percent / 100)
    ratio = float(value.value.dbl)
    return None if not 0.0 <= ratio < abi.FP64_BLANK else min(1.0, ratio)
