# SPDX-License-Identifier: Apache-2.0
"""How far back: 90s, 15m, 1h, 7d, as an option of a command."""

from __future__ import annotations

import re

import click

_UNITS_S = {"s": 1, "": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
MOST_S = 250 * 365 * 86400.0
"""threading refuses to wait for 293 years."""
_FORM = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|m|h|d|w|)")


def seconds_of(text: str) -> float:
    """Seconds, from a number with a unit; the type of an option. Raises click.BadParameter."""
    match = _FORM.fullmatch(str(text).strip())
    seconds = float(match.group(1)) * _UNITS_S[match.group(2)] if match is not None else 0.0
    if not 0 < seconds <= MOST_S:
        raise click.BadParameter(f"{text!r} is not a time: write 90s, 15m, 1h, 7d")
    return seconds
