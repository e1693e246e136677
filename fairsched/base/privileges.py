# SPDX-License-Identifier: Apache-2.0
"""Reads what this process may do: its capabilities and the kernel's lockdown."""

from __future__ import annotations

import re

from fairsched.base.files import read_stripped

_CAPABILITIES = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_KILL": 5,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}
"""Bit numbers of linux/capability.h."""


def _bracketed(path: str) -> str | None:
    """``none [integrity] confidentiality`` -> ``integrity``."""
    chosen = re.search(r"\[(\w+)\]", read_stripped(path) or "")
    return chosen.group(1) if chosen else None


def privileges() -> tuple[frozenset[str], str | None]:
    """This process's capabilities, of those that matter here, and the kernel's lockdown; None = it has none."""
    return _capabilities("CapEff"), _bracketed("/sys/kernel/security/lockdown")


def capabilities_of_root() -> frozenset[str]:
    """Those that this process would have as root: of its bounding set, which sudo keeps."""
    return _capabilities("CapBnd")


def _capabilities(which: str) -> frozenset[str]:
    line = re.search(rf"^{which}:\s*([0-9a-f]+)$", read_stripped("/proc/self/status") or "", re.MULTILINE)
    bits = int(line.group(1), 16) if line else 0
    return frozenset(name for name, bit in _CAPABILITIES.items() if bits >> bit & 1)
