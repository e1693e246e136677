# SPDX-License-Identifier: Apache-2.0
"""Signals that whoever started us has chosen to ignore stay ignored.

A shell without job control starts what runs in the background with SIGINT ignored, so that Ctrl-C ends only what is in
the foreground; nohup does the same with SIGHUP. A program that installs a handler all the same undoes that choice.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable


def not_ignored(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Those of ``numbers`` that are not ignored now."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
