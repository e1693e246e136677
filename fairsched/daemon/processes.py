# SPDX-License-Identifier: Apache-2.0
"""Lists the processes that use the GPUs, for ``fairsched ps``. Reads only; worked out when somebody asks.

Problem: "who is on this GPU" has three partial answers. The account knows who launches what it sees, the ioctls
of the driver who has a context and memory, NVML who has a context as the driver says.

Approach: a line for each (process, GPU) that any of them names, each column from the best that knows it. One that has a
context and has launched nothing that was seen is said to be so: it is idle, or works past our eyes. Each also tells for
how long it has launched nothing: who holds a card and does nothing is in the way of others. Where no probe looks for
launches, nothing is said of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from fairsched.base.process import ProcessId
from fairsched.cgroup import names as known_names
from fairsched.cgroup import tree as cgroup_tree
from fairsched.cgroup.containers import container_of
from fairsched.cgroup.names import Names, known_as
from fairsched.cgroup.path import Mount
from fairsched.driver.books import DriverUse
from fairsched.gpu.nvml import Gpu, gpu_label
from fairsched.model import ContextWork
from fairsched.observe.tree import Tree
from fairsched.protocol.process import ProcessStatus

_COMMAND_BYTES = 4096
NO_LAUNCH_SEEN = "has a context, no launch of it was seen"

Where = tuple[int, int]
"""(process, GPU slot)."""


class Launches(NamedTuple):
    """What the account knows of launches."""

    work: Iterable[ContextWork]
    """Of every context."""
    running: Set[Where]
    """Whom NVML has just seen to run."""
    since_ns: int
    """What was launched before was not seen."""
    now_ns: int


class Held(NamedTuple):
    """What one process has of one GPU, as the driver was asked for it; None = not known."""

    contexts: int | None
    vram_bytes: int | None


class _Process(NamedTuple):
    """A process as /proc has it."""

    cgroup: str | None
    command: str | None
    namespace_pid: int | None


def held_by_process(uses: Iterable[DriverUse]) -> dict[Where, Held]:
    """What a process has of a GPU, whichever cgroups it opened the driver in; GPUs without a slot are left out."""
    contexts: Counter[Where] = Counter()
    vram_bytes: Counter[Where] = Counter()
    for use in uses:
        if use.gpu is not None:
            contexts[use.tgid, use.gpu] += use.contexts
            vram_bytes[use.tgid, use.gpu] += use.vram_bytes
    return {where: Held(contexts[where], vram_bytes[where]) for where in contexts}


def build_processes(
    launches: Launches | None,
    held: Mapping[Where, Held],
    listed: Mapping[Where, int | None],
    gpus: tuple[Gpu, ...],
    tree: Tree,
    mount: Mount,
    proc: str = "/proc",
    names: Names | None = None,
) -> tuple[ProcessStatus, ...]:
    """One line per process and GPU, the largest GPU time first. Processes that are gone are left out.

    ``launches``: None where samples are the account; ``held``: from the driver's ioctls; ``listed``: VRAM in bytes of
    the processes NVML lists. ``names``: those of this host unless others are given.
    """
    names = names or known_names.shared()
    work: dict[Where, list[ContextWork]] = {}
    for one in () if launches is None else launches.work:
        work.setdefault((one.pid, one.gpu), []).append(one)
    known = {where: held.get(where, Held(None, None)) for where in {*work, *held, *listed}}
    processes = {pid: read_process(pid, mount, proc) for pid, _ in known}
    tenant_of_path = {ref.path: name for name, view in tree.tenants.items() for ref in view.refs.values()}
    found = []
    for (pid, slot), has in known.items():
        process = processes[pid]
        if process is None:
            continue
        where = (pid, slot)
        mine = work.get(where, [])
        holds = launches is not None and bool(has.contexts or where in listed)
        container = None if process.cgroup is None else container_of(process.cgroup)
        vram_bytes = listed.get(where) if has.vram_bytes is None else has.vram_bytes
        found.append(
            ProcessStatus(
                pid=pid,
                gpu=gpu_label(gpus, slot),
                tenant=_tenant(process.cgroup, tenant_of_path),
                cgroup=process.cgroup,
                runtime=container.runtime if container else None,
                container_id=container.container_id if container else None,
                pod_uid=container.pod_uid if container else None,
                known_as=None if process.cgroup is None else known_as(process.cgroup, names),
                namespace_pid=process.namespace_pid,
                contexts=has.contexts,
                vram_bytes=vram_bytes,
                # An account that was corrected may be some ms below 0 until there is more work.
                gpu_time_s=max(0, sum(one.charged_ns for one in mine)) / 1e9 if mine else None,
                launches=sum(one.submitted for one in mine)
                if launches is not None and (holds or mine)
                else None,
                idle_s=_idle_s(launches, mine, where, proc)
                if launches is not None and (holds or mine)
                else None,
                command=process.command,
                note=NO_LAUNCH_SEEN if holds and not any(one.submitted for one in mine) else None,
            )
        )
    return tuple(sorted(found, key=lambda row: (row.gpu, -(row.gpu_time_s or 0.0), row.pid)))


def _idle_s(launches: Launches, mine: Iterable[ContextWork], where: Where, proc: str) -> float | None:
    """Since its last call, or since it could have been seen to make one; None = it works."""
    if where in launches.running or any(one.is_charged for one in mine):
        return None
    owner = ProcessId.of(where[0], proc)
    began_ns = max(launches.since_ns, 0 if owner is None else owner.started_ns)
    # A call may be later than the moment for which its launches were asked.
    return max(0, launches.now_ns - max(began_ns, *(one.last_call_ns for one in mine), 0)) / 1e9


def _tenant(cgroup: str | None, tenant_of_path: Mapping[str, str]) -> str | None:
    """Of the cgroup or the nearest above it that is a tenant's."""
    path = cgroup
    while path:
        if path in tenant_of_path:
            return tenant_of_path[path]
        path = path.rpartition("/")[0]
    return None


def read_process(pid: int, mount: Mount, proc: str = "/proc") -> _Process | None:
    """A process as /proc has it; None when it is gone, or a zombie."""
    try:
        # A process may have \r in its name, which the kernel does not escape: no end of a line.
        with open(f"{proc}/{pid}/status", encoding="utf-8", errors="replace", newline="\n") as file:
            fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            words = file.read(_COMMAND_BYTES).rstrip(b"\0").split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    if fields.get("State", "")[:1] in ("Z", "X"):
        return None
    numbers = fields.get("NSpid", "").split()
    command = b" ".join(words).decode(errors="replace") or f"[{fields.get('Name', '?')}]"
    return _Process(
        cgroup=cgroup_tree.cgroup_path_of(pid, mount, proc),
        command="".join(c if c.isprintable() else "?" for c in command),
        # The first is ours, the last its own; one number: it shares our namespace.
        namespace_pid=int(numbers[-1]) if len(numbers) > 1 else None,
    )
