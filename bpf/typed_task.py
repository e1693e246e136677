# SPDX-License-Identifier: Apache-2.0
"""Tests whether a program may load what is behind its task by the kernel's own types, by loading one that does.

Since Linux 5.11 a program can get its task as a pointer whose type the verifier knows. What is behind it is then loaded
like any memory, and an address that is none reads as 0. Reading the same with a helper costs each ioctl of a node some
.1 us more (bpf/nodes.h).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fairsched.bpf import syscall
from fairsched.bpf.instructions import EXIT_0, instruction

HELPER = 158
"""bpf_get_current_task_btf. The programs are told it, or 0 (FS_TYPED_TASK)."""
_CALL, _LOAD_WORD, _LOAD_HALF = 0x85, 0x79, 0x61
_FARTHEST = 0x7FFF  # that an instruction can load from


def can_walk(offsets: Mapping[str, int]) -> bool:
    """From the task to its table of descriptors; ``offsets`` as btf.file_defines finds them."""
    if max(offsets.values()) > _FARTHEST:
        return False
    insns = (
        instruction(_CALL, imm=HELPER)
        + instruction(_LOAD_WORD, 0, 0, offsets["FS_TASK_FILES"])
        + instruction(_LOAD_WORD, 0, 0, offsets["FS_FILES_FDT"])
        + instruction(_LOAD_HALF, 1, 0, offsets["FS_FDT_MAX"])
        + instruction(_LOAD_WORD, 1, 0, offsets["FS_FDT_FD"])
        + EXIT_0
    )
    try:
        os.close(syscall.load_program(syscall.PROG_TYPE_RAW_TRACEPOINT, insns))
    except OSError:
        return False
    return True
