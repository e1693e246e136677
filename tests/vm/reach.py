# SPDX-License-Identifier: Apache-2.0
"""How far a test goes: the whole way under make test-vm and test-vm-all, a part of it in every make test.

What is checked is the same; a walk is shorter. FAIRSCHED_FULL=1 makes every make test go the whole way.
FAIRSCHED_GARBAGE is how many calls every test with garbage makes, whichever of both.
"""

from __future__ import annotations

import os

IS_SHORT = os.environ.get("FAIRSCHED_VM_SHORT", "0") not in ("", "0")


def reach(whole: int, part: int) -> int:
    """How many steps of the whole."""
    return part if IS_SHORT else whole


def garbage_calls(whole: int, part: int) -> int:
    """How many calls of garbage."""
    return int(os.environ.get("FAIRSCHED_GARBAGE", reach(whole, part)))
