# SPDX-License-Identifier: Apache-2.0
"""Assembles BPF programs of a few instructions, with which a host is asked what it can do.

Source: include/uapi/linux/bpf.h and Documentation/bpf/instruction-set of the kernel.
"""

from __future__ import annotations

import struct

_MOV_IMM, _MOV, _ADD, _ADD_IMM, _STORE_IMM, _ATOMIC = 0xB7, 0xBF, 0x0F, 0x07, 0x7A, 0xDB
_CALL, _EXIT = 0x85, 0x95
_FETCH_OR, _CMPXCHG = 0x41, 0xF1
_PROBE_READ_KERNEL = 113
_FP = 10


def instruction(code: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> bytes:
    """One BPF instruction."""
    return struct.pack("<BBhi", code, src << 4 | dst, off, imm)


EXIT_0 = instruction(_MOV_IMM) + instruction(_EXIT)
ATOMICS_RESULT = 40 + 2
ATOMICS = b"".join(
    (
        instruction(_STORE_IMM, _FP, off=-8, imm=40),
        instruction(_MOV_IMM, 0, imm=40),
        instruction(_MOV_IMM, 1, imm=2),
        instruction(_ATOMIC, _FP, 1, -8, _CMPXCHG),  # 40 -> 2, r0 = 40
        instruction(_MOV_IMM, 1, imm=1),
        instruction(_ATOMIC, _FP, 1, -8, _FETCH_OR),  # 2 -> 3, r1 = 2
        instruction(_ADD, 0, 1),
        instruction(_EXIT),
    )
)
KERNEL_READ = b"".join(
    (
        instruction(_MOV, 1, _FP),
        instruction(_ADD_IMM, 1, imm=-8),
        instruction(_MOV_IMM, 2, imm=8),
        instruction(_MOV_IMM, 3),
        instruction(_CALL, imm=_PROBE_READ_KERNEL),
        instruction(_MOV_IMM),
        instruction(_EXIT),
    )
)
"""Reads eight bytes of the kernel at 0, which is an error to be returned; kernel lockdown refuses the program."""
