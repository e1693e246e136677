# SPDX-License-Identifier: Apache-2.0
"""A tenant with a libcuda of its own that has nothing behind it (hollow.c), and what it does with that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.node.daemon.site import PATIENCE_S, Site, logged
from tests.support import wait_until

_SOURCE = Path(__file__).with_name("hollow.c")
# Arguments: a directory, the play and its numbers. It begins when somebody opens the pipe `go`, and writes what came.
_PROGRAM = """
import ctypes, os, pathlib, signal, sys
here = pathlib.Path(sys.argv[1])
cuda = ctypes.CDLL(str(here / "libcuda.so.1"))
given = [ctypes.c_double(float(one)) if "." in one else ctypes.c_int(int(one)) for one in sys.argv[3:]]
play = getattr(cuda, sys.argv[2])
play.restype = ctypes.c_long
open(here / "go").close()
me = os.getpid()
calls = play(*given)
(here / "new").write_text(str(calls))
os.rename(here / "new", here / "calls")
while True:
    signal.pause()
"""


class Hollow:
    """One play, which ends with its cgroup."""

    def __init__(self, site: Site, tenant: str, directory: Path, play: str, *numbers: float) -> None:
        """Returns when its libcuda has probes."""
        self._directory = directory / f"{tenant}-{play}"
        self._directory.mkdir()
        os.mkfifo(self._directory / "go")
        library = self._directory / "libcuda.so.1"
        command = ["gcc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(_SOURCE)]
        subprocess.run(command, check=True, timeout=120)
        argv = [sys.executable, "-S", "-c", _PROGRAM, str(self._directory), play, *map(str, numbers)]
        cgroup = site.cgroup(tenant)
        self.process = site.host.popen(argv, cgroup, env={"HOLLOW_CGROUP": str(cgroup)})
        wait_until(
            lambda: logged(site.log(), rf"library=\S*{library} probes=[1-9]"),
            PATIENCE_S,
            "its libcuda has probes",
        )

    def go(self) -> None:
        (self._directory / "go").open("w").close()

    def finish(self) -> int:
        """What came of it, when it is over."""
        result = self._directory / "calls"
        wait_until(result.exists, PATIENCE_S, "the play is over")
        return int(result.read_text())

    def play(self) -> int:
        self.go()
        return self.finish()
