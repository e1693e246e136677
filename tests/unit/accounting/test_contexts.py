# SPDX-License-Identifier: Apache-2.0
"""Contexts are found by cgroup, of which a tenant may have thousands and work in one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairsched.accounting.context import Context
from fairsched.accounting.contexts import Contexts


class Crowd(frozenset[int]):
    """Cgroups that nobody may go through one by one."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("thousands were gone through")


@pytest.fixture
def contexts() -> Contexts:
    found = Contexts()
    for slot, cgroup_id in enumerate((5, 5, 6)):
        found.add(Context((slot, 1), 40 + slot, cgroup_id, 0))
    return found


def slots(contexts: list[Context]) -> list[int]:
    return sorted(context.key[0] for context in contexts)


def test_of_a_crowd_of_cgroups_only_those_that_work_are_looked_at(contexts: Contexts) -> None:
    assert slots(contexts.of(Crowd({5, *range(1000, 3000)}))) == [0, 1]


@pytest.mark.parametrize("asked", [(5,), [5, 5], {5}, {5, 7, 8}, iter([5]), frozenset({5}), {5: ""}.keys()])
def test_however_it_is_asked_each_comes_once(contexts: Contexts, asked: list[int]) -> None:
    assert slots(contexts.of(asked)) == [0, 1]
    assert slots(contexts.of([])) == []
