# SPDX-License-Identifier: Apache-2.0
"""Whoever leaves its cgroup again and again is named; its account is as good as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairsched.accounting.context import Events, Move
from fairsched.act.misbehaviour import lowered
from fairsched.cgroup.path import Mount
from fairsched.model import Confidence, MisbehaviourKind
from fairsched.protocol.status import MisbehaviourStatus
from tests.unit.act.test_misbehaviour import CGROUP, PID, STRANGE, Node, S, node

__all__ = ["node"]


def leave(node: Node, now_s: float, to: int = STRANGE, before: int = CGROUP) -> None:
    """It was in a cgroup of its tenant, and is in that one now."""
    node.sensors.events = Events(moves=[Move(round(now_s * S), (0, 1), PID, 0, before, to)])
    node.it.book([])
    node.sensors.events = Events()


def test_who_leaves_its_cgroup_again_and_again_is_named_and_held_all_the_same(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    for now_s in (7, 8, 9):
        leave(node, now_s - 0.5)
        leave(node, now_s - 0.4, to=CGROUP, before=STRANGE)  # and comes back
        node.look(now_s)
    (status,) = node.it.statuses("bad", 9 * S)
    assert (status.kind, status.gpu, status.action) == (MisbehaviourKind.MOVING, "GPU-0", "terminate")
    assert status.detail == f"pid {PID} left the tenant's cgroups 3 times in 2 s while it used the GPU"
    assert "misbehaviour=moving" in caplog.text and "leaves=3" in caplog.text
    assert node.it.doubted == frozenset()
    for now_s in range(10, 20):
        node.look(now_s)
    assert node.it.statuses("bad", 20 * S) == ()


@pytest.mark.parametrize("to", [CGROUP, CGROUP + 2])
def test_within_its_own_cgroups_a_tenant_goes_where_it_likes(node: Node, to: int) -> None:
    node.tenants[CGROUP + 2] = "bad"
    for now_s in range(7, 20):
        leave(node, now_s - 0.5, to=to)
        leave(node, now_s - 0.4, to=CGROUP, before=555)  # a stranger who joins
        node.look(now_s)
    assert node.it.statuses("bad", 20 * S) == ()


def test_a_child_that_was_made_for_a_moment_is_still_its_own(node: Node, tmp_path: Path) -> None:
    """At the move the tree does not know it; a second later it is gone, or is the tenant's."""
    node.it._tree.mount = Mount(str(tmp_path))
    for now_s in range(7, 20):
        leave(node, now_s - 0.5, to=CGROUP + 50 + now_s)
        leave(node, now_s - 0.3, to=CGROUP + 80 + now_s)
        node.tenants[CGROUP + 80 + now_s] = "bad"
        node.look(now_s)
    assert node.it.statuses("bad", 20 * S) == ()


def test_a_cgroup_that_is_gone_after_it_was_left_was_the_tenants_all_the_same(node: Node) -> None:
    for now_s in (7, 8, 9):
        node.tenants[CGROUP + now_s] = "bad"
        leave(node, now_s - 0.5, before=CGROUP + now_s)
        del node.tenants[CGROUP + now_s]
        node.look(now_s)
    assert [status.kind for status in node.it.statuses("bad", 9 * S)] == [MisbehaviourKind.MOVING]


def test_the_root_is_in_no_list_and_is_elsewhere_all_the_same(node: Node, tmp_path: Path) -> None:
    node.it._tree.mount = Mount(str(tmp_path))
    for now_s in (7, 8, 9):
        leave(node, now_s - 0.5, to=tmp_path.stat().st_ino)
        node.look(now_s)
    assert [status.kind for status in node.it.statuses("bad", 9 * S)] == [MisbehaviourKind.MOVING]


def test_going_to_another_tenant_is_leaving(node: Node) -> None:
    for now_s in (7, 8, 9):
        leave(node, now_s - 0.5, to=CGROUP + 1)
        node.look(now_s)
    assert [status.kind for status in node.it.statuses("bad", 9 * S)] == [MisbehaviourKind.MOVING]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((), Confidence.HIGH),
        ((MisbehaviourKind.MOVING,), Confidence.HIGH),  # what it does inside is in the account
        ((MisbehaviourKind.UNSEEN,), Confidence.LOW),
        ((MisbehaviourKind.MOVING, MisbehaviourKind.ENDLESS), Confidence.LOW),
    ],
)
def test_only_what_makes_the_account_doubtful_lowers_the_confidence(
    kinds: tuple[MisbehaviourKind, ...], expected: Confidence
) -> None:
    episodes = [MisbehaviourStatus(kind, 0.0, "GPU-a", "", "warn") for kind in kinds]
    assert lowered(Confidence.HIGH, episodes) is expected


def test_closing_ends_the_watch(node: Node) -> None:
    node.it.close()
    assert node.watch.is_closed
