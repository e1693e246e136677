# SPDX-License-Identifier: Apache-2.0
"""What a tenant may try to get more than its share: hostile programs for the scenarios.

    python -m benchmarks.tricks NAME --load SIMLOAD -- ARGUMENTS OF SIMLOAD

Problem. Most hostile behaviour is a way to use the GPU, which a load's fields say. The rest is a way to use the
operating system: signals, cgroups, processes, tracing.

Approach. One program per trick. It runs as the tenant's process, starts the load it is given as often as its
trick needs, and plays the trick until SIGTERM. It changes nothing that is not its own and leaves nothing behind;
if it is killed the kernel ends its processes, and only empty cgroups stay, below the tenant's.

Terms. worker: a process that does the load. helper: one that does not. A helper *steps aside* when it leaves the
tenant's cgroup for the parent's, where no hold reaches it: root may, and whoever owns the parent.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks import trick_cgroups, trick_crowds, trick_tracing
from benchmarks.trick_company import Company
from fairsched.simgpu import Workload, build

ROOT = Path(__file__).resolve().parent.parent
ENDLESS_US = 3_600_000_000
"""The longest kernel the simulated GPU knows: an hour."""
FEIGN_RATIO = 0.6
"""What a kernel takes in company: clearly less than the account forgives."""


@dataclass(frozen=True)
class Trick:
    """A hostile program."""

    name: str
    description: str
    run: Callable[[Company], None]
    """Returns when a worker has ended by itself; SIGTERM ends it from outside."""


def _endless(company: Company) -> None:
    company.start_worker("--kernels", "1", "--jitter", "0", "--kernel-us", str(ENDLESS_US))
    company.wait()


def _feign(company: Company) -> None:
    company.start_worker("--feign", str(FEIGN_RATIO))
    company.wait()


def _dlopen_copy(company: Company) -> None:
    directory = Path(company.undo.enter_context(tempfile.TemporaryDirectory(prefix="fairsched-trick-")))
    company.start_worker("--libcuda", str(private_copy(company.libcuda(), directory, "libcompute.so")))
    company.wait()


TRICKS: Mapping[str, Trick] = MappingProxyType(
    {
        trick.name: trick
        for trick in (
            Trick("sigcont", "A helper undoes every SIGSTOP of the tenant at once.", trick_tracing.sigcont),
            Trick(
                "move",
                "The worker moves every 50 ms: two cgroups of the tenant's own, and the parent where it may.",
                trick_cgroups.move,
            ),
            Trick(
                "move_within",
                "The worker moves every 50 ms between two cgroups of the tenant's own.",
                trick_cgroups.move_within,
            ),
            Trick(
                "child_cgroups",
                "Workers in child cgroups, in their children, and with a thread in a threaded one.",
                trick_cgroups.child_cgroups,
            ),
            Trick(
                "fork_storm",
                "150 processes a second, one in 50 of them on the GPU, beside a worker.",
                trick_crowds.fork_storm,
            ),
            Trick(
                "short_lived",
                "Three at a time, each process lives 100 ms on the GPU.",
                trick_crowds.short_lived,
            ),
            Trick(
                "starve_cpu", "Two busy processes per processor beside the worker.", trick_crowds.starve_cpu
            ),
            Trick("ptrace", "A helper traces the worker, stops it and sends it on.", trick_tracing.trace),
            Trick("feign", "Kernels are shorter while others are there, as if turns were unequal.", _feign),
            Trick("endless", "One kernel of an hour in each context.", _endless),
            Trick("dlopen_copy", "libcuda is a copy of the file, under another name.", _dlopen_copy),
        )
    }
)


def command(name: str, workload: Workload, load: Path | None = None, log: Path | None = None) -> list[str]:
    """The command line of a trick on that workload, for SimHost.popen. Raises KeyError for an unknown name.

    ``load`` is the program simload, ``log`` a file for steps: of one worker, should there be several.
    """
    program = ["/usr/bin/env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "benchmarks.tricks"]
    logging = ["--log", str(log)] if log else []
    arguments = [*workload.arguments(), *logging]
    return [*program, TRICKS[name].name, "--load", str(load or build().load), "--", *arguments]


def private_copy(library: Path, directory: Path, name: str = "libcuda.so.1") -> Path:
    """The library in an inode of its own, in a directory of its own below ``directory``."""
    return Path(shutil.copy(library, Path(tempfile.mkdtemp(dir=directory)) / name))


def main(argv: Sequence[str]) -> int:
    if len(argv) < 5 or argv[0] not in TRICKS or argv[1] != "--load" or argv[3] != "--":
        print("usage: tricks NAME --load SIMLOAD -- ARGUMENTS; NAME is one of:", file=sys.stderr)
        for trick in TRICKS.values():
            print(f"  {trick.name:14} {trick.description}", file=sys.stderr)
        return 2
    with Company(Path(argv[2]), argv[4:]) as company:
        TRICKS[argv[0]].run(company)
    return 1  # nobody asked it to end


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
