# SPDX-License-Identifier: Apache-2.0
"""Whether the replay of a GPU can be relied on: it is tuned, and it is watched.

Two witnesses. Anchors that miss call for another nature (tuner.py); when none fits, the account is a guess. Work that
costs another time in company than alone shows what anchors do not (evenness.py). While one of them objects nobody's
account on that GPU is sure, and nobody is held there.
"""

from __future__ import annotations

from fairsched.accounting.evenness import Evenness
from fairsched.accounting.replay import TRUSTED_HIT_RATIO, Replay
from fairsched.accounting.tuner import Tuner

_QUIET_NS = 10_000_000_000
"""Contexts that come and go make anchors miss, too, and may do so on purpose: without any for so long, they do not."""


class Turns:
    """Of one GPU."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.tuner = Tuner(replay)
        self.evenness = Evenness()
        self._changed_ns = 0
        self._is_unsure = False

    def note_change(self, now_ns: int) -> None:
        """A context came or went."""
        self._changed_ns = now_ns

    def step(self, now_ns: int) -> bool:
        """A few times a second: some milliseconds of search, when it is due. True: the replay is another now."""
        is_another = self.tuner.step(now_ns)
        if is_another:
            self.evenness.reset()
        is_lost = self.tuner.is_settled and self.replay.hit_ratio < TRUSTED_HIT_RATIO
        is_quiet = now_ns - self._changed_ns > _QUIET_NS
        self._is_unsure = self.evenness.is_uneven(now_ns) or (is_lost and (is_quiet or self._is_unsure))
        return is_another

    @property
    def is_unsure(self) -> bool:
        """Nobody's account on this GPU is to be relied on."""
        return self._is_unsure
