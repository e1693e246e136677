# SPDX-License-Identifier: Apache-2.0
"""How calls to the driver are seen: facts, choice, and what is done where a hook is refused.

Three hooks find the same calls. *kprobe* sits on the driver's own file operations and costs others nothing. *lsm*
sees every ioctl and every freed file of the node; *tracepoint* finds the file by its descriptor, sees no shared
file end, and slows every system call of the node a little. They are tried in this order; what the kernel refuses
when it comes to it leads to the next, with one line in the log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from fairsched.bpf.tracefs import MOUNTS

Hook = Literal["kprobe", "lsm", "tracepoint"]
ORDER: tuple[Hook, ...] = ("kprobe", "lsm", "tracepoint")


class Functions(NamedTuple):
    """The driver's file operations."""

    ioctl: str
    open: str
    close: str


GENERATIONS = (
    Functions("nvidia_unlocked_ioctl", "nvidia_open", "nvidia_close"),
    Functions("nvidia_frontend_unlocked_ioctl", "nvidia_frontend_open", "nvidia_frontend_close"),
)
"""Since driver 545, and up to 535. The kernel can have only one."""
UVM_IOCTL = "uvm_unlocked_ioctl_entry"
PREEMPTED = "trace_call_bpf_faultable"
"""The kernel's own: how it calls programs on the tracepoint of one system call, with preemption on (Linux 7.2)."""
_ALL = {name for functions in GENERATIONS for name in functions} | {UVM_IOCTL, PREEMPTED}
_ENDS = ("]\n", f" {PREEMPTED}\n")
"""Of the lines of /proc/kallsyms that are looked at: the driver's functions are in a module."""


@dataclass(frozen=True)
class HookFacts:
    """Facts only; the rules are below."""

    functions: frozenset[str]
    """Of the names above, those this kernel has."""
    has_driver: bool
    has_kprobes: bool
    has_lsm: bool | None
    """BPF is among the active security modules; None: not known."""
    has_btf: bool
    has_tracepoints: bool
    """Where there is no tracefs mounted, it is assumed that one can be."""

    @property
    def skips_syscall_programs(self) -> bool:
        """Whether a program on the tracepoint of one system call is left out while another task is in it.

        Such a kernel lets a task be preempted inside the program, and until that task runs again calls the
        program for nobody else on its processor.
        """
        return PREEMPTED in self.functions


@dataclass(frozen=True)
class HookInForce:
    """What a running daemon says of its hook: what was refused when it was tried is known to nobody else."""

    hook: Hook | None
    """None: it sees no calls."""
    reason: str | None
    """Why it sees none."""
    refused: Mapping[Hook, str]
    """Better hooks, and why not."""


@dataclass(frozen=True)
class Candidates:
    """Hooks worth trying, best first, and why the others are not."""

    hooks: tuple[Hook, ...]
    obstacles: dict[Hook, str]

    @property
    def best(self) -> Hook | None:
        return self.hooks[0] if self.hooks else None


def read_facts(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> HookFacts:
    """Of this host."""
    return HookFacts(
        functions=frozenset(read_functions(proc)),
        has_driver=(sys / "module/nvidia").is_dir(),
        has_kprobes=(sys / "bus/event_source/devices/kprobe/type").exists(),
        has_lsm=_has_lsm(sys / "kernel/security/lsm"),
        has_btf=(sys / "kernel/btf/vmlinux").exists(),
        has_tracepoints=_has_tracepoints(sys),
    )


def read_functions(proc: Path = Path("/proc")) -> Iterator[str]:
    """Which of the names above /proc/kallsyms has. Reading it costs some 50 ms."""
    try:
        with open(proc / "kallsyms", encoding="ascii", errors="replace") as file:
            for line in file:
                # address, type, name, [module]
                if line.endswith(_ENDS) and (name := line.split(None, 3)[2]) in _ALL:
                    yield name
    except OSError:
        return


def _has_lsm(path: Path) -> bool | None:
    try:
        return "bpf" in path.read_text().strip().split(",")
    except OSError:
        return None


def _has_tracepoints(sys: Path) -> bool:
    mounts = [sys / mount.removeprefix("/sys/") for mount in MOUNTS]
    mounted = [mount / "events" for mount in mounts if os.path.isdir(mount / "events")]
    if not mounted:
        return mounts[0].is_dir()
    return any(os.path.isdir(events / "syscalls/sys_enter_ioctl") for events in mounted)


def functions_of(facts: HookFacts) -> Functions | None:
    """The generation this driver is of."""
    return next((item for item in GENERATIONS if facts.functions.issuperset(item)), None)


def _obstacle(facts: HookFacts, hook: Hook, are_nodes_plain: bool) -> str | None:
    if not facts.has_btf:
        return "the kernel has no type information (BTF)"
    if hook == "kprobe":
        if are_nodes_plain:
            return "the device nodes are plain files, no driver's"
        if not facts.has_kprobes:
            return "this kernel has no kprobes"
        if functions_of(facts) is None:
            return (
                "the driver's functions are not among the kernel's symbols"
                if facts.has_driver
                else "the driver is not loaded"
            )
    if hook == "lsm" and facts.has_lsm is not True:
        return (
            "bpf is not among the active security modules"
            if facts.has_lsm is False
            else "no list of security modules"
        )
    if hook == "tracepoint" and not facts.has_tracepoints:
        return "this kernel has no tracepoints of system calls"
    return None


def choose(facts: HookFacts, *, are_nodes_plain: bool = False) -> Candidates:
    """What to try (pure). ``are_nodes_plain``: files stand for the driver's nodes, as with a simulated GPU."""
    found = {hook: _obstacle(facts, hook, are_nodes_plain) for hook in ORDER}
    obstacles = {hook: reason for hook, reason in found.items() if reason is not None}
    return Candidates(tuple(hook for hook in ORDER if hook not in obstacles), obstacles)


NO_DRIVER = "no NVIDIA driver is loaded"
