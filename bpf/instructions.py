# SPDX-License-Identifier: Apache-2.0
"""Assembles BPF programs of a few instructions, with which a host is asked what it can do.

Source: include/uapi/linux/bpf.h and Documentation/bpf/instruction-set of the kernel.
"""

from __future__ import annotations

import struct

_MOV_IMM, _MOV, _ADD, _STORE_IMM, _ATOMIC, _EXIT = 0xB7, 0xBF, 0x0F, 0x7A, 0xDB, 0x95
_FETCH_OR, _CMPXCHG = 0x41, 0xF1
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
