# SPDX-License-Identifier: Apache-2.0
"""How far the shares that an account tells may be off, in points of a GPU, in 19 of 20 windows (pure).

*Probes*: measured on GPUs and mixes drawn at random (tests/unit/accounting/drawn_loop.py). Some points stay, and some
even out. On a GPU that takes turns as the replay assumes it is .1. *Trace*: on an H100 against notes of the kernels
(docs/gpu-validation.md). *Samples*: drawn by lot, one a period.

Source: docs/decisions/0023-the-error-is-a-number.md.
"""

from __future__ import annotations

import math

TRACED_RATIO, TRACED_POINTS = 0.31, 3.4
"""Where the GPU tells whose turn it is, against the time in which kernels ran: 19 of 20 of 97 tenants of twenty mixes
on an H100 were within that, over 10 s. A turn is some 4 % longer than its kernels, for all; more where these are short,
or launched so slowly that there are pauses between them."""
SAMPLE_PERIOD_NS = 139_000_000
"""Of most products."""
_SURE_SIGMAS = 1.96
_POINTS_THAT_STAY, _POINTS_OVER_ONE_S = 4.8, 7.0


def probed_points(window_s: float) -> float:
    """Of the eBPF account."""
    return math.hypot(_POINTS_THAT_STAY, _POINTS_OVER_ONE_S / math.sqrt(window_s))


def stays_points(window_s: float) -> float:
    """Of the account by the trace alone: no better than is told of probes, until it has been measured on a GPU.

    On the simulated one 19 of 20 windows were within 5.8 points over 1 s and 1.1 over 10, in the worst of eight
    scenarios (docs/decisions/0031-the-trace-without-ebpf.md); but it cannot tell what a real one does with the last who
    has run dry.
    """
    return probed_points(window_s)


def sampled_points(window_s: float, period_ns: int = SAMPLE_PERIOD_NS, share: float = 0.5) -> float:
    """Of a share that is known from one sample each ``period_ns``."""
    return 100 * _SURE_SIGMAS * math.sqrt(share * (1 - share) * period_ns / (window_s * 1e9))
