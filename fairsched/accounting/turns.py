# SPDX-License-Identifier: Apache-2.0
"""Whether the replay of a GPU can be relied on: it is tuned, and it is watched.

Two signs tell against it. Anchors that miss call for another nature (tuner.py); when none fits, the account is a guess.
Work that costs another time in company than alone shows what anchors do not (evenness.py). While one of them stands no
account on that GPU is sure, and nobody is held there. It takes more than one tenant's claim (witnesses.py).

Contexts that come and go make anchors miss as well, and a tenant may do that on purpose, to be held no more. So anchors
count against it only on a GPU where none has come or gone for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

from fairsched.accounting.context import Context
from fairsched.accounting.evenness import Evenness
from fairsched.accounting.replay import TRUSTED_HIT_RATIO, Replay
from fairsched.accounting.silent import Silence
from fairsched.accounting.tuner import POOR_HIT_RATIO, SliceTiming, Tuner
from fairsched.accounting.witnesses import Anchors, Claims
from fairsched.model import ContextKey

_QUIET_NS = 10_000_000_000
"""For so long no context came or went: anchors that miss now have another reason."""
_SETTLE_NS = 10_000_000_000

logger = logging.getLogger(__name__)


class ReplayTrust:
    """Whether the replay of one GPU can be relied on."""

    def __init__(self, replay: Replay, owner_of: Callable[[int], Hashable] = lambda cgroup: cgroup) -> None:
        """``owner_of``: the tenant of a cgroup; what is one tenant's has one voice."""
        self.replay = replay
        self._owner_of = owner_of
        self.tuner = Tuner(replay)
        self.evenness = Evenness()
        self.claims = Claims(replay)
        self.anchors = Anchors()
        self.silence = Silence(replay)
        self._others_hit_ratio: float | None = None
        self.has_stand_in = False
        """Somebody is in the replay whom the clock does not know."""
        self._changed_ns = 0
        self._is_unsure = False

    def note_change(self, now_ns: int, *, is_late: bool = False) -> None:
        """A context came or went.

        Late: it may have worked unseen, so whoever seemed alone before may not have been; and until some of its
        drains were seen, what others are charged beside them is a guess.
        """
        self._changed_ns = now_ns
        if is_late:
            self.evenness.reset(ignore_until_ns=now_ns + _SETTLE_NS)

    def forget(self, key: ContextKey, now_ns: int) -> None:
        """This one went."""
        self.note_change(now_ns)
        self.evenness.forget(key)
        self.claims.forget(key)
        self.silence.forget(key)

    def begin(self, context: Context, t_ns: int) -> None:
        """A burst begins."""
        self.claims.begin(context.key, self._owner_of(context.cgroup_id), t_ns)
        if self.replay.tape is not None:
            self.replay.tape.note("begin", context.key)

    def end(self, context: Context, spent_ns: int, launches: int, t_ns: int) -> None:
        """A burst that no hold touched has ended; the next one may begin now."""
        key, begun_ns, owner = context.key, context.seq_ns, self._owner_of(context.cgroup_id)
        self.claims.end(key, begun_ns, spent_ns, launches, t_ns)
        self.evenness.note(key, owner, spent_ns, launches, t_ns - begun_ns, t_ns)
        self.claims.begin(key, owner, t_ns)

    def hear(self, context: Context, is_hit: bool | None) -> None:
        """A burst of it ended as the replay thought, or not; None: that could not be told."""
        self.silence.hear(context, is_hit)
        if is_hit is not None:
            self.anchors.hear(self._owner_of(context.cgroup_id), is_hit)

    @property
    def hit_ratio(self) -> float:
        """Of the anchors, less those of one tenant if its alone miss."""
        return self.replay.hit_ratio if self._others_hit_ratio is None else self._others_hit_ratio

    def step(self, now_ns: int) -> bool:
        """A few times a second: some milliseconds of search, when it is due. True: the replay is another now."""
        before = self.tuner.last
        is_poor = self.replay.hit_ratio < POOR_HIT_RATIO
        self._others_hit_ratio = self.anchors.without_one(self.claims.owners()) if is_poor else None
        is_another = self.tuner.step(now_ns)
        if self.tuner.last is not before:
            logger.debug("turns=searched %s", self.tuner.last)
        if is_another:
            self._forget_seen()
        # Where another nature was hit clearly more often, and none was adopted, the present one is hardly right.
        least = POOR_HIT_RATIO if self.tuner.is_disputed else TRUSTED_HIT_RATIO
        hit_ratio = self.hit_ratio
        is_lost = self.tuner.is_settled and hit_ratio < least
        is_quiet = now_ns - self._changed_ns > _QUIET_NS
        was_unsure = self._is_unsure
        is_uneven = self.claims.are_supported(self.evenness.claims(now_ns), now_ns)
        self._is_unsure = is_uneven or (is_lost and (is_quiet or was_unsure))
        if self._is_unsure and not was_unsure:
            why = self.evenness.last if is_uneven else f"missed {self.tuner.last}"
            logger.warning("turns=unsure hit=%.2f why=%s", hit_ratio, why)
        return is_another

    def note_stand_in(self, now_ns: int, *, is_there: bool) -> bool:
        """Somebody whom no edge tells of is in the replay from now on, or no longer: what was seen says nothing.

        True: the replay is another now.
        """
        self.has_stand_in = is_there
        self._forget_seen()
        return self.tuner.restart(now_ns)

    def _forget_seen(self) -> None:
        self.evenness.reset()
        self.claims.reset()
        self.anchors.reset()
        self._others_hit_ratio = None

    @property
    def nature(self) -> SliceTiming:
        """The one in force."""
        return SliceTiming(self.replay.slice_ns, self.replay.switch_ns)

    @property
    def learnt(self) -> str:
        """What is in force, for the log."""
        last, (slice_ns, switch_ns) = self.tuner.last, self.nature
        order = "another" if last is not None and last.is_order_adopted else "same"
        return f"slice_us={slice_ns // 1000} switch_us={switch_ns // 1000} order={order}"

    @property
    def is_replay_trusted(self) -> bool:
        """False: the account comes from the clock, until a search for another nature has ended."""
        return self.hit_ratio >= TRUSTED_HIT_RATIO or self.tuner.is_settled or self.has_stand_in

    @property
    def is_unsure(self) -> bool:
        """Nobody's account on this GPU is to be relied on."""
        return self._is_unsure
