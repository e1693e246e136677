# SPDX-License-Identifier: Apache-2.0
"""What a metric family is: the words of the catalogue."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from fairsched.base.buckets import bound_ns, bucket_of

_COARSE = {bucket_of(2**exponent) for exponent in range(18, 36)}
_FINE = range(bucket_of(2**23), bucket_of(2**27))
BUCKETS = tuple(sorted(_COARSE | set(_FINE)))
"""The buckets that begin at the bounds of histograms: all from 8.4 to 134 ms, where the limit of a queue delay lies;
powers of two from .26 ms to 34 s. No more: a histogram has one series per bound, tenant and GPU."""
BOUNDS = tuple(repr(bound_ns(bucket) / 1e9) for bucket in BUCKETS)
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
