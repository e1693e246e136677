# SPDX-License-Identifier: Apache-2.0
"""Matches globs over cgroup paths one component at a time, so that a walk can skip whole subtrees.

``*``, ``?`` and ``[...]`` match within one component. ``**`` stands for any number of components;
at the end it means everything inside: ``kubepods.slice/**`` matches each descendant of
``kubepods.slice`` but not the slice itself. A leading ``/`` changes nothing.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

_ANY_DEPTH = "**"

State = frozenset[tuple[int, int]]
"""Where a walk stands in each pattern: pairs of (pattern, next component). Empty = nothing below matches."""


class Globs:
    """A set of patterns. ``start`` is the state at the root; ``step`` descends into a child."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Raises ValueError for a pattern without a component or with ``..`` in it."""
        self._patterns: list[list[re.Pattern[str] | None]] = []
        for pattern in patterns:
            parts = [part for part in pattern.split("/") if part]
            if not parts or ".." in parts:
                raise ValueError(f"{pattern!r} is not a pattern of cgroup paths")
            self._patterns.append(
                [None if part == _ANY_DEPTH else re.compile(fnmatch.translate(part)) for part in parts]
            )
        self.start: State = self._closure({(index, 0) for index in range(len(self._patterns))})

    def step(self, state: State, name: str) -> State:
        """The state after entering the child ``name``; empty when no pattern can match from there on."""
        after: set[tuple[int, int]] = set()
        for pattern, position in state:
            parts = self._patterns[pattern]
            if position == len(parts):
                continue
            part = parts[position]
            if part is None:
                after.add((pattern, position))
                if position + 1 == len(parts):
                    after.add((pattern, position + 1))  # a trailing ** needs at least one component
            elif part.match(name):
                after.add((pattern, position + 1))
        return self._closure(after)

    def is_match(self, state: State) -> bool:
        """Whether the cgroup the walk stands on is matched by a pattern."""
        return any(position == len(self._patterns[pattern]) for pattern, position in state)

    def _closure(self, states: set[tuple[int, int]]) -> State:
        """A ``**`` that is not the last component may also stand for none."""
        pending = list(states)
        while pending:
            pattern, position = pending.pop()
            parts = self._patterns[pattern]
            if position + 1 < len(parts) and parts[position] is None:
                following = (pattern, position + 1)
                if following not in states:
                    states.add(following)
                    pending.append(following)
        return frozenset(states)
