# SPDX-License-Identifier: Apache-2.0
"""The list of policies, kept current; a cluster that does not know what a policy is has none.

Problem. The definition may come later, or go: that is no outage, and nothing to write a line for each minute. But an
API server that has just started may not know of it yet, and then what it said before must hold.

Approach. 404 is believed when the server, asked what it knows, names other things and not this one. Then there are no
policies, and the next look is after ``ABSENT_S``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fairsched.k8s import watch
from fairsched.k8s.client import Refused
from fairsched.k8s.policies.model import GROUP, PATH, PLURAL, VERSION

ABSENT_S = 30.0
"""As long as the longest wait after a failure. A hundred nodes ask three times a second then."""

logger = logging.getLogger(__name__)


class Client(watch.Client, Protocol):
    """What the watch needs of KubeClient."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """What is at `path`. Raises Refused or Unreachable."""


class PolicyWatch(watch.Watch):
    """See watch.Watch."""

    def __init__(self, client: Client, changed: Callable[[], None] = lambda: None) -> None:
        super().__init__(client, PATH, changed=changed)
        self._asked = client
        self._is_absent = False

    def step(self) -> None:
        """As of a watch; without a definition an empty list."""
        try:
            super().step()
            self._is_absent = False
        except Refused as error:
            if not error.is_absent or self._is_defined():
                raise
            if not self._is_absent:
                logger.info("policies=undefined path=%s", PATH)
            self._is_absent = True
            self._set([], "")
            self._over.wait(ABSENT_S)

    def _is_defined(self) -> bool:
        """Whether the server knows of policies. Raises Refused or Unreachable."""
        groups = self._asked.get("/apis").get("groups")
        if not isinstance(groups, list) or not groups:
            return True  # it does not know yet what it knows
        if not any(isinstance(one, dict) and one.get("name") == GROUP for one in groups):
            return False
        try:
            resources = self._asked.get(f"/apis/{GROUP}/{VERSION}").get("resources")
        except Refused as error:
            if not error.is_absent:
                raise
            return False
        return any(isinstance(one, dict) and one.get("name") == PLURAL for one in resources or ())
