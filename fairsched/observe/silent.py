# SPDX-License-Identifier: Apache-2.0
"""Finds work that somebody began and of which nothing was heard for long, and ends it where the account is wrong.

Open for the programs or for the account: a drain that was taken to be over goes on for the account, if who had it is
silent after the hold as well.
"""

from __future__ import annotations

from fairsched.accounting.ebpf import EbpfAccount
from fairsched.bpf import abi
from fairsched.bpf.gpu_time import GpuTimeProbe

_SILENT_NS = 2_000_000_000
"""Longer than most bursts take, and a GPU that works on a longer one is not idle."""


def silent_contexts(
    probe: GpuTimeProbe, account: EbpfAccount, slot: int, now_ns: int
) -> list[tuple[int, int]]:
    """(slot, generation) of contexts on a GPU with open work of which nothing was heard for long."""
    return _unheard(probe, account, slot, now_ns - _SILENT_NS)


def _unheard(probe: GpuTimeProbe, account: EbpfAccount, slot: int, since_ns: int) -> list[tuple[int, int]]:
    return [
        (at, live.generation)
        for at, live in probe.contexts()
        if live.gpu == slot
        and live.last_call_ns < since_ns
        and (live.busy[abi.COMPUTE].streams or account.is_charged((at, live.generation)))
    ]


def end_silent(probe: GpuTimeProbe, account: EbpfAccount, slot: int, now_ns: int) -> int:
    """It is over, for the programs and for the account; returns how many contexts had such work.

    Where nothing is open for the programs that is all the account still charges, however lately it was heard of.
    """
    silent = _unheard(probe, account, slot, now_ns if probe.is_idle(slot) else now_ns - _SILENT_NS)
    for at, generation in silent:
        probe.end_drain(at, generation, 0)
        account.end((at, generation), now_ns)
    return len(silent)
