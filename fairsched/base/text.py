# SPDX-License-Identifier: Apache-2.0
"""Text for people, on a screen of 80 columns."""

from __future__ import annotations

import textwrap
import time

WIDTH = 80


NOT_KNOWN = "n/a"


def percent(ratio: float | None) -> str:
    return NOT_KNOWN if ratio is None else f"{ratio * 100:.1f}"


def utc(wall_s: float) -> str:
    """``2026-11-26T18:15:38.123Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall_s)) + f".{int(wall_s % 1 * 1000):03d}Z"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``1 GPU``, ``2 GPUs``, ``2 processes``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def wrap(text: str, *, first: str = "", rest: str = "  ") -> list[str]:
    """Lines of at most 80 columns; `first` and `rest` are the indents."""
    lines = textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return lines or [first.rstrip()]
