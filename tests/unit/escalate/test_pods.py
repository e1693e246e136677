# SPDX-License-Identifier: Apache-2.0
"""Who may be moved away, who must stay, and who goes first."""

from __future__ import annotations

from typing import Any

import pytest

from fairsched.escalate.pods import PROTECT_ANNOTATION, Rules, choose
from tests.unit.escalate.api_server import pod
from tests.unit.escalate.reports import report, tenant

RULES = Rules(max_priority=1000)


def names(pods: list[dict[str, Any]], rules: Rules = RULES, **more: Any) -> list[str]:
    return [one.name for one in choose(pods, more.get("report"), more.get("tenant"), rules).candidates]


def cgroup(one: dict[str, Any]) -> str:
    return f"/kubepods/burstable/pod{one['metadata']['uid']}/{'3f' * 32}"


def test_the_lowest_priority_goes_first() -> None:
    assert names([pod("b", priority=100), pod("a", priority=-5), pod("c", priority=0)]) == ["a", "c", "b"]


def test_of_equals_the_one_that_is_furthest_ahead_goes_then_the_youngest() -> None:
    old, young, greedy = pod("old"), pod("young", created="2026-06-01T00:00:00Z"), pod("greedy")
    seen = report([tenant("t", used=0.6, cgroups=(cgroup(greedy),))])
    assert names([old, young, greedy], report=seen) == ["greedy", "young", "old"]


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (pod("x", owner="DaemonSet"), "of a DaemonSet"),
        (pod("x", owner="Node"), "static"),
        (pod("x", metadata={"annotations": {"kubernetes.io/config.mirror": "h"}}), "static"),
        (pod("x", metadata={"ownerReferences": []}), "without a controller"),
        (pod("x", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), "ends already"),
        (pod("x", status={"phase": "Succeeded"}), "is over"),
        (pod("x", namespace="kube-system"), "in a protected namespace"),
        (pod("x", priority=1001), "of a priority above max_priority"),
        (pod("x", metadata={"annotations": {PROTECT_ANNOTATION: "true"}}), f"annotated {PROTECT_ANNOTATION}"),
    ],
)
def test_who_must_stay(one: dict[str, Any], why: str) -> None:
    choice = choose([one, pod("other")], None, None, RULES)
    assert [candidate.name for candidate in choice.candidates] == ["other"]
    assert choice.passed == {why: 1}


def test_only_the_namespaces_that_are_named() -> None:
    pods = [pod("a", namespace="lab"), pod("b", namespace="team")]
    assert names(pods, Rules(namespaces=("lab",))) == ["a"]


@pytest.mark.parametrize(
    ("limits", "is_candidate"),
    [
        ({"nvidia.com/gpu": "1"}, True),
        ({"nvidia.com/mig-3g.20gb": "1"}, True),
        ({"nvidia.com/gpu.shared": "1"}, True),
        ({"cpu": "1"}, False),
        ({}, False),
        ({"amd.com/gpu": "1"}, False),
    ],
)
def test_a_pod_without_a_gpu_helps_nobody(limits: dict[str, str], is_candidate: bool) -> None:
    assert names([pod("x", limits=limits)]) == (["x"] if is_candidate else [])


def test_a_pod_that_the_daemon_sees_at_a_gpu_uses_one_whatever_it_asks_for() -> None:
    hidden = pod("hidden", limits={})
    assert names([hidden]) == []
    assert names([hidden], report=report([tenant("t", cgroups=(cgroup(hidden),))])) == ["hidden"]


def test_the_sufferer_and_its_equals_stay() -> None:
    mine, equal, lower = pod("mine", priority=10), pod("equal", priority=10), pod("lower", priority=9)
    seen = report([tenant("chat", cgroups=(cgroup(mine),))])
    choice = choose([mine, equal, lower], seen, "chat", RULES)
    assert [one.name for one in choice.candidates] == ["lower"]
    assert choice.passed == {"the sufferer's own": 1, "of no lower priority than the sufferer": 1}
