# SPDX-License-Identifier: Apache-2.0
"""Reads what /proc says of a process, once, as data that a plan can be made of.

A process that ends while it is read is None, not an error. Source: proc_pid_stat(5), proc_pid_status(5); PF_KTHREAD is
0x00200000 in include/linux/sched.h.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass

from fairsched.base.process import ProcessId
from fairsched.cgroup.path import Mount
from fairsched.cgroup.tree import cgroup_path_of

_PF_KTHREAD = 0x00200000
_COMMAND_BYTES = 4096
_STATUS_BYTES = 1 << 20
"""A user may be in 65536 groups, which stand before NSpid and SigIgn."""
_TERM_BIT = 1 << (signal.SIGTERM - 1)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_FIELD = re.compile(rb"^(Uid|NSpid|TracerPid|SigIgn|SigCgt|ShdPnd):\s+(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Facts:
    """One process."""

    pid: int
    start_ticks: int
    """Field 22 of stat: clock ticks after boot at which it started."""
    state: str
    """Of its first thread: R, S, D, T, t, Z, X, I."""
    parent: int
    group: int
    """Process group."""
    session: int
    threads: int
    is_kernel: bool
    uid: int
    """Real."""
    name: str
    """Of the program, as the kernel keeps it: 15 characters."""
    command: str
    """With its arguments; of a zombie [name]."""
    namespace_pids: tuple[int, ...] = ()
    """Its pid in each pid namespace, ours first."""
    tracer: int = 0
    cgroup: str | None = None
    is_deaf: bool = False
    """SIGTERM does nothing: it is ignored, or it has no handler and the process is the first of its pid namespace."""

    @property
    def id(self) -> ProcessId:
        return ProcessId(self.pid, self.start_ticks)

    @property
    def is_zombie(self) -> bool:
        """It has ended, all of it; what is left waits for its parent."""
        return self.state in ("Z", "X") and self.threads <= 1

    @property
    def is_headless(self) -> bool:
        """Its first thread has ended, so tools call it defunct; the others go on."""
        return self.state in ("Z", "X") and self.threads > 1

    @property
    def is_namespace_init(self) -> bool:
        """The first process of a pid namespace below ours."""
        return len(self.namespace_pids) > 1 and self.namespace_pids[-1] == 1

    def age_s(self, uptime_s: float) -> float:
        """``uptime_s``: CLOCK_BOOTTIME."""
        return max(0.0, uptime_s - self.start_ticks / _TICKS_PER_S)


def read_facts(pid: int, mount: Mount | None = None, proc: str = "/proc") -> Facts | None:
    """One process; None when it is gone, or not ours to look at. Without a mount its cgroup is None."""
    directory = f"{proc}/{pid}"
    try:
        stat, words = _read(f"{directory}/stat"), _read(f"{directory}/cmdline")
        status = _read(f"{directory}/status", _STATUS_BYTES)
        # the command name in parentheses may itself contain blanks and parentheses
        name, _, rest = stat.partition(b"(")[2].rpartition(b")")
        fields = rest.split()
        told = {key.decode(): value.split() for key, value in _FIELD.findall(status)}
        inner = tuple(map(int, told.get("NSpid", ())))
        is_first = len(inner) > 1 and inner[-1] == 1
        ignored, caught = (int((told.get(key) or [b"0"])[0], 16) for key in ("SigIgn", "SigCgt"))
        text = words.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        shown = name.decode(errors="replace")
        return Facts(
            pid=pid,
            start_ticks=int(fields[19]),
            state=fields[0].decode(),
            parent=int(fields[1]),
            group=int(fields[2]),
            session=int(fields[3]),
            threads=int(fields[17]),
            is_kernel=bool(int(fields[6]) & _PF_KTHREAD),
            uid=int(told["Uid"][0]),
            name=shown,
            command="".join(char if char.isprintable() else "?" for char in text or f"[{shown}]"),
            namespace_pids=inner,
            tracer=int((told.get("TracerPid") or [b"0"])[0]),
            cgroup=None if mount is None else cgroup_path_of(pid, mount, proc),
            is_deaf=bool(ignored & _TERM_BIT) or (is_first and not caught & _TERM_BIT),
        )
    except (OSError, IndexError, KeyError, ValueError):
        return None


def read_table(mount: Mount | None = None, proc: str = "/proc") -> dict[int, Facts]:
    """Every process, by pid."""
    pids = (int(name) for name in os.listdir(proc) if name.isdecimal())
    return {pid: facts for pid in pids if (facts := read_facts(pid, mount, proc)) is not None}


def waits_in(pid: int, proc: str = "/proc") -> str | None:
    """The function of the kernel that a process waits in; None = it does not wait, or the kernel does not say."""
    try:
        text = _read(f"{proc}/{pid}/wchan").decode(errors="replace")
    except OSError:
        return None
    return None if text in ("", "0") else text


def _read(path: str, most_bytes: int = _COMMAND_BYTES) -> bytes:
    with open(path, "rb") as file:
        return file.read(most_bytes)
