# SPDX-License-Identifier: Apache-2.0
"""Judges whether the daemon is well, from what it says of itself: for whoever restarts it, or waits for it.

Problem: a supervisor that is not systemd (a kubelet, monit) asks from outside. That the process is there, or that its
socket can be connected to, says nothing: a loop that hangs has both, and one in which every tick fails answers, too.

Approach: the loop itself answers ``ping``, and says when all went well last, which is when it feeds systemd's
watchdog, too. Two questions, as Kubernetes asks them. *live*: does it tick? If not, another start may help. *ready*: is
what the configuration asks for in effect? If not, another start changes nothing, and a person must look.

Errors: none; who got no answer has no health to judge and has ControlError from the client instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LIMIT_S = 10.0
"""As WatchdogSec of the systemd unit."""


@dataclass(frozen=True)
class Health:
    """What the daemon says of itself when it is asked for its health."""

    mode: str
    """In effect: enforce, dry_run or observe."""
    wanted_mode: str
    """Of the configuration."""
    mode_reason: str | None
    """Why the mode is not the one that is wanted; None where it is."""
    well_age_s: float
    """Since ticks, and what is done between them, went well last: since systemd's watchdog was fed, or would be."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Health:
        """From the answer to ``ping``. Raises KeyError, TypeError or ValueError for one of an older daemon."""
        return cls(
            mode=str(answer["mode"]),
            wanted_mode=str(answer["wanted_mode"]),
            mode_reason=None if answer["mode_reason"] is None else str(answer["mode_reason"]),
            well_age_s=float(answer["well_age_s"]),
        )

    def why_not_live(self) -> str | None:
        """Why another start is due; None when it is not."""
        if self.well_age_s < LIMIT_S:
            return None
        return (
            f"nothing has gone well for {self.well_age_s:.1f} s: no tick, or nothing of what is between them"
        )

    def why_not_ready(self) -> str | None:
        """Why what was asked for is not in effect; None when it is."""
        if (why := self.why_not_live()) is not None:
            return why
        if self.mode == self.wanted_mode:
            return None
        return f"mode is {self.mode}, not {self.wanted_mode}: {self.mode_reason or 'no reason is given'}"
