# SPDX-License-Identifier: Apache-2.0
"""Who may be moved away, who must stay, and who goes first."""

from __future__ import annotations

from typing import Any

import pytest

from fairsched.companion.escalate.pods import PROTECT_ANNOTATION, Choice, EvictionRules, choose
from tests.unit.companion.escalate.api_server import pod
from tests.unit.companion.escalate.reports import GPU, OTHER_GPU, cgroup, report, tenant

RULES = EvictionRules(max_priority=1000)
MINE = pod("mine", priority=100_000)


def chosen(
    pods: list[dict[str, Any]], rules: EvictionRules = RULES, gpu: str | None = GPU, **used: float
) -> Choice:
    """To help the tenant of the pod MINE; every pod is a tenant on GPU that has `used` so much, .25 unless said."""
    everybody = [MINE, *pods]
    tenants = [
        tenant(name, cgroups=(cgroup(one),), used=used.get(name, 0.25))
        for one in everybody
        for name in (one["metadata"]["name"],)
    ]
    return choose(everybody, report(tenants), "mine", gpu, rules)


def names(pods: list[dict[str, Any]], rules: EvictionRules = RULES, **used: float) -> list[str]:
    return [one.name for one in chosen(pods, rules, **used).candidates]


def test_the_lowest_priority_goes_first() -> None:
    assert names([pod("b", priority=100), pod("a", priority=-5), pod("c", priority=0)]) == ["a", "c", "b"]


def test_of_equals_the_one_that_is_furthest_ahead_goes_then_the_youngest() -> None:
    old, young, greedy = pod("old"), pod("young", created="2026-06-01T00:00:00Z"), pod("greedy")
    assert names([old, young, greedy], greedy=0.6) == ["greedy", "young", "old"]


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
    choice = chosen([one, pod("other")])
    assert [candidate.name for candidate in choice.candidates] == ["other"]
    assert choice.passed == {why: 1, "the sufferer's own": 1}


def test_only_the_namespaces_that_are_named() -> None:
    pods = [pod("a", namespace="lab"), pod("b", namespace="team")]
    assert names(pods, EvictionRules(namespaces=("lab",))) == ["a"]


@pytest.mark.parametrize(
    ("limits", "is_told_of"),
    [
        ({"nvidia.com/gpu": "1"}, True),
        ({"nvidia.com/mig-3g.20gb": "1"}, True),
        ({"nvidia.com/gpu.shared": "1"}, True),
        ({"cpu": "1"}, False),
        ({}, False),
        ({"amd.com/gpu": "1"}, False),
    ],
)
def test_a_pod_that_nobody_has_seen_on_the_gpu_stays(limits: dict[str, str], is_told_of: bool) -> None:
    choice = choose(
        [MINE, pod("x", limits=limits)],
        report([tenant("mine", cgroups=(cgroup(MINE),))]),
        "mine",
        GPU,
        RULES,
    )
    assert choice.candidates == ()
    assert ("not on the sufferer's GPU" in choice.passed) == is_told_of


def test_a_pod_that_the_daemon_sees_at_a_gpu_uses_one_whatever_it_asks_for() -> None:
    assert names([pod("hidden", limits={})]) == ["hidden"]


def test_the_sufferer_and_its_equals_stay() -> None:
    mine, equal, lower = pod("mine", priority=10), pod("equal", priority=10), pod("lower", priority=9)
    tenants = [tenant(one["metadata"]["name"], cgroups=(cgroup(one),)) for one in (mine, equal, lower)]
    choice = choose([mine, equal, lower], report(tenants), "mine", GPU, RULES)
    assert [one.name for one in choice.candidates] == ["lower"]
    assert choice.passed == {"the sufferer's own": 1, "of no lower priority than the sufferer": 1}


@pytest.mark.parametrize(("gpu", "goes"), [(GPU, ["here", "both"]), (OTHER_GPU, ["both", "there"])])
def test_who_is_on_another_gpu_would_move_for_nothing(gpu: str, goes: list[str]) -> None:
    pods = [pod("here", priority=1), pod("both", priority=2), pod("there", priority=3), pod("idle")]
    where: dict[str, dict[str, Any]] = {
        "here": {"on": (GPU,)},
        "both": {"on": (GPU,), "contexts_by_gpu": {OTHER_GPU: 1}},
        "there": {"on": (OTHER_GPU,)},
        "idle": {"on": ()},
        "mine": {"on": (GPU, OTHER_GPU)},
    }
    everybody = [MINE, *pods]
    tenants = [
        tenant(name, cgroups=(cgroup(one),), **where[name])
        for one in everybody
        for name in (one["metadata"]["name"],)
    ]
    choice = choose(everybody, report(tenants), "mine", gpu, RULES)
    assert [one.name for one in choice.candidates] == goes
    assert choice.passed == {"the sufferer's own": 1, "not on the sufferer's GPU": 2}
