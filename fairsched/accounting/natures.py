# SPDX-License-Identifier: Apache-2.0
"""How the GPUs of a node were found to take turns, known again after a restart (pure).

Problem. Where a GPU takes other turns than the configuration says, the tuner needs some ten seconds to find out which,
and until then the account is off and sure of itself. That is once in the life of a node, unless every daemon that is
upgraded, and every one whose probes were lost, begins anew.

Approach. What is in force is remembered by GPU UUID, beside what was configured then. It is where the next account
begins, as it would from the configuration: if it does not fit any more, anchors miss and a search begins. What the
operator has configured since is news, and wins. Only what the tuner tries can be remembered: a file may be edited.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairsched.accounting.tuner import SliceTiming, natures


class Natures:
    """Of the GPUs of a node. Those without a UUID are not remembered: another may be there the next time."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[SliceTiming, SliceTiming]] = {}
        """What was found, and what was configured then."""

    def of(self, uuid: str | None, configured: SliceTiming) -> SliceTiming:
        """Where the account of a GPU begins."""
        found, then = self._found.get(uuid or "", (configured, configured))
        return found if then == configured else configured

    def note(self, uuid: str | None, now: SliceTiming, configured: SliceTiming) -> None:
        """``now`` is in force on this GPU."""
        if uuid and now != configured:
            self._found[uuid] = (now, configured)
        elif uuid:
            self._found.pop(uuid, None)

    def to_list(self) -> list[list[Any]]:
        """UUID, slice and switch cost found, slice and switch cost configured, all times in ns; one per GPU."""
        return [[uuid, *found, *then] for uuid, (found, then) in sorted(self._found.items())]

    def restore(self, rows: Iterable[Any]) -> None:
        """What :meth:`to_list` said. Raises ValueError or TypeError, and has changed nothing then."""
        tried, known = set(natures()), {}
        for uuid, *times_ns in rows:
            slice_ns, switch_ns, *then_ns = map(int, times_ns)
            if not isinstance(uuid, str) or len(then_ns) != 2 or (slice_ns, switch_ns) not in tried:
                raise ValueError(f"no nature of a GPU: {uuid!r} {times_ns}")
            known[uuid] = (SliceTiming(slice_ns, switch_ns), SliceTiming(*then_ns))
        self._found = known
