# SPDX-License-Identifier: Apache-2.0
"""Gathers the facts about this host that choose.py judges. Reads and tries (a scratch cgroup); leaves nothing
changed."""

from __future__ import annotations

import contextlib
import grp
import importlib
import importlib.util
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairsched.base.files import read_stripped
from fairsched.base.privileges import capabilities_of_root, privileges
from fairsched.bpf import libcuda
from fairsched.cgroup.probe import probe_host, v1_obstacle
from fairsched.driver import hooks
from fairsched.driver.namespaces import is_initial
from fairsched.driver.pid_view import gather as gather_pid_view
from fairsched.errors import FairschedError
from fairsched.gpu.health import reports_obstacle
from fairsched.gpu.nvml import nvml_text
from fairsched.host import dcgm
from fairsched.host.brake import cgpu_obstacle, has_freezer, has_pidfd
from fairsched.host.facts import BpfFact, GpuFact, HostFacts

if TYPE_CHECKING:
    from fairsched.config import Config


_MAX_PROCESSES = 20_000


def gather(config: Config, *, try_bpf: bool = True) -> HostFacts:
    """All facts. `try_bpf` loads small BPF programs, which takes about a second.

    Who is not root gets what it may look at: that it is refused the rest says nothing about this host.
    """
    cgroups = probe_host()
    driver, error, gpus, xid_obstacle = _nvml()
    capabilities, lockdown = privileges()
    is_root = os.geteuid() == 0
    if not is_root:
        capabilities, try_bpf = capabilities_of_root(), False
    daemon_pid = _daemon_pid(config.socket_path)
    status = {} if daemon_pid is None else _status(config.socket_path)
    return HostFacts(
        kernel_release=os.uname().release,
        is_root=is_root,
        capabilities=capabilities,
        has_btf=os.path.exists("/sys/kernel/btf/vmlinux"),
        has_uprobes=os.path.exists("/sys/bus/event_source/devices/uprobe/type"),
        lockdown=lockdown,
        bcc_version=_bcc_version(),
        bpf=_bpf() if try_bpf else None,
        cgroup_mount=None if cgroups.mount is None else cgroups.mount.path,
        is_cgroup_hybrid=cgroups.is_hybrid,
        has_freezer=has_freezer(cgroups),
        freeze_latency_ns=cgroups.freeze_latency_ns,
        sees_foreign_pauses=cgroups.sees_foreign_writes,
        libcuda=find_libcuda(config.gpu.libcuda),
        driver_version=driver,
        nvml_error=error,
        xid_obstacle=xid_obstacle,
        gpus=gpus,
        clock_source=read_stripped("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        preemption=_preemption(),
        has_systemd=os.path.isdir("/run/systemd/system"),
        has_group=_has_group(config.control.group),
        daemon_pid=daemon_pid,
        leftover_holds=_count(config.run_dir / "holds"),
        hooks=hooks.read_facts() if try_bpf else None,
        hook_in_force=_hook_in_force(status),
        daemon_mode=status.get("mode"),
        daemon_mode_reason=status.get("mode_reason"),
        pid_view=None
        if config.mechanisms.pid_view == "off" or not is_root
        else gather_pid_view(capabilities, lockdown, try_bpf=try_bpf),
        dcgm=dcgm.gather(config, gpus),
        gates=_gates(config.run_dir),
        is_cgroup_v1=cgroups.mount is not None and bool(cgroups.mount.v1),
        v1_obstacle=v1_obstacle(),
        cgpu_obstacle=cgpu_obstacle(config),
        has_pidfd=has_pidfd(),
        has_own_pid_namespace=_has_own_pid_namespace(),
    )


def _has_own_pid_namespace() -> bool | None:
    try:
        return not is_initial()
    except OSError:
        return None


def _bcc_version() -> str | None:
    """Without importing it: only bpf/compiler.py does that, and the import costs a second of LLVM."""
    spec = importlib.util.find_spec("bcc")
    if spec is None or spec.origin is None:
        return None
    version = re.search(
        r"""['"]([^'"]+)['"]""", read_stripped(Path(spec.origin).with_name("version.py")) or ""
    )
    if version is None:
        return None  # the lattice library of the same name on PyPI has no such file
    return version.group(1)


def _bpf() -> tuple[BpfFact, ...] | None:
    try:
        probe = importlib.import_module("fairsched.bpf.probe")
        return tuple(
            BpfFact(fact.name, fact.is_ok, fact.detail, fact.remedy, is_needed=fact.is_needed)
            for fact in probe.probe()
        )
    except (ImportError, FairschedError) as error:
        return (
            BpfFact("programs", False, str(error), getattr(error, "remedy", "") or "install python3-bpfcc"),
        )


def find_libcuda(named: Iterable[Path] = ()) -> tuple[str, ...]:
    """Every libcuda this host shows: named, in the loader's cache, mapped by a process.

    One name per inode, as containers map the host's library under names of their own.
    """
    found: dict[tuple[int, int], str] = {}
    for path in (*map(str, named), *libcuda.linker_cache()):
        if (library := libcuda.see(path)) is not None:
            found.setdefault((library.device, library.inode), path)
    for library in _mapped_libraries():
        found.setdefault((library.device, library.inode), library.name)
    return tuple(found.values())


def _mapped_libraries() -> Iterator[libcuda.LibraryFile]:
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    for pid in itertools.islice(pids, _MAX_PROCESSES):
        for item in libcuda.mapped_libraries(pid) or ():  # None: it exited, or is not ours to read
            if (library := libcuda.see_mapped(item, pid)) is not None:
                yield library


def _nvml() -> tuple[str | None, str | None, tuple[GpuFact, ...], str | None]:
    """(driver version, why not, GPUs, why it hands on no Xids)."""
    try:
        import pynvml
    except ImportError:
        return None, "nvidia-ml-py is not installed", (), None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, str(error), (), None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        gpus = tuple(
            GpuFact(
                nvml_text(pynvml.nvmlDeviceGetUUID(handle)),
                nvml_text(pynvml.nvmlDeviceGetName(handle)),
                _mig(pynvml, handle),
                _mps_clients(pynvml, handle),
                _instances(pynvml, handle),
            )
            for handle in handles
        )
        deaf = reports_obstacle(pynvml, [gpu.uuid for gpu in gpus]) if gpus else None
        return nvml_text(pynvml.nvmlSystemGetDriverVersion()), None, gpus, deaf
    except pynvml.NVMLError as error:
        return None, str(error), (), None
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _mig(pynvml: object, handle: object) -> bool | None:
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)  # type: ignore[attr-defined]
    except pynvml.NVMLError:  # type: ignore[attr-defined]
        return None
    return bool(current)


def _instances(pynvml: object, handle: object) -> tuple[int, ...]:
    nvml: Any = pynvml
    found = set()
    with contextlib.suppress(nvml.NVMLError):
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with contextlib.suppress(nvml.NVMLError):  # there is none in this place
                instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                found.add(int(nvml.nvmlDeviceGetGpuInstanceId(instance)))
    return tuple(sorted(found))


def _mps_clients(pynvml: object, handle: object) -> int:
    try:
        return len(pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle))  # type: ignore[attr-defined]
    except pynvml.NVMLError:  # type: ignore[attr-defined]
        return 0


def _preemption() -> str | None:
    words = [word for word in os.uname().version.split() if word.startswith("PREEMPT")]
    return words[0] if words else None


def _has_group(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _daemon_pid(socket_path: Path) -> int | None:
    from fairsched.protocol.client import ControlClient

    try:
        return int(ControlClient(socket_path, timeout_s=1.0).request("ping")["pid"])
    except (FairschedError, KeyError, TypeError, ValueError):
        return None


def _status(socket_path: Path) -> Mapping[str, Any]:
    """What the daemon says of itself; empty where it does not."""
    from fairsched.protocol.client import ControlClient

    try:
        return dict(ControlClient(socket_path).request("status"))
    except (FairschedError, TypeError, ValueError):
        return {}


def _hook_in_force(status: Mapping[str, Any]) -> hooks.HookInForce | None:
    try:
        hook, refused = status["driver_hook"], dict(status["driver_refused"])
        reason = status["driver_reason"]
    except (KeyError, TypeError, ValueError):  # also what a daemon of another version says
        return None
    found = next((one for one in hooks.ORDER if one == hook), None)
    if found != hook:
        return None
    return hooks.HookInForce(found, reason, {one: str(refused[one]) for one in hooks.ORDER if one in refused})


def _gates(run_dir: Path) -> int | None:
    from fairsched.bpf.gate import find_programs, owner_of

    try:
        found = find_programs(owner_of(run_dir))
    except OSError:
        return None
    for program in found:
        program.close()
    return len(found)


def _count(directory: Path) -> int:
    try:
        return len(os.listdir(directory))
    except OSError:
        return 0
