# SPDX-License-Identifier: Apache-2.0
"""Work that is in no account is in the Snapshot all the same: charged to whose it is, and not to the others."""

from __future__ import annotations

from typing import Any

import pytest

from fairsched.model import Confidence, Hold, Unseen, Use
from fairsched.observe.snapshot import Observation, build_snapshot
from fairsched.observe.tree import Tree
from tests.support import FakeTree
from tests.unit.observe.test_tree import GPUS, S, files, id_of, row, tree

__all__ = ["files", "tree"]

RATES = Unseen({("train", "GPU-a"): 0.25, ("train", "GPU-b"): 0.5}, {"GPU-a": 0.75})
HELD = {"train": Hold("train", 0, S, is_ours=True)}


@pytest.fixture
def uses(tree: Tree, files: FakeTree) -> Any:
    def seen(**of: Any) -> dict[tuple[str, str], Use]:
        rows = [row(id_of(files, "/gpu/chat"), S // 2), row(id_of(files, "/gpu/train"), S // 10)]
        observation = Observation(S, S, rows, unseen=RATES, **of)
        return {(use.tenant, use.gpu): use for use in build_snapshot(observation, tree, GPUS)[0].uses}

    return seen


def test_it_is_charged_to_its_tenant_and_taken_from_the_others(uses: Any) -> None:
    found = uses()
    assert found["chat", "GPU-a"].used_ns == S // 2 * 0.75
    assert found["chat", "GPU-a"].confidence is Confidence.HIGH, "which says nothing of its own account"
    one = found["train", "GPU-a"]
    assert one.used_ns == one.charged_ns == S // 10 + S // 4


def test_a_tenant_is_held_for_it_where_it_has_nothing_else(uses: Any) -> None:
    other = uses()["train", "GPU-b"]
    assert (other.charged_ns, other.is_enforced, other.has_demand) == (S // 2, True, True)
    assert other.confidence is Confidence.LOW


def test_of_who_is_charged_a_bound_the_bound_is_less_as_well(tree: Tree, files: FakeTree) -> None:
    rows = [row(id_of(files, "/gpu/chat"), S // 2, confidence=Confidence.BOUND)]
    uses = build_snapshot(Observation(S, S, rows, unseen=RATES), tree, GPUS)[0].uses
    assert {use.charged_ns for use in uses if use.tenant == "chat"} == {S // 2 * 0.75}


def test_nobody_is_held_for_its_sake(uses: Any) -> None:
    assert [use.may_be_owed for use in uses().values()] == [True, False, False]


def test_held_it_has_nothing_and_the_others_are_charged_as_before(uses: Any) -> None:
    found = uses(holds=HELD)
    assert found["train", "GPU-b"].charged_ns == 0
    assert found["train", "GPU-b"].has_demand, "until it is let go"
    assert found["chat", "GPU-a"].used_ns == S // 2 * 0.75, "what it had queued goes on"


@pytest.mark.parametrize("what", ["doubted", "kept"])
def test_who_does_work_that_never_ends_besides_is_held_and_who_is_never_held_is_not(
    uses: Any, what: str
) -> None:
    one = uses(**{what: {("train", "GPU-a")}})["train", "GPU-a"]
    assert one.is_enforced is (what == "doubted")


def test_who_is_over_its_budget_may_have_used_all_of_every_gpu_that_others_use(
    tree: Tree, files: FakeTree
) -> None:
    chat, train = id_of(files, "/gpu/chat"), id_of(files, "/gpu/train")
    rows = [row(chat), row(train, 3), row(chat, gpu=1)]
    for holds, most_ns in (({}, S), ({"train": Hold("train", 1, 2, is_ours=True)}, 0)):
        seen = Observation(S, S, rows, holds, hidden={"train"})
        uses = {(use.tenant, use.gpu): use for use in build_snapshot(seen, tree, GPUS)[0].uses}
        assert uses["train", "GPU-a"].used_ns == 3, "what is told of it is what is known of it"
        for gpu in ("GPU-a", "GPU-b"):
            one = uses["train", gpu]
            assert (one.charged_ns, one.may_be_owed) == (max(most_ns, one.used_ns), False)
            assert one.has_demand and one.is_enforced
            assert uses["chat", gpu].most_ns is None
