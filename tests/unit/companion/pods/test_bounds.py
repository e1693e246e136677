# SPDX-License-Identifier: Apache-2.0
"""A pod gets no more than the policy of its namespace says, whatever it writes into annotations and labels."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.companion.pods.policy import MOST_BYTES, Base, make_layer
from fairsched.companion.pods.said import OUT_OF_BOUNDS
from fairsched.config import from_bytes
from fairsched.config.podlayer import fitting, policy_of, with_layer
from fairsched.k8s.policies.model import policy_of as parsed
from fairsched.k8s.policies.precedence import choose
from fairsched.model import TenantSpec
from tests.unit.k8s.policies.made import LABELS, NAMES, any_pod, any_policy, pod, policy, space

FILE = from_bytes(b"tenants: {}\nkubernetes: {watch_pods: true, watch_policies: true}\n", "f")


class Node:
    """What a node comes to."""

    def __init__(self, pods: Any, spaces: Any, policies: Any) -> None:
        made = make_layer(pods, spaces, policies)
        taken, self.refused = fitting(FILE, made.layer)
        self.layer, self.complaints = made.layer, made.complaints
        self.config = with_layer(FILE, taken)

    def said(self) -> list[str]:
        return [str(one) for one in self.complaints]

    def path(self, namespace: str, name: str) -> str:
        """The tenant that a pod is: as config/owners.py finds it."""
        children = self.config.tenants[namespace].children
        own = [key for key, child in children.items() if name in (child.pods or ())]
        return f"{namespace}/{own[0]}" if own else f"{namespace}/{name}"

    def spec(self, namespace: str, name: str) -> TenantSpec:
        path = self.path(namespace, name)
        children = self.config.tenants[namespace].children
        node = children.get(path.partition("/")[2]) or children.get("*")
        return self.config.spec(path, node)


def test_what_the_policy_says_goes_for_namespaces_and_pods() -> None:
    rules = [
        {"selector": {"matchLabels": {"tier": "gold"}}, "weight": 4, "vramLimit": "8GiB"},
        {"weight": 0.5, "class": "batch", "quota": "25%"},
    ]
    one = policy("research", names=["ml"], share={"weight": 3, "min": "20%"}, pods=rules)
    node = Node(
        [pod("a", labels={"tier": "gold"}), pod("b"), pod("c", "web")], [space(), space("web")], [one]
    )
    specs = node.config.tenant_specs()
    assert (specs["ml"].weight, specs["ml"].min_ratio, specs["web"].weight) == (3, 0.2, 1)
    gold, rest = node.spec("ml", "a"), node.spec("ml", "b")
    assert (gold.weight, gold.vram_limit_bytes, gold.tenant_class.value) == (4, 8 << 30, "latency")
    assert (rest.weight, rest.quota_ratio, rest.tenant_class.value) == (0.5, 0.25, "batch")
    assert node.complaints == [] and node.refused == {}
    assert [policy_of(node.config, one) for one in ("ml", "ml/a", "ml/b", "web")] == [
        "policy research", "policy research, pods[0]", "policy research, pods[1]", None
    ]  # fmt: skip


def test_a_pod_that_says_more_gets_the_bound_and_is_told() -> None:
    one = policy("p", pods=[{"weight": 2, "max": {"weight": 4}}])
    node = Node([pod("a", weight="3"), pod("b", weight="9"), pod("c", weight="0.1")], [space()], [one])
    assert [node.spec("ml", name).weight for name in "abc"] == [3, 4, 0.1]
    (said,) = node.complaints
    assert str(said) == "ml/b: fairsched.io/weight: 9 is beyond policy p, pods[0]: it gets 4"
    assert said.reason == OUT_OF_BOUNDS


@pytest.mark.parametrize(
    ("rule", "said", "field", "got"),
    [
        ({"weight": 2}, {"weight": "9"}, "weight", 2),
        ({}, {"weight": "9"}, "weight", 1),
        ({"class": "batch"}, {"class": "latency"}, "tenant_class", "batch"),
        ({"class": "batch", "max": {"class": "latency"}}, {"class": "latency"}, "tenant_class", "latency"),
        ({"max": {"class": "batch"}}, {"class": "latency"}, "tenant_class", "latency"),
        ({"quota": "20%"}, {"quota": "90%"}, "quota_ratio", 0.2),
        ({"quota": "20%", "max": {"quota": "50%"}}, {"quota": "90%"}, "quota_ratio", 0.5),
        ({}, {"quota": "90%"}, "quota_ratio", 0.9),
        ({"min": "10%"}, {"min": "20%"}, "min_ratio", 0.1),
        ({"max": {"min": "15%"}}, {"min": "20%"}, "min_ratio", 0.15),
        ({}, {"min": "20%"}, "min_ratio", 0),
        ({"vramLimit": "1GiB"}, {"vram_limit": "8GiB"}, "vram_limit_bytes", 1 << 30),
        ({}, {"vram_limit": "8GiB"}, "vram_limit_bytes", 8 << 30),
    ],
)
def test_each_key_is_bound_by_the_rules_own_value_or_by_the_default(
    rule: Any, said: Any, field: str, got: Any
) -> None:
    node = Node([pod("a", **said)], [space()], [policy("p", share={"min": "30%"}, pods=[rule])])
    value = getattr(node.spec("ml", "a"), field)
    assert getattr(value, "value", value) == got


def test_a_policy_without_pods_leaves_them_to_their_annotations() -> None:
    node = Node([pod("a", weight="9"), pod("b")], [space()], [policy("p", share={"weight": 2})])
    assert node.spec("ml", "a").weight == 9 and node.config.tenant_specs()["ml"].weight == 2


def test_a_policy_with_no_rule_lets_no_annotation_count() -> None:
    node = Node([pod("a", weight="9", quota="50%")], [space()], [policy("p", pods=[])])
    assert (node.spec("ml", "a").weight, node.spec("ml", "a").quota_ratio) == (1, 0.5)


def test_a_pod_that_dodges_all_selectors_is_not_free_for_it() -> None:
    rules = [{"selector": {"matchLabels": {"app": "x"}}, "max": {"weight": 4}}]
    node = Node([pod("a", labels={"app": "y"}, weight="9")], [space()], [policy("p", pods=rules)])
    assert node.spec("ml", "a").weight == 1
    assert node.said() == ["ml/a: fairsched.io/weight: 9 is beyond policy p, no rule matches: it gets 1"]


def test_a_group_gives_nobody_what_another_rule_gives() -> None:
    """Neither by the name of a group, nor by that of a pod, nor by a name that ours could have."""
    rules = [{"selector": {"matchLabels": {"tier": "gold"}}, "weight": 9}, {"weight": 1}]
    gold = [pod("good", labels={"tier": "gold"}, tenant="team"), pod("solo", labels={"tier": "gold"})]
    for evil in (
        pod("evil", tenant="team"),
        pod("evil", tenant="solo"),
        pod("solo_1"),
        pod("evil", tenant="solo_1"),
    ):
        for name in ("a-first", "z-last"):
            evil["metadata"]["name"] = name
            node = Node([*gold, evil], [space()], [policy("p", pods=rules)])
            assert node.refused == {}
            assert node.spec("ml", name).weight == 1
            assert [node.spec("ml", one).weight for one in ("good", "solo")] == [9, 9]


def test_pods_of_one_group_and_one_rule_share_a_child() -> None:
    one = policy("p", pods=[{"weight": 2}])
    node = Node([pod("a-0", tenant="a"), pod("a-1", tenant="a")], [space()], [one])
    assert node.layer["ml"]["children"]["a"]["pods"] == ["a-0", "a-1"] and node.complaints == []


def test_a_namespaces_annotation_counts_for_what_the_policy_does_not_say() -> None:
    one = policy("p", share={"weight": 2})
    node = Node([pod("a")], [space(weight="50", quota="40%")], [one])
    spec = node.config.tenant_specs()["ml"]
    assert (spec.weight, spec.quota_ratio) == (2, 0.4)
    assert node.said() == ["ml: fairsched.io/weight does not count: policy p says 2.0"]


def test_a_pod_that_there_is_no_room_for_has_the_most_modest_values() -> None:
    """By writing much, nobody comes to more than by writing nothing."""
    rules = [
        {"selector": {"matchLabels": {"tier": "gold"}}, "weight": 9, "quota": "80%"},
        {"weight": 0.25, "class": "batch", "vramLimit": "1GiB", "quota": "50%"},
    ]
    pods = [pod(f"{'x' * 200}-{i:04}", labels={"tier": "gold"}) for i in range(400)]
    node = Node(pods, [space()], [policy("p", pods=rules)])
    assert len(json.dumps(node.layer)) <= MOST_BYTES
    left_out = [
        one for one in pods if "x_" not in one and node.path("ml", one["metadata"]["name"]).endswith("0399")
    ]
    name = left_out[0]["metadata"]["name"]
    spec = node.spec("ml", name)
    assert (spec.weight, spec.tenant_class.value, spec.quota_ratio) == (0.25, "batch", 0.5)
    assert spec.vram_limit_bytes == 1 << 30


def test_nobody_is_a_tenant_for_a_policy_of_all_namespaces() -> None:
    quiet = [pod("a", gpu=False), pod("b", "web", gpu=False)]
    both = [space(), space("web")]
    assert set(Node(quiet, both, [policy("p", share={"weight": 2})]).layer) == set()
    assert set(Node(quiet, both, [policy("p", names=["ml"], share={"weight": 2})]).layer) == {"ml"}


def test_a_policy_that_cannot_be_read_is_told_of_and_the_others_hold() -> None:
    bad = {"metadata": {"name": "bad"}, "spec": {"namespaces": {}}}
    odd = policy("odd", share={"weight": "many", "quota": "30%", "colour": "red"})
    node = Node([pod("a")], [space()], [bad, odd])
    assert node.config.tenant_specs()["ml"].quota_ratio == 0.3
    assert node.said() == [
        "GpuSharePolicy bad: it is not in effect: spec.namespaces: give either names or selector",
        "GpuSharePolicy odd: spec.share.colour: not known to this version of fairsched",
        "GpuSharePolicy odd: spec.share: weight: 'many': it is not a number",
    ]


# ---- what nobody may spoil, whatever they write ----


@pytest.mark.parametrize(
    "evil",
    [
        [pod("evil", min="30%", quota="10%")],
        [pod(f"p-{i}", tenant="big") for i in range(70)],
        # Each too small to change a sum, and one that leaves no room for them: it depends on who adds up how.
        [*(pod(f"a-{i}", min="0.0000000000000013%") for i in range(41)), pod("z", min="30.0000000999999%")],
    ],
)
def test_a_pod_cannot_have_its_namespace_refused_and_be_bound_by_nothing(evil: Any) -> None:
    """What the configuration would not take, it would not take with all of the namespace."""
    for policies in ([], [policy("p", pods=[{"max": {"min": "30%"}}])]):
        node = Node([*evil, pod("good")], [space(quota="40%", min="30%")], policies)
        assert node.refused == {} and node.config.tenant_specs()["ml"].quota_ratio == 0.4
        assert node.complaints


def test_pods_of_one_tenant_use_up_what_their_tenant_is_guaranteed_once() -> None:
    pods = [*(pod(f"a-{i}", tenant="chat", min="5%") for i in range(10)), pod("z", min="15%")]
    node = Node(pods, [space(min="20%")], [])
    specs = node.config.tenant_specs()
    assert (specs["ml/chat"].min_ratio, specs["ml/z"].min_ratio) == (0.05, 0.15)
    assert node.complaints == [] and node.refused == {}


def test_guarantees_that_do_not_fit_on_a_node_cost_nobody_its_limits() -> None:
    """Policies go before annotations; who comes too late has all but the guarantee."""
    greedy = space("aaa", min="100%", quota="100%")
    one = policy("p", names=["ml", "web"], share={"min": "60%", "quota": "70%"}, pods=[{"min": "10%"}])
    pods = [pod("a", "aaa", min="50%"), pod("b", "ml"), pod("c", "web")]
    node = Node(pods, [greedy, space("ml"), space("web")], [one])
    specs = node.config.tenant_specs()
    assert node.refused == {}
    assert [specs[name].min_ratio for name in ("ml", "web", "aaa", "ml/b", "web/c")] == [0.6, 0, 0, 0.1, 0]
    assert [specs[name].quota_ratio for name in ("ml", "web", "aaa")] == [0.7, 0.7, 1]
    text = "min: 0.6 is more than the 0.4 of a GPU that is left on this node: it has no guarantee"
    assert f"web: {text}" in node.said()


def test_what_the_file_guarantees_comes_first() -> None:
    file = b"tenants: {chat: {cgroup: chat, min: 70%}}\ntenant_defaults: {min: 20%}\n"
    config = from_bytes(file + b"kubernetes: {watch_pods: true}\n", "f")
    spaces = [space("ml", quota="10%"), space("web"), space("x", min="30%")]
    made = make_layer([pod("a"), pod("b", "web"), pod("c", "x")], spaces, [], Base.of(config))
    taken, refused = fitting(config, made.layer)
    specs = with_layer(config, taken).tenant_specs()
    assert refused == {}
    assert [specs[name].min_ratio for name in ("chat", "ml", "web", "x")] == [0.7, 0.1, 0.2, 0]


PODS = st.lists(st.sampled_from(["a", "b", "p1", "team"]), unique=True, max_size=4).flatmap(
    lambda names: st.tuples(*(any_pod(name) for name in names)).map(list)
)
POLICIES = st.lists(NAMES, unique=True, max_size=3).flatmap(
    lambda names: st.tuples(*(any_policy(name) for name in names)).map(list)
)
SPACES = st.tuples(*(LABELS.map(lambda labels, name=name: space(name, labels)) for name in "abcd")).map(list)


def rule_of(one: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The raw rule that goes for a pod; none: {}."""
    number = parsed(found).rule_of(one["metadata"]["labels"])
    return {} if number is None else found["spec"]["pods"][number.number - 1]


@settings(max_examples=300, deadline=None)
@given(PODS, SPACES, POLICIES)
def test_no_pod_gets_more_than_its_rule_says(pods: Any, spaces: Any, policies: Any) -> None:
    node = Node(pods, spaces, policies)
    assert node.refused == {}
    by_name = {one["metadata"]["name"]: one for one in policies}
    for one in pods:
        namespace, name = one["metadata"]["namespace"], one["metadata"]["name"]
        (labels,) = [s["metadata"]["labels"] for s in spaces if s["metadata"]["name"] == namespace]
        winner = choose([parsed(p) for p in policies], namespace, labels).policy
        if winner is None or winner.rules is None:
            continue
        rule, share = rule_of(one, by_name[winner.name]), by_name[winner.name]["spec"].get("share", {})
        spec, most = node.spec(namespace, name), rule.get("max", {})
        assert spec.weight <= max(rule.get("weight", 1.0), most.get("weight", 0))
        classes = (rule.get("class", share.get("class", "latency")), most.get("class"))
        assert spec.tenant_class.value == "batch" or "latency" in classes
        if "quota" in rule:
            bound = max(float(str(one).rstrip("%")) / 100 for one in (rule["quota"], most.get("quota", "0%")))
            assert spec.quota_ratio is not None and spec.quota_ratio <= bound + 1e-9
        if "vramLimit" in rule:
            sizes = {"1GiB": 1 << 30, "8GiB": 8 << 30, "500MB": 500_000_000, None: 0}
            assert spec.vram_limit_bytes is not None
            assert spec.vram_limit_bytes <= max(sizes[rule["vramLimit"]], sizes[most.get("vramLimit")])
        least = max(float(str(m).rstrip("%")) / 100 for m in (rule.get("min", "0%"), most.get("min", "0%")))
        assert spec.min_ratio <= least + 1e-9


@settings(deadline=None)
@given(PODS, SPACES, POLICIES)
def test_what_pods_say_moves_nothing_of_their_namespaces(pods: Any, spaces: Any, policies: Any) -> None:
    silent = [pod(one["metadata"]["name"], one["metadata"]["namespace"]) for one in pods]
    said, unsaid = Node(pods, spaces, policies), Node(silent, spaces, policies)
    assert set(said.layer) == set(unsaid.layer)
    for name in said.layer:
        assert said.config.tenant_specs()[name] == unsaid.config.tenant_specs()[name]


@settings(deadline=None)
@given(PODS, SPACES, POLICIES, st.randoms())
def test_the_order_in_which_things_are_seen_makes_no_difference(
    pods: Any, spaces: Any, policies: Any, random: Any
) -> None:
    first = make_layer(pods, spaces, policies).layer
    for things in (pods, spaces, policies):
        random.shuffle(things)
    assert make_layer(pods, spaces, policies).layer == first
