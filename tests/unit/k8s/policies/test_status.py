# SPDX-License-Identifier: Apache-2.0
"""A policy's status says whom it reaches and which others it meets."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairsched.k8s.policies.crd import MOST_TOLD, definition
from fairsched.k8s.policies.status import differs, statuses
from tests.unit.k8s.policies.made import LABELS, NAMES, any_pod, any_policy, pod, policy, space

NOW = "2026-11-27T14:00:00Z"
SCHEMA = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]


def of(policies: Any, namespaces: Any, pods: Any = ()) -> dict[str, dict[str, Any]]:
    return statuses(policies, namespaces, pods, NOW)


def condition(status: dict[str, Any], kind: str) -> tuple[str, str, str]:
    (found,) = [one for one in status["conditions"] if one["type"] == kind]
    return found["status"], found["reason"], found["message"]


def test_who_is_reached_is_counted_by_rule() -> None:
    rules = [
        {"selector": {"matchLabels": {"tier": "gold"}}},
        {"selector": {"matchLabels": {"tier": "silver"}}},
    ]
    pods = [pod("a", labels={"tier": "gold"}), pod("b", labels={"tier": "gold"}), pod("c"), pod("d", "web")]
    found = of([policy("p", names=["ml", "web", "gone"], pods=rules)], [space(), space("web")], pods)["p"]
    assert (found["matched"], found["namespaces"], found["names"]) == (2, 2, ["ml", "web"])
    assert (found["pods"], found["podsByRule"], found["podsWithoutRule"]) == (4, [2, 0], 2)
    assert found["observedGeneration"] == 1
    assert condition(found, "Effective") == ("True", "InEffect", "in effect in 2 namespaces")
    assert condition(found, "Conflicting") == ("False", "NoConflict", "")


def test_who_is_overruled_says_by_whom() -> None:
    both = [policy("low"), policy("high", names=["ml"])]
    found = of(both, [space(), space("web")])
    assert found["low"]["overruledBy"] == [{"policy": "high", "namespaces": 1, "wins": True}]
    assert condition(found["low"], "Effective")[2] == "in effect in 1 namespace of 2 that match"
    alone = of(both, [space()])["low"]
    status, reason, message = condition(alone, "Effective")
    assert (status, reason) == ("False", "Overruled") and message.startswith("1 namespace of other policies")


def test_a_conflict_is_told_of_on_both_sides_with_what_to_do() -> None:
    found = of([policy("a", names=["ml"]), policy("b", names=["ml"])], [space()])
    assert found["a"]["conflicts"] == [{"policy": "b", "namespaces": 1, "wins": False}]
    assert found["b"]["conflicts"] == [{"policy": "a", "namespaces": 1, "wins": True}]
    assert found["b"]["overruledBy"] == []
    assert condition(found["b"], "Conflicting") == (
        "True", "SameStanding", "stands as high as a, where both match: give one of them another priority"
    )  # fmt: skip


def test_who_matches_nobody_says_so() -> None:
    assert condition(of([policy("p", names=["nope"])], [space()])["p"], "Effective")[1] == "NoNamespace"


def test_what_cannot_be_read_says_why() -> None:
    bad = {"metadata": {"name": "bad", "generation": 3}, "spec": {"namespaces": {}}}
    found = of([bad], [space()])["bad"]
    assert condition(found, "Effective") == (
        "False", "NotUnderstood", "spec.namespaces: give either names or selector"
    )  # fmt: skip


def test_a_condition_keeps_its_time_as_long_as_it_holds_and_then_nothing_is_written() -> None:
    one = policy("p", names=["ml"])
    status = statuses([one], [space()], [], "2026-01-01T00:00:00Z")["p"]
    assert differs(status, one)
    one["status"] = status
    assert not differs(of([one], [space()])["p"], one)
    later = of([one], [])["p"]
    times = {entry["type"]: entry["lastTransitionTime"] for entry in later["conditions"]}
    assert times == {"Effective": NOW, "Conflicting": "2026-01-01T00:00:00Z"}


def test_of_many_some_are_named_and_all_are_counted() -> None:
    spaces = [space(f"n{i:03}") for i in range(50)]
    many = [policy(f"p{i:03}") for i in range(40)]
    found = of(many, spaces)
    assert found["p000"]["namespaces"] == 50 and len(found["p000"]["names"]) == MOST_TOLD
    assert len(found["p000"]["conflicts"]) == MOST_TOLD
    assert found["p039"]["conflicts"] == [{"policy": "p000", "namespaces": 50, "wins": True}]


WORLDS = st.tuples(
    st.lists(NAMES, unique=True).flatmap(lambda names: st.tuples(*map(any_policy, names)).map(list)),
    st.tuples(*(LABELS.map(lambda labels, name=name: space(name, labels)) for name in "abc")).map(list),
    st.lists(st.sampled_from(["p", "q", "r"]), unique=True).flatmap(
        lambda names: st.tuples(*map(any_pod, names)).map(list)
    ),
)


@given(WORLDS, st.randoms())
def test_the_same_is_written_in_whatever_order_things_are_seen(world: Any, random: Any) -> None:
    """So two leaders, one after the other, do not write over each other for ever."""
    first = of(*world)
    for things in world:
        random.shuffle(things)
    assert of(*world) == first


@given(WORLDS)
def test_each_namespace_is_counted_for_one_policy_and_each_pod_once(world: Any) -> None:
    policies, _, pods = world
    found = of(*world)
    names = [name for one in found.values() for name in one["names"]]
    assert len(names) == len(set(names)) == sum(one["namespaces"] for one in found.values())
    there = [one for one in pods if one["metadata"]["namespace"] in names]
    assert sum(one["pods"] for one in found.values()) == len(there)
    for one in policies:
        status = found[one["metadata"]["name"]]
        has_rules = "pods" in one["spec"]
        assert sum(status["podsByRule"]) + status["podsWithoutRule"] == (status["pods"] if has_rules else 0)
        assert status["matched"] == status["namespaces"] + sum(
            entry["namespaces"]
            for key in ("overruledBy", "conflicts")
            for entry in status[key]
            if entry["wins"]
        )


@given(WORLDS)
def test_it_is_what_the_definition_has(world: Any) -> None:
    """What it has not, the API server would drop, and it would be written again and again."""
    for status in of(*world).values():
        assert set(status) == set(SCHEMA["properties"])
        for entry in status["conditions"]:
            assert set(entry) == set(SCHEMA["properties"]["conditions"]["items"]["properties"])
