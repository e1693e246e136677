# SPDX-License-Identifier: Apache-2.0
"""Opens what tells the load of whole GPUs, DCGM or the page of a dcgm-exporter, as the configuration says.

Both `doctor`, which asks once and closes it, and the daemon go this way. Whether somebody answers is known only after
asking, in a thread: the daemon does not wait for it, unless it is required or asked for by name.

Without an address nv-hostengine is looked for where it listens by itself. Any process may listen on that port, so it
is only believed if it belongs to root or an account of the system; else a host engine starts in this process, and
gives way to that of the system when it comes: two must not both want the counters. For the same reason none starts
where a dcgm-exporter is named, which has one inside.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fairsched.errors import HostUnsupported
from fairsched.gpu import dcgm_abi
from fairsched.gpu.dcgm import EMBEDDED, DcgmReader
from fairsched.gpu.exporter_page import ExporterPage
from fairsched.gpu.loads import LoadReader, LoadWatch
from fairsched.host.facts import DcgmFact, GpuFact

if TYPE_CHECKING:
    from fairsched.config import Config

_PATIENCE_S = 8.0
"""Longer than a connection takes to fail, and than two periods of DCGM."""


_DEFAULT_HOST, _DEFAULT_PORT = "127.0.0.1", 5555
_FIRST_USER = 1000
_LISTENS = "0A"


class _Device(NamedTuple):
    """A GPU, or a GPU instance of MIG."""

    label: str
    load_name: str


class _Named(Protocol):
    @property
    def load_name(self) -> str: ...


def _readers(config: Config) -> list[LoadReader]:
    readers: list[LoadReader] = []
    library = dcgm_abi.find_library(os.environ, platform.machine())
    if library is not None:
        readers.append(DcgmReader(library, _addresses(config)))
    if config.gpu.dcgm_exporter is not None:
        readers.append(ExporterPage(config.gpu.dcgm_exporter))
    return readers


def _addresses(config: Config) -> Callable[[], tuple[str, ...]]:
    address = config.gpu.dcgm_address
    if address is not None:
        return lambda: (address,)
    if config.gpu.dcgm_exporter is not None:
        return lambda: tuple(one for one in default_addresses() if one != EMBEDDED)
    return default_addresses


def default_addresses(proc: str = "/proc", port: int = _DEFAULT_PORT) -> tuple[str, ...]:
    """Where to connect where nobody said so, as of now."""
    owners = [uid for name in ("tcp", "tcp6") for uid in _listeners(f"{proc}/net/{name}", port)]
    is_systems = bool(owners) and all(uid < _FIRST_USER for uid in owners)
    return (f"{_DEFAULT_HOST}:{port}", EMBEDDED) if is_systems else (EMBEDDED,)


def _listeners(path: str, port: int) -> list[int]:
    """Uids of those who listen on a port."""
    try:
        with open(path) as file:
            rows = [line.split() for line in file][1:]
    except OSError:
        return []
    return [
        int(row[7]) for row in rows if len(row) > 7 and row[3] == _LISTENS and row[1].endswith(f":{port:04X}")
    ]


def obstacle(config: Config) -> str | None:
    """Why nobody is asked; None when somebody is. Reads no more than names of files."""
    if config.gpu.dcgm == "off":
        return "gpu.dcgm is off"
    if not _readers(config):
        return f"neither {' nor '.join(dcgm_abi.LIBRARIES)} is installed, and gpu.dcgm_exporter names no page"
    return None


def open_watch(config: Config, gpus: Sequence[_Named]) -> LoadWatch:
    """Begin to ask. Close it in the end."""
    return LoadWatch(_readers(config), [gpu.load_name for gpu in gpus])


def open_required(config: Config, gpus: Sequence[_Named], nvml: str | None) -> LoadWatch | None:
    """The watch, once it knows a load, where that is required or the account; else None.

    ``nvml``: why there are no samples to scale. Raises HostUnsupported.
    """
    if config.gpu.dcgm != "required" and config.gpu.source != "dcgm":
        return None
    key = "gpu.dcgm is required" if config.gpu.dcgm == "required" else "gpu.source is dcgm"
    remedy = "start nvidia-dcgm, name a page in gpu.dcgm_exporter, or set gpu.dcgm and gpu.source to auto"
    if (why := nvml or obstacle(config)) is not None:
        raise HostUnsupported(f"{key}, and {why}", remedy=remedy)
    watch = open_watch(config, gpus)
    if not watch.wait_live(_PATIENCE_S):
        why = watch.error
        watch.close()
        raise HostUnsupported(f"{key}, and the load of no GPU is known: {why}", remedy=remedy)
    return watch


def gather(config: Config, gpus: Sequence[GpuFact]) -> DcgmFact | None:
    """What asking comes to; None where nobody wants to know, or there is no GPU."""
    devices = [one for index, gpu in enumerate(gpus) for one in _devices(index, gpu)]
    if config.gpu.dcgm == "off" or not devices:
        return None
    if (why := obstacle(config)) is not None:
        return DcgmFact(False, why)
    watch = open_watch(config, devices)
    try:
        if not watch.wait_asked(_PATIENCE_S):
            return DcgmFact(False, f"no answer within {_PATIENCE_S:g} s")
        if watch.where is None or not watch.wait_live(_PATIENCE_S):
            return DcgmFact(False, watch.error)
        return DcgmFact(True, f"{watch.where}: {_shown(watch, devices)}")
    finally:
        watch.close()


def _devices(index: int, gpu: GpuFact) -> list[_Device]:
    if not gpu.has_mig:
        return [_Device(f"GPU {index}", gpu.uuid)]
    return [_Device(f"GPU {index}/{number}", f"{gpu.uuid}/{number}") for number in gpu.instances]


def _shown(watch: LoadWatch, devices: Sequence[_Device]) -> str:
    """Such as "GPU 0 43 %, SMs 30 %; GPU 1/2 100 %", the last one of MIG."""
    shown = []
    for slot, device in enumerate(devices):
        if (found := watch.reading(slot)) is not None:
            sms = "" if found.sm_active_ratio is None else f", SMs {found.sm_active_ratio:.0%}"
            shown.append(f"{device.label} {found.active_ratio:.0%}{sms}")
    return "; ".join(shown)
