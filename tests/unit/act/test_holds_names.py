# SPDX-License-Identifier: Apache-2.0
"""Tenants that are called something else while they are held, or whose names are gone for good."""

from __future__ import annotations

import pytest

from tests.unit.act.test_holds import GRANT, make_world, view


@pytest.mark.parametrize("is_granted", [False, True])
def test_the_account_hears_of_the_thaw_of_all_that_was_held_whatever_it_is_called_now(
    is_granted: bool,
) -> None:
    world = make_world()
    world.hold("chat", 100)
    if is_granted:
        world.account.queued_ns = [50]
        world.applier.apply([GRANT], 200)
    world.tree.tenants = {"talk": view("talk", 1), "train": view("train", 2, 3)}
    world.thaw("chat", 400)
    assert world.freezer.holds == {}
    assert world.account.told[-1] == ("thaw", frozenset({1, 10}), 400)


def test_the_account_hears_of_cgroups_that_were_made_during_the_hold_too() -> None:
    world = make_world()
    world.hold("chat", 100)
    world.tree.tenants = {"chat": view("chat", 1, 4)}
    world.thaw("chat", 400)
    assert world.account.told[-1] == ("thaw", frozenset({1, 10, 4, 40}), 400)
    world.hold("chat", 500)
    world.tree.tenants = {"chat": view("chat", 4)}
    world.thaw("chat", 600)
    assert world.account.told[-1] == ("thaw", frozenset({1, 10, 4, 40}), 600)
    world.hold("chat", 700)
    world.thaw("chat", 800)
    assert world.account.told[-1] == ("thaw", frozenset({4, 40}), 800), "what was told of once is over"
