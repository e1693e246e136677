# SPDX-License-Identifier: Apache-2.0
"""Who is held wants what it wanted before, though whatever wanted it has ended."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from fairsched.model import Confidence, Snapshot, Use
from fairsched.observe.held_demand import HeldDemand

CHAT = Use("chat", "a", 5, True, 0, Confidence.HIGH)
HOG = Use("hog", "a", 9, True, 7, Confidence.SAMPLED, launches=3)
ENDED = HOG._replace(has_demand=False, outstanding_ns=0)
LEFT = Use("hog", "a", 0, True, 0, Confidence.SAMPLED)


class World:
    """Snapshots come, and ``lived_in`` are the tenants with a process."""

    def __init__(self) -> None:
        self.lived_in = {"chat", "hog"}
        self.asked = 0
        self._demand = HeldDemand(self._is_lived_in)

    def _is_lived_in(self, tenant: str) -> bool:
        self.asked += 1
        return tenant in self.lived_in

    def of(self, *uses: Use, held: Collection[str] = ()) -> set[Use]:
        """What becomes of them."""
        return set(self._demand.keep(Snapshot(0, 1, uses), held).uses)


@pytest.fixture
def world() -> World:
    """The hog was seen to want GPU a."""
    made = World()
    made.of(CHAT, HOG)
    return made


def test_who_ends_in_a_hold_leaves_the_demand_for_as_long_as_it_lasts(world: World) -> None:
    assert world.of(CHAT, HOG, held={"hog"}) == {CHAT, HOG}
    assert world.asked == 0, "nothing has ended"
    assert world.of(CHAT, ENDED, held={"hog"}) == {CHAT, ENDED._replace(has_demand=True)}
    for _ in range(3):
        assert world.of(CHAT, held={"hog"}) == {CHAT, LEFT}
    assert world.of(CHAT) == {CHAT}
    assert world.of(CHAT, held={"hog"}) == {CHAT}, "held again, and it wanted nothing"


def test_who_ends_between_the_hold_and_the_next_look_leaves_it_as_well(world: World) -> None:
    assert world.of(CHAT, held={"hog"}) == {CHAT, LEFT}


def test_a_tenant_without_a_process_wants_nothing(world: World) -> None:
    world.lived_in.remove("hog")
    assert world.of(CHAT, ENDED, held={"hog"}) == {CHAT, ENDED}
    assert world.of(CHAT, held={"hog"}) == {CHAT}


def test_who_wanted_nothing_when_it_was_held_wants_nothing(world: World) -> None:
    world.of(CHAT, ENDED)
    assert world.of(CHAT, ENDED, held={"hog"}) == {CHAT, ENDED}
    assert world.of(CHAT, held={"hog"}) == {CHAT}


def test_only_what_was_wanted_is(world: World) -> None:
    """On another GPU, and of another tenant, nothing."""
    other = HOG._replace(gpu="b", has_demand=False)
    world.of(CHAT, HOG, other)
    assert world.of(held={"hog"}) == {LEFT}
    assert world.of(ENDED, other, held={"hog"}) == {ENDED._replace(has_demand=True), other}


def test_who_is_held_while_another_is_leaves_its_own(world: World) -> None:
    world.of(CHAT, HOG, held={"hog"})
    chat = Use("chat", "a", 0, True, 0, Confidence.HIGH)
    assert world.of(held={"hog", "chat"}) == {LEFT, chat}
    assert world.of(held={"chat"}) == {chat}
