# SPDX-License-Identifier: Apache-2.0
"""How far the account of one context can be believed.

LOW until completion was proven once, when launches go on without any call that would prove it (the account then is an
upper bound), and when the GPU of a context is a guess on a host with several.
"""

from __future__ import annotations

from fairsched.accounting.context import Context
from fairsched.accounting.launch_time import LaunchTime
from fairsched.bpf import abi
from fairsched.model import Confidence

UNSYNCED_NS = 1_000_000_000
"""Launches without a proof of completion for this long: not sure any more."""


def confidence(context: Context, launch: LaunchTime, live: abi.Ctx, *, is_guess: bool) -> Confidence:
    """``is_guess``: the GPU it is on is one, and could be another."""
    if is_guess:
        return Confidence.LOW
    if not launch.tau_ns:
        return Confidence.LOW  # no proof of completion yet: what it has queued cannot be told
    # A burst counts from its beginning: before that everything was complete, however long ago that was proven.
    since_ns = max(context.proven_ns, context.seq_ns)
    is_launching = live.last_call_ns - since_ns > UNSYNCED_NS
    if is_launching and live.submitted > context.seq and not context.is_held:
        return Confidence.LOW
    return Confidence.HIGH
