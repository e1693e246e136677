# SPDX-License-Identifier: Apache-2.0
"""How far the account of one context can be believed.

LOW until it is known what a launch takes, and when the GPU of a context is a guess on a host with several. BOUND (it
had at most what it is charged) when launches go on without any call that would prove completion and the neighbours do
not bear out that they ran (silent.py). SAMPLED where samples say what its launches take (timed.py). Where the GPU tells
whose turn it is (turns.py) nothing of that has to be known.
"""

from __future__ import annotations

from fairsched.accounting.launch_time import LaunchTime
from fairsched.model import Confidence


def confidence(
    launch: LaunchTime,
    is_borne_out: bool | None,
    *,
    is_guess: bool,
    is_timed: bool = False,
    is_traced: bool = False,
) -> Confidence:
    """``is_borne_out``: None for a context that is not silent. ``is_guess``: the GPU it is on is one."""
    if is_guess:
        return Confidence.LOW
    if is_traced:
        return Confidence.HIGH
    if is_timed:
        return Confidence.SAMPLED
    if not launch.tau_ns:
        return Confidence.LOW  # no proof of completion yet: what it has queued cannot be told
    return Confidence.BOUND if is_borne_out is False else Confidence.HIGH
