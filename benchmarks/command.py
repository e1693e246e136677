# SPDX-License-Identifier: Apache-2.0
"""What the benchmark commands have in common: how they end."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import NoReturn

from fairsched.base.signals import not_ignored
from fairsched.errors import FairschedError

INTERRUPTED = 130
"""Exit status after Ctrl-C."""


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C, and a second one does not interrupt the cleaning up."""

    def on_signal(_number: int, _frame: object) -> NoReturn:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    numbers = not_ignored((signal.SIGINT, signal.SIGTERM))
    before = [signal.signal(number, on_signal) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def say_error(error: FairschedError) -> int:
    """On stderr, with the remedy; returns the exit status."""
    print(f"error: {error}" + (f"\nremedy: {error.remedy}" if error.remedy else ""), file=sys.stderr)
    return error.exit_status
