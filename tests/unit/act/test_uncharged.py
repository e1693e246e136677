# SPDX-License-Identifier: Apache-2.0
"""What NVML's samples say that a tenant had beyond what it was charged."""

from __future__ import annotations

import pytest

from fairsched.accounting.context import ProcessUse
from fairsched.base.process import ProcessId
from fairsched.gpu.samples import ProcessSamples
from fairsched.model import Confidence
from tests.unit.act.test_misbehaviour import CGROUP, PERIOD_NS, Node, S, node

__all__ = ["node"]


def test_what_unseen_processes_had_is_told_by_tenant(node: Node) -> None:
    """Each is gone before anything can be said of it."""
    for now_s in range(7, 12):
        moment = now_s * S
        node.watch.sampled.append(
            ProcessSamples(now_s, 0, ProcessId(now_s, 1), CGROUP, 1, PERIOD_NS, PERIOD_NS, moment, moment)
        )
        node.look(now_s)
    assert node.account.intruded == set(), "no process is suspected"
    assert node.it.uncharged == {("bad", "GPU-0"): pytest.approx(5 * PERIOD_NS / (5 * S))}
    node.account.traced_gpus = lambda: {0}
    node.look(12)
    assert node.it.uncharged == {}, "there the GPU itself names who had it"


def test_processes_that_are_charged_explain_the_samples_of_their_tenant_also_those_that_have_none(
    node: Node,
) -> None:
    for now_s in range(7, 12):
        for n in range(20):
            node.it.book([ProcessUse(CGROUP, 20 * now_s + n, 0, S // 200, True, 0, Confidence.HIGH, 1)])
        pid, moment = 20 * now_s, now_s * S
        node.watch.sampled.append(
            ProcessSamples(pid, 0, ProcessId(pid, 1), CGROUP, 1, PERIOD_NS, PERIOD_NS, moment, moment)
        )
        node.look(now_s)
    assert node.it.uncharged == {}
