# SPDX-License-Identifier: Apache-2.0
"""Tests whether a program may ask for the id of a cgroup around its task, by loading one that does."""

from __future__ import annotations

import os

from fairsched.bpf import syscall
from fairsched.bpf.instructions import instruction

_MOV_IMM, _CALL, _EXIT = 0xB7, 0x85, 0x95
_ANCESTOR_CGROUP_ID = 123  # bpf_get_current_ancestor_cgroup_id


def can_ask(*, is_tracing: bool = False) -> bool:
    """Of device programs, or those that trace. False also where none may be loaded: the real one then says why."""
    ask = instruction(_MOV_IMM, 1, imm=1) + instruction(_CALL, imm=_ANCESTOR_CGROUP_ID)
    try:
        if is_tracing:
            insns = ask + instruction(_MOV_IMM) + instruction(_EXIT)
            os.close(syscall.load_program(syscall.PROG_TYPE_RAW_TRACEPOINT, insns))
        else:
            os.close(load_allowing(ask))
    except OSError:
        return False
    return True


def load_allowing(before: bytes = b"") -> int:
    """A device program that allows everything, after ``before``; the caller closes its descriptor."""
    insns = before + instruction(_MOV_IMM, imm=1) + instruction(_EXIT)
    return syscall.load_program(syscall.PROG_TYPE_CGROUP_DEVICE, insns)
