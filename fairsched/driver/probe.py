# SPDX-License-Identifier: Apache-2.0
"""The programs of bpf/nvidia_ioctl.bpf.c, loaded and attached: their maps, read and written.

bcc compiles and loads in a child process that then ends (bpf/child.py); what is attached here is held by
descriptors and goes with them, however this process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from fairsched.bpf import abi, budgets, child, objects, perf, syscall, tracefs
from fairsched.bpf.rooms import MapRooms
from fairsched.driver.hooks import (
    ORDER,
    UVM_IOCTL,
    Candidates,
    Hook,
    HookFacts,
    choose,
    functions_of,
)
from fairsched.driver.vram_gate import VramGate
from fairsched.errors import HostUnsupported

logger = logging.getLogger(__name__)

_LIFE, _GATE = "life", "gate"
_RAW = {"on_task_exit": "sched_process_exit", "on_task_exec": "sched_process_exec"}
_TRACEPOINTS = {
    "on_sys_return": ("syscalls/sys_exit_ioctl", "raw_syscalls/sys_exit"),
    "on_sys_close": ("syscalls/sys_enter_close", "raw_syscalls/sys_enter"),
    "on_sys_ioctl": ("syscalls/sys_enter_ioctl", "raw_syscalls/sys_enter"),
}
"""That of the one system call; and that of all, whose programs cannot be preempted, for kernels that else skip some.

Returns first: a call whose entry is seen must have its return seen."""


class _Half(ctypes.Structure):
    _fields_ = (("value", ctypes.c_uint32),)


class _Word(ctypes.Structure):
    _fields_ = (("value", ctypes.c_uint64),)


class DriverProbe:
    """The maps of one loaded set, and what is attached. Use :func:`start`."""

    def __init__(self, loaded: child.Loaded) -> None:
        self._fds = loaded.fds
        self._loaded = loaded
        self._links: list[int] = []
        self._uvm_links: list[int] = []
        self._majors: frozenset[int] = frozenset()
        self.hook: Hook = "tracepoint"
        self.refused: dict[Hook, str] = {}
        """Better hooks, and why not."""
        fds = loaded.fds
        self._calls = syscall.BatchReader(fds["calls_by_proc"], abi.Caller, abi.Calls)
        self._clients = syscall.BatchReader(fds["client_by_handle"], _Half, abi.Client)
        self._files = syscall.BatchReader(fds["clients_by_file"], _Word, abi.File)
        self._makers = syscall.BatchReader(fds["maker_by_tgid"], _Half, abi.Maker)
        self._objects = syscall.BatchReader(fds["object_by_key"], abi.ObjectKey, abi.Object)
        self._rooms: MapRooms | None = MapRooms(
            fds, budgets.DRIVER, "driver_counts", abi.DriverCount.OVER_BUDGET
        )

    # ---- attaching ----

    def attach(self, hook: Hook, facts: HookFacts) -> None:
        """Attach one hook whole. Raises OSError, and then nothing of it is attached."""
        links: list[int] = []
        try:
            for program, name in _RAW.items():
                links.append(syscall.open_raw_tracepoint(name, self._loaded.programs(_LIFE)[program]))
            links += self._attach(hook, facts)
        except BaseException:
            _close(links)
            raise
        self.hook, self._links = hook, links
        self.attach_uvm()

    def attach_uvm(self) -> None:
        """Go to the functions of the unified memory driver, a module of its own: loaded late or anew it has no probes.

        Other hooks than that on functions see its calls anyway. Where it is not loaded nothing is done.
        """
        if self.hook != "kprobe":
            return
        programs, links = self._loaded.programs(self.hook), self._uvm_links
        _close(links)
        if links:
            tracefs.remove_return_probes(own=True)
        links.clear()
        with contextlib.suppress(OSError):
            links.append(_attach_return(programs["on_ioctl_return"], UVM_IOCTL))
            links.append(perf.attach_kprobe(programs["on_ioctl"], UVM_IOCTL, is_return=False))

    def _attach(self, hook: Hook, facts: HookFacts) -> Iterator[int]:
        programs = self._loaded.programs(hook)
        if hook == "kprobe":
            functions = functions_of(facts)
            assert functions is not None
            tracefs.remove_return_probes(own=False)
            yield _attach_return(programs["on_ioctl_return"], functions.ioctl)
            yield perf.attach_kprobe(programs["on_close"], functions.close, is_return=False)
            yield perf.attach_kprobe(programs["on_open"], functions.open, is_return=False)
            yield perf.attach_kprobe(programs["on_ioctl"], functions.ioctl, is_return=False)
            return
        for program, (of_one, of_all) in _TRACEPOINTS.items():
            if program not in programs:
                continue
            if facts.skips_syscall_programs:
                yield perf.attach_tracepoint(programs[program], tracefs.tracepoint_id(of_all))
                if (
                    program != "on_sys_return"
                ):  # a call is left once, however often it is tried; not so entered
                    continue
            yield perf.attach_tracepoint(programs[program], tracefs.tracepoint_id(of_one))
        for program, fd in programs.items():
            if program.startswith("lsm__"):
                yield syscall.attach_lsm(fd)

    def vram_gate(self) -> VramGate:
        """The VRAM limit, nothing limited yet; close it before this."""
        program = self._loaded.programs(_GATE).get("lsm__file_ioctl")
        refused = self._loaded.refused.get(_GATE, "BPF is not among the active security modules")
        why_not = None if program else refused
        is_attached = self.hook == "lsm"
        return VramGate(self._fds, program, why_not, is_attached=is_attached, forget_sum=self._forget_cgroup)

    def map_fds(self) -> list[tuple[str, int]]:
        """Descriptors by name, those of programs among them; for fdinfo."""
        return list(self._fds.items())

    def detach(self) -> None:
        """See no more calls; the maps stay. Idempotent."""
        _close([*self._links, *self._uvm_links])
        if self._links and self.hook == "kprobe":
            tracefs.remove_return_probes(own=True)
        self._links, self._uvm_links = [], []

    def close(self) -> None:
        """Detach and let go of everything. Idempotent."""
        self.detach()
        _close(self._fds.values())
        self._fds, self._rooms = {}, None

    # ---- writing ----

    def set_majors(self, majors: Mapping[int, abi.Node]) -> None:
        """Which device numbers are the driver's (devices.read_majors); none but these are."""
        nodes = {major: int(node) for major, node in majors.items() if 0 < major < abi.MAX_MAJOR}
        for major in self._majors | nodes.keys():
            value = ctypes.c_uint32(nodes.get(major, 0))
            syscall.update(self._fds["node_by_major"], ctypes.c_uint32(major), value)
        self._majors = frozenset(nodes)

    def set_plain_nodes(self, nodes: Mapping[Path, abi.Node]) -> None:
        """Files that stand for device nodes; only when started with ``with_plain_nodes``."""
        for path, node in nodes.items():
            stat = os.stat(path)
            device = os.major(stat.st_dev) << 20 | os.minor(stat.st_dev)
            key = abi.Inode(device, stat.st_ino)
            syscall.update(self._fds["node_by_inode"], key, ctypes.c_uint32(node))

    def set_instances(self, slot_of: Mapping[int, int]) -> None:
        """Which GPU slot each of the driver's instances is (devices.find_instances); the others are unknown."""
        for instance in range(abi.MAX_GPUS):
            slot = slot_of.get(instance)
            value = 0 if slot is None else slot + 1
            syscall.update(self._fds["gpu_by_instance"], ctypes.c_uint32(instance), ctypes.c_uint32(value))

    def free_client(self, handle: int, serial: int) -> None:
        """Take a client out of the books that the driver no longer has."""
        program = self._loaded.programs(_LIFE)["on_client_gone"]
        syscall.run_raw_tracepoint(program, abi.GoneArgs(handle, serial))

    def forget_calls(self, key: abi.Caller) -> None:
        self._forget(abi.Entry.CALLS, key.cgroup_id, key.tgid)

    def forget_maker(self, tgid: int) -> None:
        self._forget(abi.Entry.MAKER, tgid)

    def forget_file(self, address: int, serial: int) -> None:
        """Drop a file through which no client is made any more."""
        self._forget(abi.Entry.FILE, address, serial=serial)

    def forget_object(self, client: int, handle: int, serial: int) -> None:
        """Delete an object that leads nowhere, unless its handle has been given out anew."""
        self._forget(abi.Entry.OBJECT, client, handle, serial=serial)

    def forget_threads(self, is_gone: Callable[[int, int], bool]) -> None:
        """Drop calls of threads that died in them: ``is_gone(tgid, tid)``."""
        fd = self._fds["call_by_thread"]
        for key in list(syscall.keys(fd, ctypes.c_uint64)):
            if is_gone(key.value >> 32, key.value & 0xFFFFFFFF):
                self._forget(abi.Entry.THREAD, key.value)

    def _forget_cgroup(self, cgroup_id: int) -> None:
        self._forget(abi.Entry.CGROUP, cgroup_id)

    def _forget(self, entry: abi.Entry, key: int, more: int = 0, *, serial: int = 0) -> None:
        """Delete an entry and give its room back."""
        program = self._loaded.programs(_LIFE)["on_forgotten"]
        syscall.run_raw_tracepoint(program, abi.ForgottenArgs(entry, key, more, serial))

    # ---- reading ----

    @property
    def rooms(self) -> MapRooms:
        """Who has how much of the books."""
        assert self._rooms is not None, "closed"
        return self._rooms

    @property
    def sees_files_end(self) -> bool:
        """Whether the last close of a file is seen, however it comes about."""
        return self.hook != "tracepoint"

    def calls(self) -> list[tuple[abi.Caller, abi.Calls]]:
        """Calls by (cgroup, process); valid until the next call."""
        return self._calls.read()  # type: ignore[return-value]

    def clients(self) -> list[abi.Client]:
        """Every client there is; valid until the next call."""
        found: list[abi.Client] = [client for _, client in self._clients.read()]  # type: ignore[misc]
        return [client for client in found if client.serial]

    def files(self) -> dict[int, tuple[int, bool]]:
        """Of the open files that clients were made through, by address: serial, and whether there still is one."""
        return {int(key.value): (int(file.serial), any(file.client)) for key, file in self._files.read()}

    def makers(self) -> dict[int, tuple[int, bool]]:
        """Processes that made a client -> when they ended or became another program, 0 = not yet; and whether they
        have more than their tenant had room for."""
        return {
            int(tgid.value): (int(maker.gone_ns), bool(maker.is_partial))
            for tgid, maker in self._makers.read()
        }

    def objects(self, *, is_first: bool) -> tuple[list[tuple[abi.ObjectKey, abi.Object]], bool]:
        """The next few hundred objects, and whether there are more."""
        return self._objects.read_some(is_first=is_first)  # type: ignore[return-value]

    def object(self, client: int, handle: int) -> abi.Object | None:
        value = abi.Object()
        try:
            syscall.lookup(self._fds["object_by_key"], abi.ObjectKey(client, handle), value)
        except FileNotFoundError:
            return None
        return value

    def count(self, what: abi.DriverCount) -> int:
        """How often one thing happened that should not, or (OBJECTS_*) how many."""
        return self.rooms.count(what)

    def counts(self) -> dict[str, int]:
        """All of them by lower-case name; ``skipped`` where the kernel says so: calls that no program was run for."""
        found = {what.name.lower(): self.count(what) for what in abi.DriverCount}
        skipped = self._skipped()
        return found if skipped is None else {**found, "skipped": skipped}

    def _skipped(self) -> int | None:
        if (
            self.hook != "kprobe"
        ):  # LSM programs are never left out, and what the others miss may be none of ours
            return None
        missed = [objects.skipped_runs(fd) for fd in self._loaded.programs(self.hook).values()]
        return None if None in missed else sum(filter(None, missed))


def _attach_return(prog_fd: int, symbol: str) -> int:
    """With room for many calls at once where tracefs can be written, else with the little perf gives."""
    try:
        return perf.attach_tracepoint(prog_fd, tracefs.add_return_probe(symbol))
    except OSError:
        return perf.attach_kprobe(prog_fd, symbol, is_return=True)


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def start(
    facts: HookFacts, *, hooks: Iterable[Hook] | None = None, with_plain_nodes: bool = False
) -> DriverProbe:
    """Load and attach the best hook this host takes; no node is known yet.

    ``hooks`` are tried instead of all that the facts allow. Raises HostUnsupported when none is taken.
    """
    candidates = choose(facts, are_nodes_plain=with_plain_nodes)
    wanted = tuple(candidates.hooks if hooks is None else hooks)
    if not wanted:
        raise HostUnsupported(
            f"calls to the driver cannot be seen: {'; '.join(candidates.obstacles.values())}",
            remedy="use a kernel with BTF and kprobes, BPF LSM or tracepoints of system calls",
        )
    defines = {"FS_PLAIN_NODES": 1} if with_plain_nodes else {}
    gate = [_GATE] if facts.has_lsm else []
    loaded = child.load(
        "nvidia_ioctl", [_LIFE, *wanted, *gate], defines, plus=["node_by_inode"] if with_plain_nodes else []
    )
    refused: dict[str, str] = dict(loaded.refused)
    probe = DriverProbe(loaded)
    try:
        _act(probe, wanted, facts, refused)
    except BaseException:
        probe.close()
        raise
    probe.refused = _better(candidates, refused, probe.hook)
    return probe


def _act(probe: DriverProbe, wanted: tuple[Hook, ...], facts: HookFacts, refused: dict[str, str]) -> None:
    if _LIFE in refused:
        raise HostUnsupported(f"calls to the driver cannot be seen: {refused[_LIFE]}")
    for hook in wanted:
        if hook not in refused:
            try:
                probe.attach(hook, facts)
                return
            except OSError as error:
                refused[hook] = error.strerror or str(error)
        logger.warning("hook=%s refused=%r", hook, refused[hook])
    raise HostUnsupported(
        f"calls to the driver cannot be seen: {'; '.join(refused.values())}",
        remedy="fairsched doctor shows what is missing (root, or CAP_BPF and CAP_PERFMON)",
    )


def _better(candidates: Candidates, refused: Mapping[str, str], chosen: Hook) -> dict[Hook, str]:
    reasons = {**{str(hook): why for hook, why in candidates.obstacles.items()}, **refused}
    return {hook: reasons[hook] for hook in ORDER[: ORDER.index(chosen)] if hook in reasons}
