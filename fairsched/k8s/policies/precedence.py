# SPDX-License-Identifier: Apache-2.0
"""Which policy is in effect on a namespace (pure); the package's page has the rules, in words.

The answer depends on what the policies say and are called, and on nothing else: not on when they were made, in which
order they are listed, or which of them was in effect before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairsched.k8s.policies.model import Policy


@dataclass(frozen=True)
class Choice:
    """Of one namespace."""

    policy: Policy | None = None
    """In effect; None: none matches."""
    lower: tuple[Policy, ...] = ()
    """They match, and stand lower."""
    tied: tuple[Policy, ...] = ()
    """They match and stand as high; only their names decide, which nobody meant."""


def choose(policies: Iterable[Policy], namespace: str, labels: Mapping[str, str]) -> Choice:
    """The policy that is in effect on a namespace with these labels."""
    matching = [
        (standing, one) for one in policies if (standing := one.standing(namespace, labels)) is not None
    ]
    if not matching:
        return Choice()
    matching.sort(key=lambda pair: pair[1].name)
    highest = max(standing for standing, _ in matching)
    first, *tied = (one for standing, one in matching if standing == highest)
    lower = (one for standing, one in matching if standing != highest)
    return Choice(first, tuple(lower), tuple(tied))
