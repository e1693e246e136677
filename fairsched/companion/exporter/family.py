# SPDX-License-Identifier: Apache-2.0
"""What a metric family is: the words of the catalogue."""

from __future__ import annotations

import enum
from dataclasses import dataclass

LOWEST_BOUND, HIGHEST_BOUND = 16, 35
"""Exponents of the bounds of histograms: 2^16 ns (66 us) to 2^35 ns (34 s). Beyond them one bucket each is enough: a
histogram has one series per bound, tenant and GPU."""
BOUNDS = tuple(repr(2**exponent / 1e9) for exponent in range(LOWEST_BOUND, HIGHEST_BOUND + 1))
"""In seconds, as they are written."""


class Kind(enum.Enum):
    """As Prometheus calls them."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True)
class Family:
    """One metric: a name, and a series for each combination of its labels."""

    name: str
    """Without ``_total`` of a counter and ``_info`` of an info."""
    kind: Kind
    help: str
    """What it means, for who meets it on a graph."""
    source: str
    """Where the value comes from."""
    labels: tuple[str, ...] = ()
    unit: str = ""
    """As in the name; "" = it is a number of things, or a claim (1 or 0)."""

    @property
    def shown(self) -> str:
        """The name under which Prometheus stores it."""
        return self.name + {Kind.COUNTER: "_total", Kind.INFO: "_info"}.get(self.kind, "")
