# SPDX-License-Identifier: Apache-2.0
"""Tenants are charged what samples say that they had beyond what their calls account for."""

from __future__ import annotations

import pytest

from fairsched.accounting.context import ProcessUse
from fairsched.base.process import ProcessId
from fairsched.gpu.samples import ProcessSamples
from fairsched.model import NOTHING_UNSEEN, Confidence, ContextWork
from tests.unit.act.test_misbehaviour import CGROUP, PERIOD_NS, PID, Node, S, node

__all__ = ["node"]


@pytest.mark.parametrize("is_traced", [False, True])
def test_what_samples_say_that_it_had_is_charged_to_it_where_the_gpu_itself_names_nobody(
    node: Node, is_traced: bool
) -> None:
    node.account.traced = {0} if is_traced else set()
    node.run_unseen(range(7, 30))
    full = {("bad", "GPU-0"): pytest.approx(7 * PERIOD_NS / S)}
    assert node.it.unseen.rates == ({} if is_traced else full)
    assert node.account.intruded == (set() if is_traced else {0}), "what is learnt beside it is not believed"
    for now_s in range(30, 50):
        node.look(now_s)
    assert (node.it.unseen, node.account.intruded) == (NOTHING_UNSEEN, set())


def test_it_is_what_it_has_while_it_runs(node: Node) -> None:
    """Held for three quarters of the time it is sampled in one."""
    for now_s in range(7, 40):
        node.held_ns["bad"] = (now_s - 6) * 3 * S // 4
        if now_s % 4 == 0:
            node.see(now_s)
        node.look(now_s)
    assert node.it.unseen.rates["bad", "GPU-0"] == pytest.approx(7 * PERIOD_NS / S, rel=0.3)


def test_processes_that_are_gone_at_once_are_charged_to_their_tenant_together(node: Node) -> None:
    """Of each there is one sample: nobody can be accused."""
    for now_s in range(7, 30):
        for n in range(3):
            see_once(node, now_s, 100 + 3 * now_s + n)
        node.look(now_s)
    assert node.it.statuses("bad", 30 * S) == ()
    assert node.it.unseen.rates == {("bad", "GPU-0"): pytest.approx(3 * PERIOD_NS / S, rel=0.1)}


def test_what_such_processes_are_charged_explains_the_samples_of_the_others(node: Node) -> None:
    """Many are charged a little each, few are met by a sample."""
    for now_s in range(7, 30):
        for n in range(20):
            node.it.book(
                [ProcessUse(CGROUP, 20 * now_s + n, 0, PERIOD_NS // 20, True, 0, Confidence.HIGH, 1)]
            )
        see_once(node, now_s, 20 * now_s)
        node.look(now_s)
    assert node.it.unseen == NOTHING_UNSEEN


def see_once(node: Node, now_s: float, pid: int) -> None:
    moment = round(now_s * S) - PERIOD_NS
    node.watch.sampled.append(
        ProcessSamples(pid, 0, ProcessId(pid, 1), CGROUP, 1, PERIOD_NS, PERIOD_NS, moment, moment)
    )


def test_beside_one_that_is_only_suspected_and_was_charged_nothing_nothing_is_learnt(node: Node) -> None:
    node.account.works = [ContextWork((0, 1), 12, CGROUP + 1, 0, 9, 8, True, 0, 0, 0, 0)]
    node.see(7)
    node.watch.sampled[-1].samples, node.watch.sampled[-1].busy_ns = 3, 3 * PERIOD_NS
    node.look(7)
    assert node.it.unseen == NOTHING_UNSEEN
    assert node.account.intruded == {0}
    node.it.book([ProcessUse(CGROUP, PID, 0, S // 100, True, 0, Confidence.HIGH, 1)])
    node.look(8)
    assert node.account.intruded == set(), "its calls are seen, whatever they explain"
    assert node.watch.is_urgent, "it is suspected all the same"


def test_what_is_waited_for_is_told_apart() -> None:
    """Of twenty launches a second ten, and of what they took a fifth of a second."""
    found_ns = []
    for anchored_ns in (0, S // 5):
        node = Node()
        node.account.late = {(PID, 0)}
        for now_s in range(1, 30):
            row = ProcessUse(CGROUP, PID, 0, S // 2, True, 0, Confidence.HIGH, 20)
            row.anchored_ns, row.unanchored_launches = anchored_ns, 10
            node.it.book([row])
            node.see(now_s)
            node.look(now_s)
        found_ns.append(node.account.sampled[PID, 0].ns)
    assert found_ns[0] - found_ns[1] == pytest.approx(S / 50)
