# SPDX-License-Identifier: Apache-2.0
"""Records rogues and honest programs on a real GPU: a tape with known answers for ``fairsched audit rogue``.

``python -m benchmarks.gpu.rogues TAPE [--seconds 170] [--python PATH]`` (root; a Python with PyTorch). Each program of
rogue_tenant.py runs in a cgroup of its own, which is a tenant named after what it is; ``orphan`` is a decoder whose
parent has ended, ``miner`` tells a pool in its command, ``quiet`` is the same without. The daemon only observes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.command import say_error
from benchmarks.gpu.hosts import Load
from benchmarks.gpu.real import Real
from benchmarks.gpu.without_torch import look_at_gpu
from fairsched.base.package import with_package
from fairsched.cgroup import tree
from fairsched.errors import FairschedError
from fairsched.simgpu import build
from fairsched.simgpu.daemon_process import COMMAND
from fairsched.simgpu.node import PARENT
from fairsched.simgpu.workload import enter_command

ROGUES = {
    "rogue-miner": ["miner", "-o", "stratum+tcp://pool.example:3333"],
    "rogue-quiet": ["miner"],
    "rogue-hoarder": ["hoarder"],
    "rogue-hang": ["hang"],
    "rogue-orphan": ["chat"],
}
ORPHAN = "rogue-orphan"
HONEST = {f"honest-{kind}": [kind] for kind in ("trainer", "chat", "notebook", "server")}
_EVERY_S = 2


@contextlib.contextmanager
def running(
    host: Real, programs: Mapping[str, Sequence[str]], python: str
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Each with its words of rogue_tenant.py, in a cgroup of its own below gpu.slice; ended when the block is left."""
    with contextlib.ExitStack() as undo:
        started = {}
        for name, words in programs.items():
            ref = tree.create(host.mount, f"{PARENT}/{host.prefix}{name}")
            cgroup = Path(host.mount.absolute(ref.path))
            undo.callback(_clear, cgroup)
            argv = [python, "-m", "benchmarks.gpu.rogue_tenant", *words]
            command = enter_command(build().load, argv, cgroup, name != ORPHAN)
            if name == ORPHAN:  # a shell that ends at once
                command = ["sh", "-c", '"$@" & ', "sh", *command]
            env = with_package({**os.environ, **host.env()})
            root = Path(__file__).parents[2]
            started[name] = subprocess.Popen(command, env=env, cwd=root, start_new_session=True)
        yield started


def record(host: Real, tape: Path, seconds: int, python: str) -> None:
    """Plays all of them and writes the tape. Raises FairschedError, CalledProcessError."""
    programs = {**ROGUES, **HONEST}
    loads = [Load(name, "decode") for name in programs]
    with host.daemon("observe", loads) as daemon, running(host, programs, python):
        look = ["audit", "rogue", "--for", f"{seconds}s", "--every", f"{_EVERY_S}s", "--record", str(tape)]
        place = ["--config", str(daemon.config_path), "--socket", str(daemon.socket_path)]
        subprocess.run([*COMMAND, *look, *place, "--explain"], check=True)
        subprocess.run([*COMMAND, "ps", *place], check=True)


def _clear(cgroup: Path) -> None:
    """Ends whoever is in it and removes it."""
    for _ in range(200):
        for pid in (cgroup / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        with contextlib.suppress(OSError):
            os.rmdir(cgroup)
            return
        signal.sigtimedwait([], 0.05)
    print(f"warning: {cgroup} could not be removed", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.rogues", description=__doc__)
    parser.add_argument("tape", type=Path)
    parser.add_argument("--seconds", type=int, default=170)
    parser.add_argument("--python", default=sys.executable, help="with PyTorch")
    options = parser.parse_args(argv)
    try:
        with Real(look_at_gpu(), options.python) as host:
            record(host, options.tape.absolute(), options.seconds, options.python)
    except FairschedError as error:
        return say_error(error)
    except subprocess.CalledProcessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
