# SPDX-License-Identifier: Apache-2.0
"""What a call costs that we look at: ``python -m benchmarks.cost KIND [OPTIONS]`` (root).

probe      a launch, by the probe behind the stub's first instruction and on it
gate       an open of a device, by the device gate
ioctl      an ioctl of the driver, by the hook that sees it (make bench-ioctl)
pid-view   a process list that is rewritten (make bench-pid-view)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from benchmarks.cost import gate, ioctl, pid_view, probe

KINDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "probe": probe.main,
    "gate": gate.main,
    "ioctl": ioctl.main,
    "pid-view": pid_view.main,
}


def main(argv: Sequence[str]) -> int:
    """Returns the exit status."""
    if argv and argv[0] in KINDS:
        return KINDS[argv[0]](argv[1:])
    is_asked = bool({"-h", "--help"} & set(argv))
    print(__doc__, file=sys.stdout if is_asked else sys.stderr)
    return 0 if is_asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
