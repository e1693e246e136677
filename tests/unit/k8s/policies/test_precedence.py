# SPDX-License-Identifier: Apache-2.0
"""Which policy is in effect: by what they say and are called, whatever their order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.k8s.policies.model import Policy, policy_of
from fairsched.k8s.policies.precedence import Choice, choose
from fairsched.k8s.policies.selector import Malformed, selector_of
from tests.unit.k8s.policies.made import LABELS, NAMES, SELECTOR, any_policy, policy

POLICIES = st.lists(NAMES, unique=True).flatmap(
    lambda names: st.tuples(*(any_policy(name) for name in names)).map(list)
)


def chosen(
    *documents: dict[str, Any], namespace: str = "ml", labels: Any = None
) -> tuple[str, list[str], list[str]]:
    found = choose([policy_of(one) for one in documents], namespace, labels or {})
    first = "" if found.policy is None else found.policy.name
    return first, [one.name for one in found.lower], [one.name for one in found.tied]


def test_the_highest_priority_is_in_effect() -> None:
    low, high = policy("a", names=["ml"]), policy("z", priority=5)
    assert chosen(low, high) == ("z", ["a"], [])


def test_who_names_it_stands_before_who_selects_it_before_who_selects_all() -> None:
    by_name, all_of_them = policy("z", names=["ml"]), policy("a")
    by_label = policy("b", selector={"matchLabels": {"team": "x"}})
    assert chosen(by_name, by_label, all_of_them, labels={"team": "x"}) == ("z", ["a", "b"], [])
    assert chosen(by_label, all_of_them, labels={"team": "x"}) == ("b", ["a"], [])
    assert chosen(by_label, all_of_them, labels={"team": "y"}) == ("a", [], [])


def test_between_equals_the_first_name_decides_and_that_is_a_conflict() -> None:
    assert chosen(policy("b", names=["ml"]), policy("a", names=["ml"])) == ("a", [], ["b"])


def test_who_does_not_match_has_no_part_in_it() -> None:
    assert chosen(policy("a", names=["web"])) == ("", [], [])


@given(POLICIES, NAMES, LABELS, st.randoms())
def test_the_order_makes_no_difference(
    documents: list[dict[str, Any]], namespace: str, labels: dict[str, str], random: Any
) -> None:
    policies = [policy_of(one) for one in documents]
    first = choose(policies, namespace, labels)
    random.shuffle(policies)
    assert choose(policies, namespace, labels) == first


@given(POLICIES, NAMES, LABELS)
def test_one_that_is_not_in_effect_may_go_and_nothing_changes(
    documents: list[dict[str, Any]], namespace: str, labels: dict[str, str]
) -> None:
    """Nothing is added up, and nobody wins by what a third one is."""
    policies = [policy_of(one) for one in documents]
    found = choose(policies, namespace, labels)
    for other in policies:
        if other is not found.policy:
            rest = [one for one in policies if one is not other]
            assert choose(rest, namespace, labels).policy is found.policy


@given(POLICIES, NAMES, LABELS)
def test_all_that_match_are_told_of_once_and_none_stands_higher(
    documents: list[dict[str, Any]], namespace: str, labels: dict[str, str]
) -> None:
    policies = [policy_of(one) for one in documents]
    found = choose(policies, namespace, labels)
    matching = {one.name for one in policies if one.standing(namespace, labels) is not None}
    told = [one.name for one in (*((found.policy,) if found.policy else ()), *found.lower, *found.tied)]
    assert sorted(told) == sorted(matching)

    def standing(one: Policy) -> tuple[int, int]:
        return one.standing(namespace, labels) or (-1, -1)

    if found.policy is None:
        assert found == Choice()
        return
    assert all(standing(one) < standing(found.policy) for one in found.lower)
    assert all(standing(one) == standing(found.policy) and one.name > found.policy.name for one in found.tied)


@given(SELECTOR, LABELS)
def test_a_selector_is_that_of_kubernetes(document: dict[str, Any], labels: dict[str, str]) -> None:
    """Against the words of its documentation, which say it one by one."""
    holds = [labels.get(key) == value for key, value in document.get("matchLabels", {}).items()]
    for one in document.get("matchExpressions", []):
        value, values = labels.get(one["key"]), one.get("values", [])
        holds.append(
            {
                "In": value is not None and value in values,
                "NotIn": value is None or value not in values,
                "Exists": value is not None,
                "DoesNotExist": value is None,
            }[one["operator"]]
        )
    assert selector_of(document, "s").matches(labels) is all(holds)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (None, "spec is missing"),
        ({}, "spec.namespaces: give either names or selector"),
        ({"namespaces": {"names": [], "selector": {}}}, "spec.namespaces: give either"),
        ({"namespaces": {"names": "ml"}}, "spec.namespaces.names is no list"),
        ({"namespaces": {"selector": {}}, "priority": "high"}, "spec.priority is no whole number"),
        ({"namespaces": {"selector": []}}, "spec.namespaces.selector is no selector"),
        ({"namespaces": {"selector": {}}, "pods": {}}, "spec.pods is no list"),
        ({"namespaces": {"selector": {}}, "pods": [1]}, "spec.pods[0] is no mapping"),
        ({"namespaces": {"selector": {}}, "share": 3}, "spec.share is no mapping"),
        (
            {
                "namespaces": {
                    "selector": {"matchExpressions": [{"key": "a", "operator": "Like", "values": ["b"]}]}
                }
            },
            "spec.namespaces.selector.matchExpressions[0]: write key, operator (In, NotIn, Exists, DoesNotExist)",
        ),
        (
            {"namespaces": {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}},
            "matchExpressions[0].values: In and NotIn need some",
        ),
    ],
)
def test_what_another_definition_let_in_is_told_of_by_its_field(spec: Any, said: str) -> None:
    with pytest.raises(Malformed) as error:
        policy_of({"metadata": {"name": "x"}, "spec": spec})
    assert said in str(error.value)


def test_of_a_key_that_is_not_known_all_others_hold() -> None:
    """It bounds somebody: it must not be let go for a word of a later version."""
    found = policy_of(policy("x", share={"weight": 2, "colour": "red"}, pods=[{"max": {"speed": 1}}]))
    assert found.share == {"weight": 2}
    assert found.unknown == ("spec.share.colour", "spec.pods[0].max.speed")
