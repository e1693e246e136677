# SPDX-License-Identifier: Apache-2.0
"""Whether the replay of a GPU can be relied on: it is tuned, and it is watched.

Two witnesses. Anchors that miss call for another nature (tuner.py); when none fits, the account is a guess. Work that
costs another time in company than alone shows what anchors do not (evenness.py). While one of them objects nobody's
account on that GPU is sure, and nobody is held there.

Contexts that come and go make anchors miss as well, and a tenant may do that on purpose, to be held no more. So anchors
begin to object only on a GPU where none has come or gone for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable

from fairsched.accounting.evenness import Evenness
from fairsched.accounting.replay import TRUSTED_HIT_RATIO, Replay
from fairsched.accounting.tuner import Tuner

_QUIET_NS = 10_000_000_000
"""For so long no context came or went: anchors that miss now have another reason."""

logger = logging.getLogger(__name__)


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

    def forget(self, key: Hashable, now_ns: int) -> None:
        """This one went."""
        self.note_change(now_ns)
        self.evenness.forget(key)

    def step(self, now_ns: int) -> bool:
        """A few times a second: some milliseconds of search, when it is due. True: the replay is another now."""
        before = self.tuner.last
        is_another = self.tuner.step(now_ns)
        if self.tuner.last is not before:
            logger.debug("turns=searched %s", self.tuner.last)
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
