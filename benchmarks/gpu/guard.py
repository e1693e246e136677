# SPDX-License-Identifier: Apache-2.0
"""The guard on a real GPU: a tenant with more memory than it may have is warned, slowed down, ended; no neighbour is.

``python -m benchmarks.gpu.guard [--python PATH]`` (root; a Python with PyTorch; half a minute).

Prints what was done, with the time of day, from the audit log.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.command import say_error
from benchmarks.gpu.hosts import Load
from benchmarks.gpu.real import Real
from benchmarks.gpu.rogues import running
from benchmarks.gpu.without_torch import look_at_gpu
from benchmarks.rig import BenchError, RunningDaemon
from fairsched.errors import FairschedError
from fairsched.simgpu.daemon_process import COMMAND

PROGRAMS = {"hoarder": ["hoarder"], "trainer": ["trainer"], "chat": ["chat"]}
GUARD = {
    "mode": "act",
    "interval": "1s",
    "limits": {
        "memory": {
            "per": "tenant",
            "vram": "10GiB",
            "warnings": 2,
            "every": "2s",
            "grace": "3s",
            "soft": "hold",
            "hard": "end",
        }
    },
}
_PATIENCE_S = 60.0


class _Guarded(Real):
    def _document(self, mode: str, loads: Sequence[Load]) -> dict[str, object]:
        return {**super()._document(mode, loads), "guard": GUARD}


def play(host: Real, python: str) -> None:
    """Raises BenchError when the wrong one ends, or nobody."""
    loads = [Load(name, "decode") for name in PROGRAMS]
    with host.daemon("enforce", loads) as daemon, running(host, PROGRAMS, python) as processes:
        end_s = time.monotonic() + _PATIENCE_S
        while processes["hoarder"].poll() is None:
            if time.monotonic() > end_s:
                raise BenchError(f"the hoarder is still there: {_done(daemon)}")
            time.sleep(0.1)
        time.sleep(3.0)
        left = [name for name, process in processes.items() if process.poll() is None]
        for line in _done(daemon):
            print(line)
        place = ["--config", str(daemon.config_path)]
        subprocess.run([*COMMAND, "guard", "show", *place], check=False)
        subprocess.run([*COMMAND, "audit", "show", *place], check=False)
        print("still there:", ", ".join(left))
        if left != ["trainer", "chat"]:
            raise BenchError("a neighbour was ended")


def _done(daemon: RunningDaemon) -> list[str]:
    """Lines of the audit log, in order."""
    entries = []
    for path in sorted((daemon.state_dir / "audit").glob("*.jsonl")):
        entries += [json.loads(line) for line in path.read_text().splitlines()]
    return [
        " ".join(f"{key}={value}" for key, value in entry.items() if key not in ("hash", "before"))[:400]
        for entry in entries
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.guard", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="with PyTorch")
    options = parser.parse_args(argv)
    try:
        with _Guarded(look_at_gpu(), options.python) as host:
            play(host, options.python)
    except FairschedError as error:
        return say_error(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
