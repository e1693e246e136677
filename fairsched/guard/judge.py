# SPDX-License-Identifier: Apache-2.0
"""Judges who is over a limit: rounds in, breaches out (pure).

Interface first: the judge behind it comes with the next commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairsched.guard.breach import Breach
from fairsched.guard.report import SubjectUse
from fairsched.guard.rules import GuardRules
from fairsched.guard.sample import Round


class Judge:
    """Fed with rounds in order. ``state``: what :meth:`state` of an earlier one gave; raises ValueError for another."""

    def __init__(self, rules: GuardRules, state: Mapping[str, Any] | None = None) -> None:
        raise NotImplementedError

    def feed(self, moment: Round) -> list[Breach]:
        """Everybody who is over a limit in this round; one that is not later than the last is left out, but for a
        clock that was set back."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """All that must outlive a restart, as JSON has it."""
        raise NotImplementedError

    def subjects(self, now_s: float) -> list[SubjectUse]:
        """How much everybody uses of each limit, as of the last round; the nearest to a limit first."""
        raise NotImplementedError
