# SPDX-License-Identifier: Apache-2.0
"""What seeing the driver's ioctls costs: ``python -m benchmarks.cost ioctl`` (root), or ``make bench-ioctl``.

The same calls with the hook and without it, in turn within one run, so that whatever else the machine does falls on
both. The node is a plain file, as with the simulated GPU: the kernel answers at once, and the difference is the hook's.
With the tracepoint hook also what it costs a call that is none of ours: an ioctl on another file, and a system call
that is no ioctl.

The program that calls is as many cgroups deep as a container of a pod, since memory is summed up at each level.

The bar: at most 1.3 us per ioctl, or at most 5 % of a real one. The first is judged here; the second needs a GPU.

Examples:
  python -m benchmarks.cost ioctl              writes benchmarks/results/ioctl.json
  python -m benchmarks.cost ioctl --rounds 3   quick; writes nothing
  python -m benchmarks.cost ioctl --all-calls  on the tracepoints of all system calls; writes nothing
  python -m benchmarks.cost ioctl --depth 1    from a cgroup right below the root; writes nothing
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar
from benchmarks.cost.harness import RESULTS, calling, command, compiled, parser_of
from benchmarks.rig import BenchError
from benchmarks.stats import extremes
from fairsched.bpf.abi import DriverCount, Node
from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef, find_mount
from fairsched.driver import hooks
from fairsched.driver.probe import DriverProbe, start

OUTPUT = RESULTS / "ioctl.json"
KINDS = {"control": 1, "memory": 2, "other": 1, "none": 1}
"""Kind of call -> system calls in one."""
BAR = Bar("added_per_call_ns", "what the hook adds to a call", 1300, True)
TOP = "/fairsched-bench-ioctl.slice"
_ROUNDS, _BATCHES, _CALLS = 15, 20, 2000
_DEPTH = 4  # kubepods, their class, the pod, its container


@contextlib.contextmanager
def cgroup(depth: int) -> Iterator[CgroupRef]:
    """A new one, ``depth`` levels below the root; 0: the root."""
    with contextlib.ExitStack() as undo:
        mount, path = find_mount(), ""
        ref = undo.enter_context(CgroupRef.open(mount, "/"))
        for level in range(depth):
            path += f"/{level}" if level else TOP
            ref = undo.enter_context(tree.create(mount, path))
            undo.callback(tree.remove, mount, ref)
        yield ref


def measure(
    probe: DriverProbe,
    facts: hooks.HookFacts,
    node: Path,
    directory: Path,
    rounds: int,
    home: CgroupRef,
) -> dict[str, dict[str, list[float]]]:
    """Nanoseconds per call by kind, with the hook and without."""
    found: dict[str, dict[str, list[float]]] = {kind: {"without": [], "with": []} for kind in KINDS}
    hook = probe.hook
    with calling([str(compiled("ioctl_caller.c", directory)), str(node)]) as process:
        tree.place(home, process.pid)
        for _ in range(rounds):
            for state in ("without", "with"):
                probe.detach()
                if state == "with":
                    probe.attach(hook, facts)
                for kind in KINDS:
                    found[kind][state] += process.ask(kind, _BATCHES, _CALLS)
    return found


def summarise(hook: str, found: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """(least, median, greatest), what the hook adds per system call, and whether that is within the bar.

    The bar is on the medians; what the least batches differ by is what it costs when nothing else runs.
    """
    rows: dict[str, Any] = {}
    for kind, states in found.items():
        medians = {state: extremes(values) for state, values in states.items()}
        added_ns = (medians["with"][1] - medians["without"][1]) / KINDS[kind]
        rows[kind] = {
            "without_ns": [round(value, 1) for value in medians["without"]],
            "with_ns": [round(value, 1) for value in medians["with"]],
            "added_per_call_ns": round(added_ns, 1),
            "least_added_per_call_ns": round((medians["with"][0] - medians["without"][0]) / KINDS[kind], 1),
            "ratio": round(medians["with"][1] / medians["without"][1], 3),
        }
    worst = max(rows[kind]["added_per_call_ns"] for kind in ("control", "memory"))
    bar = {BAR.key: worst, "at_most_ns": BAR.limit, "is_met": BAR.is_met(worst)}
    return {"hook": hook, "calls": rows, "bar": bar}


def render(result: dict[str, Any]) -> str:
    lines = [
        f"hook: {result['hook']}",
        f"{'call':10}{'without':>10}{'with':>10}{'added':>10}{'least':>10}  ns",
    ]
    for kind, row in result["calls"].items():
        without, with_, added = row["without_ns"][1], row["with_ns"][1], row["added_per_call_ns"]
        least = row["least_added_per_call_ns"]
        lines.append(f"{kind:10}{without:10.0f}{with_:10.0f}{added:10.0f}{least:10.0f}")
    bar = result["bar"]
    verdict = "met" if bar["is_met"] else "MISSED"
    lines.append(f"bar: {bar['added_per_call_ns']:.0f} ns added, at most {bar['at_most_ns']}: {verdict}")
    return "\n".join(lines)


def run(rounds: int, *, on_all_calls: bool, depth: int) -> dict[str, Any]:
    facts = hooks.read_facts()
    if on_all_calls:
        facts = replace(facts, functions=facts.functions | {hooks.PREEMPTED})
    with tempfile.TemporaryDirectory(prefix="fairsched-bench-", dir="/run") as name, cgroup(depth) as home:
        directory = Path(name)
        node = directory / "nvidiactl"
        node.write_bytes(b"")
        probe = start(facts, with_plain_nodes=True)
        try:
            probe.set_plain_nodes({node: Node.GPU})
            probe.set_instances({0: 0})
            found = measure(probe, facts, node, directory, rounds, home)
            made = probe.count(DriverCount.OBJECTS_MADE)
        finally:
            probe.close()
    if made < rounds * _BATCHES * _CALLS:
        raise BenchError(f"only {made} objects were seen: the hook was not where the calls were")
    return {"cgroup_depth": depth, **summarise(probe.hook, found)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_of("ioctl", __doc__, _ROUNDS)
    parser.add_argument(
        "--all-calls",
        action="store_true",
        help="as on a kernel that may skip programs on a single system call; the result is only shown",
    )
    parser.add_argument("--depth", type=int, help=f"levels of cgroups; default {_DEPTH}; else only shown")
    options = parser.parse_args(argv)
    depth = _DEPTH if options.depth is None else options.depth
    is_whole = options.rounds is options.depth is None and not options.all_calls

    def measured() -> dict[str, Any]:
        return run(options.rounds or _ROUNDS, on_all_calls=options.all_calls, depth=depth)

    return command(measured, render, OUTPUT if is_whole else None)
