# SPDX-License-Identifier: Apache-2.0
"""What pods asked for as a resource is what they weigh, unless they say otherwise; and nobody else pays for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.companion.pods.asked import Asked, joined
from fairsched.companion.pods.policy import Given, make_layer
from tests.unit.companion.pods.test_policy import pod, space
from tests.unit.k8s.policies.made import policy

A, B = "GPU-a", "GPU-b"


def layer(*pods: dict[str, Any], asked: dict[str, Asked], **said: str) -> dict[str, Any]:
    """Of the namespace ml, by the names of its pods."""
    claimed = {("ml", name): one for name, one in asked.items()}
    made = make_layer(pods, [space(**said)], given=Given(claimed=claimed))
    assert made.complaints == []
    found: dict[str, Any] = made.layer["ml"]
    return found


def test_a_share_is_a_weight_and_the_namespace_is_worth_what_its_pods_got() -> None:
    found = layer(pod("a", gpu=False), pod("b", gpu=False), asked={"a": Asked({A: 75}), "b": Asked({A: 25})})
    assert found["weight"] == 100
    assert {name: child["weight"] for name, child in found["children"].items()} == {"a": 75, "b": 25}


def test_what_is_said_goes_before_and_does_not_change_the_namespaces_part() -> None:
    found = layer(pod("a", weight="1000000"), asked={"a": Asked({A: 25})})
    assert found["children"]["a"]["weight"] == 1_000_000 and found["weight"] == 25
    assert layer(pod("a"), asked={"a": Asked({A: 25})}, weight="3")["weight"] == 3


def test_a_weight_of_a_claim_divides_the_namespaces_part_and_no_other() -> None:
    found = layer(pod("a"), asked={"a": Asked({A: 25}, {"weight": 1_000_000, "class": "batch"})})
    assert found["children"]["a"] == {"pods": ["a"], "weight": 1_000_000, "class": "batch"}
    assert found["weight"] == 25


def test_on_each_gpu_a_pod_weighs_its_share_of_that_gpu() -> None:
    found = layer(pod("a"), pod("b"), asked={"a": Asked({A: 75, B: 25}), "b": Asked({A: 25})})
    child = found["children"]["a"]
    assert {uuid: child["weight"] * part for uuid, part in child["gpu_parts"].items()} == {A: 75, B: 25}
    assert {uuid: found["weight"] * part for uuid, part in found["gpu_parts"].items()} == {A: 100, B: 25}
    assert "gpu_parts" not in found["children"]["b"]


def test_shares_of_a_claim_and_of_the_device_plugin_add_up_on_each_gpu() -> None:
    both = pod("a")
    both["status"] = {"startTime": "2026-01-01T00:00:00Z"}
    both["spec"]["containers"][0]["resources"] = {"limits": {"fairsched.io/gpu-share": "20"}}
    made = make_layer([both], [space()], given=Given({"ml/a": {A: 20}}, {("ml", "a"): Asked({A: 30.5})}))
    assert made.layer["ml"]["children"]["a"] == {"pods": ["a"], "weight": 50.5}
    made = make_layer([both], [space()], given=Given({"ml/a": {A: 20}}, {("ml", "a"): Asked({B: 60})}))
    child = made.layer["ml"]["children"]["a"]
    assert (child["weight"], child["gpu_parts"]) == (80, {A: 0.25, B: 0.75})


def test_pods_that_are_one_tenant_have_what_they_got_together() -> None:
    found = layer(
        pod("a", tenant="t"),
        pod("b", tenant="t"),
        asked={"a": Asked({A: 20}), "b": Asked({A: 30}, {"class": "batch"})},
    )
    assert found["children"]["t"] == {"pods": ["a", "b"], "weight": 50, "class": "batch"}


def test_a_pod_that_only_looks_on_is_a_tenant_like_any() -> None:
    found = layer(pod("a", gpu=False), asked={"a": Asked()})
    assert found["children"] == {"a": {"pods": ["a"]}} and "weight" not in found


def test_who_asked_for_nothing_is_as_before() -> None:
    found = make_layer([pod("a", weight="2")], [space()], given=Given())
    assert found == make_layer([pod("a", weight="2")], [space()])


def test_a_namespaces_class_is_the_default_of_its_pods_unless_a_claim_says_another() -> None:
    asked = {"a": Asked({A: 1}, {"class": "latency"}), "b": Asked({A: 1})}
    found = layer(pod("a"), pod("b"), asked=asked, **{"class": "batch"})
    assert [found["children"][name]["class"] for name in "ab"] == ["latency", "batch"]


def test_what_a_pod_says_goes_before_what_its_claim_says() -> None:
    asked = {"a": Asked({A: 1}, {"class": "latency", "vram_limit": 1})}
    found = layer(pod("a", **{"class": "batch"}), asked=asked)
    assert (found["children"]["a"]["class"], found["children"]["a"]["vram_limit"]) == ("batch", 1)


def test_of_pods_that_are_one_tenant_the_first_that_claims_a_value_counts() -> None:
    found = layer(
        pod("a", tenant="t"),
        pod("b", tenant="t"),
        asked={"a": Asked({A: 1}, {"class": "batch"}), "b": Asked({A: 1}, {"class": "latency"})},
    )
    assert found["children"]["t"]["class"] == "batch"


def test_where_a_policy_speaks_of_pods_claims_and_shares_say_nothing_of_them() -> None:
    """Else who makes a claim would have what the policy gives nobody. What the namespace weighs they do say."""
    bound = policy("p", pods=[{"weight": 2, "class": "batch"}])
    values = {"weight": 9.0, "class": "latency", "min": 0.5, "vram_limit": 1}
    made = make_layer(
        [pod("a")], [space()], [bound], given=Given(claimed={("ml", "a"): Asked({A: 75, B: 25}, values)})
    )
    own = {"weight": 2.0, "class": "batch", "policy": "policy p, pods[0]"}
    assert made.layer["ml"]["children"]["a"] == {"pods": ["a"], **own}
    assert (made.layer["ml"]["weight"], made.layer["ml"]["gpu_parts"]) == (100, {A: 0.75, B: 0.25})


def test_pods_that_say_and_ask_for_nothing_are_of_the_class_of_their_namespace() -> None:
    children = layer(pod("a"), asked={}, **{"class": "batch"})["children"]
    assert children == {"*": {"class": "batch"}}


def test_several_sources_add_up_and_the_first_goes_before() -> None:
    one = {("ml", "a"): Asked({A: 10}, {"class": "batch"})}
    two = {
        ("ml", "a"): Asked({A: 5, B: 1}, {"class": "latency", "vram_limit": 1}),
        ("ml", "b"): Asked({B: 2}),
    }
    found = joined([one, two])
    assert found["ml", "a"] == Asked({A: 15, B: 1}, {"class": "batch", "vram_limit": 1})
    assert found["ml", "b"] == Asked({B: 2})


@given(st.lists(st.tuples(st.sampled_from(["x", "y"]), st.integers(1, 100)), min_size=1, max_size=6))
def test_between_namespaces_a_gpu_is_divided_as_was_asked(shares: list[tuple[str, int]]) -> None:
    pods = [pod(f"p{number}", namespace) for number, (namespace, _) in enumerate(shares)]
    asked = {(name, f"p{number}"): Asked({A: share}) for number, (name, share) in enumerate(shares)}
    found = make_layer(pods, [space("x"), space("y")], given=Given(claimed=asked)).layer
    whole = sum(one["weight"] for one in found.values())
    for (name, key), one in asked.items():
        inner = found[name]["children"]
        part = inner[key]["weight"] / sum(child["weight"] for child in inner.values())
        assert part * found[name]["weight"] / whole == pytest.approx(
            one.shares[A] / sum(share for _, share in shares)
        )
