# SPDX-License-Identifier: Apache-2.0
"""Names the counts of BPF that mean that a number is wrong: the warnings of ``status`` and the metrics tell them
alike."""

from __future__ import annotations

GPU_TIME_LOSSES = ("ctx_full", "use_full", "proc_full", "handle_full", "edge_dropped", "clock_range")
"""Of gpu_time: GPU time that is missing from the account."""

DRIVER_LOSSES = (
    "call_full",
    "call_lost",
    "client_full",
    "object_full",
    "file_full",
    "caller_full",
    "too_deep",
    "skipped",
)
"""Of the programs on the driver's calls: contexts and VRAM may be too low or too high."""
