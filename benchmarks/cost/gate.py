# SPDX-License-Identifier: Apache-2.0
"""What the device gate costs: ``python -m benchmarks.cost gate`` (root).

An open is a round of open and close (or its refusal) by a process in a cgroup, timed without the gate and with it, in
turns. Each figure is the least of the turns: what comes on top is other people's time. Nodes of major 195 are of our
own making; where there is no driver an open that is let through ends in ENXIO.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cost.harness import command, parser_of
from fairsched.bpf.abi import Node
from fairsched.bpf.gate import GateLoad, GateProgram
from fairsched.cgroup import devices, tree
from fairsched.cgroup.path import CgroupRef, Mount, find_mount
from fairsched.errors import HostUnsupported

TURNS = 100
OPENS = 500
CGROUPS = 1000
DEEP = 12
TOP = "/fairsched-bench-gate.slice"


def load() -> GateProgram:
    pending, program = GateLoad(), None
    while program is None:
        program = pending.poll(1.0)
    program.sign(0xBE7C)
    program.set_devices({195: Node.GPU}, {})
    return program


def timed_us(act: Callable[[], object]) -> float:
    begin = time.perf_counter_ns()
    act()
    return (time.perf_counter_ns() - begin) / 1e3


def open_often(path: str) -> float:
    """Microseconds of one."""
    begin = time.perf_counter_ns()
    for _ in range(OPENS):
        try:
            os.close(os.open(path, os.O_RDWR))
        except OSError:
            continue
    return (time.perf_counter_ns() - begin) / 1e3 / OPENS


def compare(top: CgroupRef, program: GateProgram, home: CgroupRef, path: str, turns: int) -> dict[str, float]:
    """Microseconds of an open without and with the gate, for a process in ``home``."""
    tree.place(home)
    without, gated = [], []
    for _ in range(turns):
        without.append(open_often(path))
        devices.attach(top, program.fd)
        gated.append(open_often(path))
        devices.detach(top, program.fd)
    return {"without_us": min(without), "with_us": min(gated)}


@contextlib.contextmanager
def cgroups(mount: Mount) -> Iterator[tuple[CgroupRef, list[CgroupRef], CgroupRef]]:
    """The top, the tenants below it, and one far below the first of them. This process leaves them in the end."""
    with CgroupRef.open(mount, "/") as root, tree.create(mount, TOP) as top:
        refs = [tree.create(mount, f"{TOP}/t{index}") for index in range(CGROUPS)]
        deep = tree.create(mount, f"{TOP}/t0/" + "/".join(map(str, range(DEEP - 2))))
        try:
            yield top, refs, deep
        finally:
            tree.place(root)
            paths = [node.path for node in tree.walk(mount, TOP)]
            for path in [*reversed(paths), TOP]:
                with CgroupRef.open(mount, path) as ref:
                    tree.remove(mount, ref)
            for ref in (*refs, deep):
                ref.close()


def measure(mount: Mount, program: GateProgram, nodes: Path, turns: int) -> dict[str, Any]:
    """What rules, the gate itself and opens take."""
    with cgroups(mount) as (top, refs, deep):
        try:
            found: dict[str, Any] = {
                "rules_us": sum(timed_us(partial(program.set_rule, ref.id, [1])) for ref in refs),
                "rules_again_us": sum(timed_us(partial(program.set_rule, ref.id, [1, 2])) for ref in refs),
                "attach_us": timed_us(lambda: devices.attach(top, program.fd)),
                "detach_us": timed_us(lambda: devices.detach(top, program.fd)),
                "release_us": timed_us(lambda: devices.detach_everywhere(mount, [program.fd])),
            }
            opens = (
                ("/dev/null, in a tenant", refs[0], "/dev/null"),
                ("GPU of its own", refs[0], str(nodes / "1")),
                ("GPU of another: refused", refs[0], str(nodes / "0")),
                (f"GPU of its own, {DEEP} levels deep", deep, str(nodes / "1")),
            )
            found["opens"] = {title: compare(top, program, home, path, turns) for title, home, path in opens}
        finally:
            devices.detach(top, program.fd)
    return found


def render(result: dict[str, Any]) -> str:
    """As for docs/device-gate.md."""
    rules_ms, again_ms = result["rules_us"] / 1e3, result["rules_again_us"] / 1e3
    lines = [
        f"{CGROUPS} rules written  {rules_ms:8.1f} ms, changed {again_ms:.1f} ms",
        f"attach / detach      {result['attach_us']:8.0f} us / {result['detach_us']:.0f} us,"
        f" above {CGROUPS} cgroups",
        f"release, whole tree  {result['release_us'] / 1e3:8.1f} ms",
        f"{'one open':<34} {'without':>8} {'with':>8} us",
    ]
    for title, row in result["opens"].items():
        without, gated = row["without_us"], row["with_us"]
        lines.append(f"{title:<34} {without:8.2f} {gated:8.2f}   {gated - without:+.2f}")
    return "\n".join(lines)


def run(turns: int) -> dict[str, Any]:
    """Everything. Raises FairschedError."""
    if os.geteuid() != 0:
        raise HostUnsupported("making devices and cgroups needs root", remedy="sudo")
    with contextlib.closing(load()) as program, tempfile.TemporaryDirectory() as directory:
        for minor in (0, 1):
            os.mknod(f"{directory}/{minor}", 0o20666, os.makedev(195, minor))
        return measure(find_mount(), program, Path(directory), turns)


def main(argv: Sequence[str] | None = None) -> int:
    options = parser_of("gate", __doc__, TURNS).parse_args(argv)
    return command(lambda: run(options.rounds or TURNS), render, None)
