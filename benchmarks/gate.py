# SPDX-License-Identifier: Apache-2.0
"""What the device gate costs: ``python -m benchmarks.gate`` (root).

An open is a round of open and close (or its refusal) by a process in a cgroup, timed without the gate and with it, in
turns. Each figure is the least of the turns: what comes on top is other people's time. Nodes of major 195 are of our
own making; where there is no driver an open that is let through ends in ENXIO.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fairsched.bpf.abi import Node
from fairsched.bpf.gate import GateLoad, GateProgram
from fairsched.cgroup import devices, tree
from fairsched.cgroup.path import CgroupRef, Mount, find_mount

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


def compare(top: CgroupRef, program: GateProgram, home: CgroupRef, path: str) -> tuple[float, float]:
    """(without, with) the gate, in microseconds, for a process in ``home``."""
    tree.place(home)
    without, gated = [], []
    for _ in range(TURNS):
        without.append(open_often(path))
        devices.attach(top, program.fd)
        gated.append(open_often(path))
        devices.detach(top, program.fd)
    return min(without), min(gated)


def report(mount: Mount, program: GateProgram, nodes: Path) -> None:
    with CgroupRef.open(mount, "/") as root, tree.create(mount, TOP) as top:
        refs = [tree.create(mount, f"{TOP}/t{index}") for index in range(CGROUPS)]
        deep = tree.create(mount, f"{TOP}/t0/" + "/".join(map(str, range(DEEP - 2))))
        try:
            rules_us = [timed_us(partial(program.set_rule, ref.id, [1])) for ref in refs]
            again_us = [timed_us(partial(program.set_rule, ref.id, [1, 2])) for ref in refs]
            attach_us = timed_us(lambda: devices.attach(top, program.fd))
            detach_us = timed_us(lambda: devices.detach(top, program.fd))
            everywhere_us = timed_us(lambda: devices.detach_everywhere(mount, [program.fd]))
            print(
                f"{CGROUPS} rules written  {sum(rules_us) / 1e3:8.1f} ms, changed {sum(again_us) / 1e3:.1f} ms"
            )
            print(f"attach / detach      {attach_us:8.0f} us / {detach_us:.0f} us, above {CGROUPS} cgroups")
            print(f"release, whole tree  {everywhere_us / 1e3:8.1f} ms")
            print(f"{'one open':<34} {'without':>8} {'with':>8} us")
            for title, home, path in (
                ("/dev/null, in a tenant", refs[0], "/dev/null"),
                ("GPU of its own", refs[0], str(nodes / "1")),
                ("GPU of another: refused", refs[0], str(nodes / "0")),
                (f"GPU of its own, {DEEP} levels deep", deep, str(nodes / "1")),
            ):
                without, gated = compare(top, program, home, path)
                print(f"{title:<34} {without:8.2f} {gated:8.2f}   {gated - without:+.2f}")
        finally:
            tree.place(root)
            devices.detach(top, program.fd)
            paths = [node.path for node in tree.walk(mount, TOP)]
            for path in [*reversed(paths), TOP]:
                with CgroupRef.open(mount, path) as ref:
                    tree.remove(mount, ref)
            for ref in (*refs, deep):
                ref.close()


def main() -> int:
    if os.geteuid() != 0:
        print("needs root", file=sys.stderr)
        return 3
    program = load()
    try:
        with tempfile.TemporaryDirectory() as directory:
            for minor in (0, 1):
                os.mknod(f"{directory}/{minor}", 0o20666, os.makedev(195, minor))
            report(find_mount(), program, Path(directory))
    finally:
        program.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
