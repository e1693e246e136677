# SPDX-License-Identifier: Apache-2.0
"""On a node the pods of a team have the team's weight, and nobody gets more by what a pod says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.companion.pods.asked import Asked
from fairsched.companion.pods.policy import Given, Made, make_layer
from fairsched.companion.pods.shares import Placed
from fairsched.config import from_bytes
from fairsched.config.podlayer import fitting, with_layer
from fairsched.k8s.teams.placed import Teams, group_of, teams_on
from fairsched.k8s.teams.queues import KEY
from fairsched.model import TenantClass, TenantSpec
from tests.unit.companion.pods.test_policy import FILE, pod, space
from tests.unit.companion.pods.test_shares import given_to, sharing
from tests.unit.k8s.policies.made import policy


def queued(name: str, namespace: str, queue: str | None, **said: str) -> dict[str, Any]:
    labels = {} if queue is None else {"kueue.x-k8s.io/queue-name": queue}
    return pod(name, namespace, labels=labels, **said)


def with_queues(name: str, text: str, **said: str) -> dict[str, Any]:
    found = space(name, **said)
    found["metadata"]["annotations"][KEY] = text
    return found


def layer_of(
    pods: Sequence[dict[str, Any]],
    namespaces: Sequence[dict[str, Any]],
    policies: Sequence[dict[str, Any]] = (),
    claimed: Mapping[tuple[str, str], Asked] | None = None,
    placed: Placed | None = None,
) -> Made:
    given = Given(placed or {}, claimed or {}, teams_on(pods, namespaces))
    return make_layer(pods, namespaces, policies, given=given)


def weights(*pods: dict[str, Any], namespaces: tuple[dict[str, Any], ...]) -> dict[str, float]:
    made = layer_of(pods, namespaces)
    assert made.complaints == []
    return {name: spec.weight for name, spec in with_layer(FILE, made.layer).tenant_specs().items()}


def test_a_namespace_weighs_what_its_team_does() -> None:
    found = weights(
        queued("a", "research", "gpus", weight="2"),
        queued("b", "serving", "gpus"),
        queued("c", "web", None),
        namespaces=(
            with_queues("research", "gpus=research:1.5"),
            with_queues("serving", "gpus=serving:3"),
            space("web"),
        ),
    )
    assert (found["research"], found["serving"], found["web"]) == (1.5, 3, 1)
    assert found["research/a"] == 2, "within it pods weigh what they say"


def test_the_label_that_kueue_writes_on_pods_of_jobs_will_do() -> None:
    one = pod("a", "research", labels={"kueue.x-k8s.io/local-queue-name": "gpus"})
    assert weights(one, namespaces=(with_queues("research", "gpus=research:4"),))["research"] == 4


def test_what_a_person_says_of_the_namespace_goes_before() -> None:
    one = queued("a", "research", "gpus")
    assert weights(one, namespaces=(with_queues("research", "gpus=research:4", weight="2"),))["research"] == 2


def test_a_team_that_is_not_on_the_node_gives_its_namespace_nothing() -> None:
    """Its only pod here came by no queue, or is over."""
    one, over = queued("a", "research", None), queued("b", "research", "gpus")
    over["status"] = {"phase": "Succeeded"}
    assert weights(one, over, namespaces=(with_queues("research", "gpus=research:4"),))["research"] == 1


def test_a_queue_that_the_namespace_has_not_is_none() -> None:
    """A pod writes its labels itself."""
    one = queued("a", "web", "vip")
    spaces = (with_queues("web", "gpus=web:1"), with_queues("ceo", "vip=ceo:1000"))
    assert weights(one, namespaces=spaces)["web"] == 1


def test_a_team_of_two_namespaces_has_its_weight_once() -> None:
    spaces = (
        with_queues("one", "q=research:4"),
        with_queues("two", "q=research:4"),
        with_queues("b", "q=b:4"),
    )
    found = weights(
        queued("x", "one", "q"), queued("y", "two", "q"), queued("z", "b", "q"), namespaces=spaces
    )
    assert found["one"] + found["two"] == found["b"] == 4
    assert weights(queued("x", "one", "q"), queued("z", "b", "q"), namespaces=spaces)["one"] == 4, (
        "alone on a node"
    )


def test_pods_of_two_teams_in_a_namespace_are_two_children_by_their_teams_weights() -> None:
    """Whatever the pods say of themselves, and whether they would rather be in a group of their own."""
    found = weights(
        queued("a", "ml", "train", weight="1000", tenant="mine"),
        queued("b", "ml", "train"),
        queued("c", "ml", "serve"),
        queued("d", "ml", None),
        namespaces=(with_queues("ml", "train=research:1,serve=serving:3"),),
    )
    assert found["ml"] == 4
    assert found["ml/queue.research"] == 1 and found["ml/queue.serving"] == 3
    assert "ml/a" not in found and "ml/mine" not in found


def test_an_annotation_that_is_not_ours_to_understand_changes_nothing_and_is_complained_of() -> None:
    made = layer_of([queued("a", "ml", "q")], [with_queues("ml", "q=everything")])
    assert [str(one) for one in made.complaints] == [
        "ml: fairsched.io/queues: it is not what 'fairsched k8s teams' writes: no team is known here"
    ]
    assert made.layer["ml"].get("weight") is None


def test_without_the_annotation_nothing_is_touched() -> None:
    pods, spaces = [queued("a", "ml", "q", weight="3")], [space("ml", weight="2")]
    assert teams_on(pods, spaces) == Teams()
    assert layer_of(pods, spaces) == make_layer(pods, spaces)


def test_names_that_are_too_long_are_told_apart() -> None:
    names = {group_of(f"{'x' * 70}{index}") for index in range(5)} | {group_of("a.b"), group_of("A.b")}
    assert len(names) == 7 and all(len(one) <= 64 for one in names)


def test_weights_that_add_up_to_more_than_nodes_take_are_the_most_that_they_do() -> None:
    spaces = (with_queues("ml", "q=a:1000000,r=b:1000000"),)
    assert weights(queued("x", "ml", "q"), queued("y", "ml", "r"), namespaces=spaces)["ml"] == 1_000_000


LADDER = ("policy", "annotation", "label", "share", "team")
"""What goes before what of a namespace, from the top; below is 1, above the configuration's own tenants."""
WORTH = {"policy": 2.0, "annotation": 3.0, "label": 4.0, "share": 50.0, "team": 6.0}


@pytest.mark.parametrize("first", range(len(LADDER) + 1))
@pytest.mark.parametrize("by", ["resource", "claim"])
def test_the_first_that_says_what_a_namespace_weighs_counts(first: int, by: str) -> None:
    there = LADDER[first:]
    one = sharing("a", 50 if "share" in there and by == "resource" else 0)
    placed = given_to(one)
    one["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    name = with_queues("ml", "q=research:6") if "team" in there else space("ml")
    if "annotation" in there:
        name["metadata"]["annotations"]["fairsched.io/weight"] = "3"
    name["metadata"]["labels"] = {"fairsched.io/weight": "4"} if "label" in there else {}
    claimed = {("ml", "a"): Asked({"GPU-a": 50})} if "share" in there and by == "claim" else {}
    policies = [policy("p", names=["ml"], share={"weight": 2})] if "policy" in there else []
    made = layer_of([one], [name], policies, claimed, placed)
    found = with_layer(FILE, made.layer).tenant_specs()
    assert found.get("ml", TenantSpec("ml")).weight == (WORTH[there[0]] if there else 1)
    taken, _ = fitting(from_bytes(b"tenants: {ml: {match: {pod: ml/*}, weight: 9}}\n", "f"), made.layer)
    assert "ml" not in taken, "the configuration goes before all of them"


def test_shares_that_pods_of_two_teams_asked_for_go_before_their_teams_weights() -> None:
    """Which somebody has let them have; what a claim says of a weight its maker has written."""
    claimed = {
        ("ml", "a"): Asked({"GPU-a": 25}, {"weight": 1_000_000}),
        ("ml", "b"): Asked({"GPU-a": 50}),
        ("ml", "c"): Asked({}, {"weight": 1_000_000}),
    }
    pods = [queued("a", "ml", "train"), queued("b", "ml", "train"), queued("c", "ml", "serve")]
    made = layer_of(pods, [with_queues("ml", "train=research:1,serve=serving:3")], claimed=claimed)
    children = made.layer["ml"]["children"]
    assert children["queue.research"]["weight"] == 75 and made.layer["ml"]["weight"] == 75
    assert children["queue.serving"]["weight"] == 3, "its team's"


def test_where_a_policy_speaks_of_pods_neither_teams_nor_shares_say_what_they_weigh() -> None:
    """They are their teams' children all the same: by these teams are told of."""
    pods = [queued("a", "ml", "train", weight="3"), queued("b", "ml", "serve"), queued("c", "ml", None)]
    said = {"weight": 70, "class": "batch", "quota": 0.1, "vram_limit": 1 << 30}
    claimed = {("ml", name): Asked({"GPU-a": 10}, said) for name in "abc"}
    spaces = [with_queues("ml", "train=research:5,serve=serving:7")]
    made = layer_of(pods, spaces, [policy("p", pods=[{"weight": 2, "max": {"weight": 4}}])], claimed)
    found = with_layer(FILE, made.layer).tenant_specs()
    assert {name: spec.weight for name, spec in found.items()} == {
        "ml": 30,
        "ml/queue.research": 2,
        "ml/queue.serving": 2,
        "ml/c": 2,
    }
    for one in found.values():
        told = (one.tenant_class, one.quota_ratio, one.vram_limit_bytes)
        assert told == (TenantClass.LATENCY, None, None), "no claim's"
    assert made.complaints == [], "nobody said so"


@pytest.mark.parametrize("said", [{"tenant": "queue.serving"}, {"weight": "9"}, {}])
def test_a_pod_of_no_team_is_not_taken_for_one_by_its_name_or_its_group(said: dict[str, str]) -> None:
    """Also of a team that is not on this node: Prometheus is asked for what its child got."""
    name = "a" if "tenant" in said else "queue.serving"
    spaces = [with_queues("ml", "train=research:1,serve=serving:3,more=third:1")]
    for pods in ([queued("z", "ml", "serve")], [queued("z", "ml", "train")]):
        children = layer_of([queued(name, "ml", None, **said), *pods], spaces).layer["ml"]["children"]
        assert children["queue.serving_1"]["pods"] == [name]
        assert children.get("queue.serving", {"pods": ["z"]})["pods"] == ["z"]


def test_nor_by_the_rule_of_a_policy() -> None:
    """A team's pods of several rules are several children, each of them the team's alone."""
    pods = [
        queued("a", "ml", "serve"),
        queued("b", "ml", "serve"),
        queued("c", "ml", None, tenant="queue.serving"),
    ]
    for one in pods[1:]:
        one["metadata"]["labels"]["tier"] = "gold"
    rules = [{"selector": {"matchLabels": {"tier": "gold"}}, "weight": 2}, {"weight": 1}]
    made = layer_of(pods, [with_queues("ml", "train=research:1,serve=serving:3")], [policy("p", pods=rules)])
    found = {key: child.get("pods") for key, child in made.layer["ml"]["children"].items()}
    assert found == {
        "*": None, "queue.serving": ["a"], "queue.serving_1": ["b"], "queue.serving_2": ["c"]
    }  # fmt: skip


def test_objects_of_the_api_server_stay_as_they_are() -> None:
    pods, spaces = [queued("a", "ml", "q"), queued("b", "ml", "r")], [with_queues("ml", "q=a:1,r=b:2")]
    before = json.dumps((pods, spaces))
    layer_of(pods, spaces)
    assert json.dumps((pods, spaces)) == before


LABEL = st.one_of(st.none(), st.sampled_from(["q", "r", "vip", ""]), st.text(max_size=8))


@settings(deadline=None)
@given(st.lists(st.tuples(LABEL, st.text(max_size=6), st.text(max_size=6)), max_size=6))
def test_whatever_pods_say_their_namespace_has_no_more_than_its_teams(
    told: list[tuple[str | None, str, str]],
) -> None:
    spaces = (with_queues("ml", "q=a:2,r=b:3"), with_queues("rich", "vip=c:500"))
    pods = [
        queued(f"p{index}", "ml", queue, weight=weight, tenant=tenant)
        for index, (queue, weight, tenant) in enumerate(told)
    ]
    made = layer_of([*pods, queued("z", "rich", "vip")], spaces)
    config = from_bytes(b"tenants: {}\nkubernetes: {watch_pods: true}\n", "f")
    found = with_layer(config, made.layer).tenant_specs()
    assert "ml" not in found or found["ml"].weight <= 5
    assert found["rich"].weight == pytest.approx(500)
