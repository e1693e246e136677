# SPDX-License-Identifier: Apache-2.0
"""A tenant that fills one of the tables of the driver's books: see crowd.c."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support import wait_until

_SOURCE = Path(__file__).with_name("crowd.c")


def build(directory: Path) -> Path:
    """The program."""
    program = directory / "crowd"
    command = ["cc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(_SOURCE), "-lpthread"]
    subprocess.run(command, check=True, timeout=240)
    return program


class Crowd:
    """One play, in a cgroup from its beginning; ends with :meth:`end`."""

    def __init__(self, program: Path, node: Path, play: str, count: int, cgroup: Path) -> None:
        command = [str(program), str(node), play, str(count), str(cgroup)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._cgroup = cgroup
        (cgroup / "cgroup.procs").write_text(str(self.process.pid))
        self._wait_for("ready\n")

    def play(self) -> None:
        """Returns when all of it is made."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self._wait_for("done\n")

    def _wait_for(self, line: str) -> None:
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said == line, f"{said!r}, exit status {self.process.poll()}"

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.communicate()
        for left in self._cgroup.glob("*/"):
            wait_until(
                lambda left=left: "populated 0" in (left / "cgroup.events").read_text(), 10, "it is left"
            )
            left.rmdir()
