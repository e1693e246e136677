# SPDX-License-Identifier: Apache-2.0
"""Loads the daemon's own BPF programs and hands the one for a launch to the parent (a process, see probe.py).

bcc and its compiler stay out of the process that measures, and the maps live as long as this process does.
"""

from __future__ import annotations

import socket
import sys

from fairsched.bpf import loader, syscall
from fairsched.errors import FairschedError


def main(argv: list[str]) -> int:
    """``probe_child FD PROGRAM``: FD is a connected unix socket; ends when the other end is closed."""
    with socket.socket(fileno=int(argv[0])) as channel:
        is_multi = syscall.has_uprobe_multi()
        try:
            _maps, programs = loader.load(multi=is_multi)
        except FairschedError as error:
            print(f"probe_child: {error}", file=sys.stderr)
            return error.exit_status
        socket.send_fds(channel, [b"multi" if is_multi else b"single"], [programs[argv[1]]])
        channel.recv(1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
