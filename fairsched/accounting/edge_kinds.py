# SPDX-License-Identifier: Apache-2.0
"""The kinds of edges as plain numbers: an enumeration is looked up by name each time, hundreds of times a second."""

from __future__ import annotations

from fairsched.bpf import abi

CLOSE = int(abi.EdgeKind.CLOSE)
CTX_GONE = int(abi.EdgeKind.CTX_GONE)
CTX_NEW = int(abi.EdgeKind.CTX_NEW)
GPU_IDLE = int(abi.EdgeKind.GPU_IDLE)
OPEN = int(abi.EdgeKind.OPEN)
PROC_EXIT = int(abi.EdgeKind.PROC_EXIT)
PROC_NEW = int(abi.EdgeKind.PROC_NEW)
PROGRESS = int(abi.EdgeKind.PROGRESS)
RESUBMIT = int(abi.EdgeKind.RESUBMIT)
