# SPDX-License-Identifier: Apache-2.0
"""``fairsched`` that writes down how long each tick and each portion of a flood took, but for waits for a processor.

Lines of ``$TICKS``: ns. On a machine of two processors that do other work as well, a tick has often to wait until it
runs at all, and that says nothing of the product.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from fairsched.cli import main
from fairsched.daemon.loop import Daemon
from fairsched.observe.sensors import Sensors

_NO_FLOOD_NS = 100_000
"""It is asked before each tick, and has nothing to do as a rule."""
_OUT = os.open(os.environ["TICKS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
_SCHEDSTAT = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)


def _in_line_ns() -> int:
    """How long this thread has been able to run and did not."""
    return int(os.pread(_SCHEDSTAT, 64, 0).split()[1])


def _timed(function: Callable[..., Any], least_ns: int = 0) -> Callable[..., Any]:
    """``least_ns``: what took less is not written down."""

    def run(*args: Any) -> Any:
        in_line_ns, begun_ns = _in_line_ns(), time.monotonic_ns()
        try:
            return function(*args)
        finally:
            took_ns = time.monotonic_ns() - begun_ns - (_in_line_ns() - in_line_ns)
            if took_ns >= least_ns:
                os.write(_OUT, b"%d\n" % took_ns)

    return run


if __name__ == "__main__":
    Daemon._tick = _timed(Daemon._tick)  # type: ignore[method-assign]
    Sensors.has_caught_up = _timed(Sensors.has_caught_up, _NO_FLOOD_NS)  # type: ignore[method-assign]
    main()
