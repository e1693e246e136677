# SPDX-License-Identifier: Apache-2.0
"""Plans against a model of the API server: what they change, and what they leave."""

from __future__ import annotations

from fairsched.k8s.pools import carry
from fairsched.k8s.pools.fields import MARK, TAINTS_NOTE
from fairsched.k8s.pools.plan import Act
from fairsched.k8s.pools.words import as_diff, in_words
from tests.unit.k8s.pools.model import Model
from tests.unit.k8s.pools.scene import (
    PRIORITY,
    QUOTA,
    apply,
    back,
    client,
    errors,
    gpus,
    label,
    labels,
    node,
    planned,
    planned_back,
    pool,
    pools,
    saved,
    taint,
    taints,
)

# ---- nodes ----


def test_nodes_get_the_labels_of_their_gpus_and_their_pool() -> None:
    model = Model()
    path = node(model, **gpus())
    other = node(model, "n2")
    wish = pools(pools={
        "small": {"nodes": {"max_gpus": 4}, "workload": "inference"},
        "h": {
            "nodes": {"accelerator": "h*"}, "workload": "training", "mig_config": "all-1g.10gb",
            "labels": {"team": "a"},
        },
    })  # fmt: skip
    assert errors(apply(model, wish)) == []
    own = {key: value for key, value in labels(model, path).items() if not key.startswith("nvidia.com/gpu")}
    assert own == {
        "accelerator": "h100", "gpu-count": "8", "mig": "off", "workload": "training", "team": "a",
        "nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/mig.capable": "true",
    }  # fmt: skip
    assert labels(model, other) == {}, "nothing is known of it, and it is in no pool"
    assert planned(model, wish) == []


def test_a_node_whose_gpus_are_not_known_any_more_keeps_what_was_known() -> None:
    """GPU feature discovery is restarted, and its labels are away: no pod loses its node for that."""
    model = Model()
    path = node(model, **gpus())
    wish = pools(pools={"h": {"nodes": {"accelerator": "h100"}, "workload": "training"}})
    apply(model, wish)
    model.patch(path, {"metadata": {"labels": {"nvidia.com/gpu.product": None}}}, "nfd")
    assert planned(model, wish) == []
    assert labels(model, path)["accelerator"] == "h100" and labels(model, path)["workload"] == "training"


def test_label_alone_keeps_what_apply_has_set_and_touches_no_taint() -> None:
    model = Model()
    path = node(model, **gpus())
    apply(model, pool(workload="training", taints=[taint("a")]))
    model.patch(path, {"metadata": {"labels": {"nvidia.com/gpu.count": "4"}}}, "nfd")
    assert errors(label(model)) == []
    assert labels(model, path)["gpu-count"] == "4" and labels(model, path)["workload"] == "training"
    label(model, pool(workload="inference"))
    assert labels(model, path)["workload"] == "inference"
    assert taints(model, path) == [taint("a")]


def test_a_label_of_somebody_else_is_a_conflict_that_names_them_and_nothing_is_changed() -> None:
    model = Model()
    path = node(model, workload="theirs")
    before = saved(model)
    (outcome,) = apply(model, pool(workload="training", taints=[taint("a")]))
    assert outcome.error == "label workload: set by kubectl" and "--force-conflicts" in outcome.remedy
    assert saved(model) == before
    assert errors(apply(model, pool(workload="training"), force=True)) == []
    assert labels(model, path)["workload"] == "training"


def test_a_conflict_that_the_plan_did_not_know_of_is_the_servers_to_refuse() -> None:
    model = Model()
    path = node(model)
    steps = planned(model, pool(workload="training"))
    model.patch(path, {"metadata": {"labels": {"workload": "theirs"}}}, "somebody")
    (outcome,) = carry.carry_out(client(model), steps, force=False)
    assert outcome.error == 'metadata.labels.workload: conflict with "somebody"'
    assert labels(model, path)["workload"] == "theirs"


def test_what_is_so_already_becomes_ours_as_well_and_stays_theirs_when_it_leaves_the_file() -> None:
    model = Model()
    path = node(model, workload="training")
    (step,) = planned(model, pool(workload="training"))
    assert not step.is_difference
    apply(model, pool(workload="training"))
    assert planned(model, pool(workload="training")) == []
    apply(model, pools())
    assert labels(model, path) == {"workload": "training"}


def test_what_leaves_the_file_goes() -> None:
    model = Model()
    path = node(model, team="theirs")
    apply(model, pool(workload="training", taints=[taint("a"), taint("b", "c")]))
    apply(model, pool(taints=[taint("b", "c")]))
    assert labels(model, path) == {"team": "theirs"} and taints(model, path) == [taint("b", "c")]
    apply(model, pools())
    assert taints(model, path) == []
    assert TAINTS_NOTE not in model.objects[path]["metadata"].get("annotations", {})


def test_taints_of_others_stay_in_their_place_also_one_like_ours() -> None:
    model = Model()
    theirs = [taint("x", "1"), taint("gpu", "yes")]
    path = node(model, taints=theirs)
    apply(model, pool(taints=[taint("gpu", "yes"), taint("ours")]))
    assert taints(model, path) == [*theirs, taint("ours")]
    apply(model, pools())
    assert taints(model, path) == theirs


def test_a_taint_of_somebody_else_with_another_value_is_a_conflict() -> None:
    model = Model()
    path = node(model, taints=[taint("gpu", "theirs")])
    (outcome,) = apply(model, pool(taints=[taint("gpu", "ours")]))
    assert outcome.error == "taint gpu:NoSchedule: set by kubectl"
    apply(model, pool(taints=[taint("gpu", "ours")]), force=True)
    assert taints(model, path) == [taint("gpu", "ours")]


def test_a_taint_that_came_meanwhile_is_not_written_over() -> None:
    """The kubelet and the controllers write nodes all the time."""
    model = Model()
    path = node(model)
    steps = planned(model, pool(taints=[taint("ours")]))
    model.patch(path, {"spec": {"taints": [taint("node.kubernetes.io/not-ready")]}}, "controller")
    assert errors(list(carry.carry_out(client(model), steps, force=False))) == []
    assert taints(model, path) == [taint("node.kubernetes.io/not-ready"), taint("ours")]


def test_a_conflicting_taint_that_came_meanwhile_is_not_written_over_either() -> None:
    model = Model()
    path = node(model)
    steps = planned(model, pool(taints=[taint("a", "ours")]))
    model.patch(path, {"spec": {"taints": [taint("a", "theirs")]}}, "somebody")
    (outcome,) = carry.carry_out(client(model), steps, force=False)
    assert "set meanwhile by somebody" in str(outcome.error)
    assert taints(model, path) == [taint("a", "theirs")]


def test_a_note_of_taints_that_cannot_be_read_makes_nothing_ours() -> None:
    model = Model()
    path = node(model, taints=[taint("a")])
    model.patch(path, {"metadata": {"annotations": {TAINTS_NOTE: '[["a"]]'}}}, "vandal")
    apply(model, pools())
    assert taints(model, path) == [taint("a")]


# ---- objects ----

SPACE = {"ml": {"quota": {"pods": 5, "requests.nvidia.com/gpu": 8}, "limits": [{"max": {"memory": "1Gi"}}]}}


def test_objects_are_made_changed_and_deleted_and_the_same_amount_is_no_change() -> None:
    model = Model()
    wish = pools(
        namespaces=SPACE, priority_classes={"gpu": {"value": 5}}, sharing={"configs": {"a": {"replicas": 2}}}
    )
    assert [step.act for step in planned(model, wish)] == [Act.CREATE] * 4
    assert errors(apply(model, wish)) == []
    assert planned(model, wish) == []
    model.objects[QUOTA]["spec"]["hard"]["requests.nvidia.com/gpu"] = "8000m"
    assert planned(model, wish) == []
    more = pools(namespaces={"ml": {"quota": {"pods": 6}}}, priority_classes={"gpu": {"value": 6}})
    acts = {step.ref.kind: step.act for step in planned(model, more)}
    assert acts == {
        "ConfigMap": Act.DELETE, "PriorityClass": Act.REPLACE, "ResourceQuota": Act.APPLY, "LimitRange": Act.DELETE,
    }  # fmt: skip
    assert errors(apply(model, more)) == []
    assert model.objects[QUOTA]["spec"] == {"hard": {"pods": "6"}} and model.objects[PRIORITY]["value"] == 6
    apply(model, pools())
    assert model.objects == {}


def test_a_file_in_an_object_is_shown_line_by_line_and_only_what_is_another_has_a_sign() -> None:
    model = Model()
    wish = pools(sharing={"configs": {"a": {"replicas": 2}}})
    told = in_words(planned(model, wish))
    assert "  + data.a:" in told and "      version: v1" in told and "            replicas: 2" in told
    assert "+  a: |" in list(as_diff(planned(model, wish)))
    assert errors(apply(model, wish)) == []
    told = in_words(planned(model, pools(sharing={"configs": {"a": {"replicas": 3}}})))
    at = told.index("  ~ data.a:")
    assert "        version: v1" in told[at:], "as it was"
    assert [line.split() for line in told[at:] if "replicas" in line] == [
        ["-", "replicas:", "2"], ["+", "replicas:", "3"],
    ]  # fmt: skip
    assert all(len(line) <= 80 and "\\n" not in line for line in told)


def test_an_object_that_was_there_is_shared_and_stays_when_it_leaves_the_file() -> None:
    model = Model()
    model.put(
        QUOTA,
        {"metadata": {"name": "fairsched-pools", "namespace": "ml"}, "spec": {"hard": {"secrets": "9"}}},
    )
    wish = pools(namespaces={"ml": {"quota": {"pods": 5}}})
    apply(model, wish)
    assert labels(model, QUOTA) == {MARK: "shared"}
    (step,) = planned(model, pools())
    assert step.act is Act.RELEASE
    apply(model, pools())
    assert model.objects[QUOTA]["spec"]["hard"] == {"secrets": "9"} and labels(model, QUOTA) == {}


def test_an_object_that_somebody_makes_in_the_same_moment_is_not_taken_for_ours() -> None:
    model = Model()
    wish = pools(namespaces={"ml": {"quota": {"pods": 5}}})
    steps = planned(model, wish)
    model.put(
        QUOTA,
        {"metadata": {"name": "fairsched-pools", "namespace": "ml"}, "spec": {"hard": {"secrets": "9"}}},
    )
    assert errors(list(carry.carry_out(client(model), steps, force=False))) == []
    assert labels(model, QUOTA) == {MARK: "shared"}


def test_an_object_of_ours_that_somebody_has_changed_is_not_deleted() -> None:
    model = Model()
    apply(model, pools(namespaces=SPACE, priority_classes={"gpu": {"value": 5}}))
    model.patch(QUOTA, {"spec": {"hard": {"secrets": "9"}}}, "somebody")
    model.patch(PRIORITY, {"description": "mine"}, "somebody")
    steps = {step.ref.kind: step for step in planned(model, pools())}
    assert steps["ResourceQuota"].act is Act.RELEASE and "somebody changed it" in steps["ResourceQuota"].why
    assert steps["PriorityClass"].act is Act.LEAVE
    apply(model, pools())
    assert model.objects[QUOTA]["spec"]["hard"] == {"secrets": "9"} and PRIORITY in model.objects


def test_a_priority_that_is_not_ours_is_not_made_anew_even_by_force() -> None:
    model = Model()
    model.put(PRIORITY, {"metadata": {"name": "gpu"}, "value": 1, "preemptionPolicy": "Never"})
    wish = pools(priority_classes={"gpu": {"value": 5}})
    (outcome,) = apply(model, wish)
    assert "set by kubectl" in str(outcome.error)
    apply(model, wish, force=True)
    assert model.objects[PRIORITY]["value"] == 1


def test_an_object_that_was_made_anew_since_the_plan_is_not_deleted_nor_changed() -> None:
    model = Model()
    apply(model, pools(namespaces=SPACE))
    for wish in (pools(), pools(namespaces={"ml": {"quota": {"pods": 6}}})):
        steps = [step for step in planned(model, wish) if step.ref.kind == "ResourceQuota"]
        model.delete(QUOTA)
        model.put(
            QUOTA,
            {"metadata": {"name": "fairsched-pools", "namespace": "ml"}, "spec": {"hard": {"pods": "1"}}},
        )
        (outcome,) = carry.carry_out(client(model), steps, force=True)
        assert outcome.error is not None and "changed meanwhile" in outcome.remedy
        assert model.objects[QUOTA]["spec"]["hard"] == {"pods": "1"}
        model.delete(QUOTA)
        apply(model, pools(namespaces=SPACE))


def test_an_object_that_somebody_has_changed_since_the_plan_is_not_deleted() -> None:
    """What the server writes to it all the time, such as how much of a quota is used, is no such change."""
    for of_it, remains in ({"spec": {"hard": {"pods": "1"}}}, True), ({"status": {"used": {}}}, False):
        model = Model()
        apply(model, pools(namespaces=SPACE))
        steps = [step for step in planned(model, pools()) if step.ref.kind == "ResourceQuota"]
        model.patch(QUOTA, of_it, "somebody")
        (outcome,) = carry.carry_out(client(model), steps, force=False)
        assert ((outcome.error is not None), QUOTA in model.objects) == (remains, remains)


# ---- back ----


def test_a_label_that_somebody_sets_while_it_is_put_back_is_not_written_over() -> None:
    """Nodes are written one after the other, and their kubelets write them as well."""
    for key, found in ("workload", "mine"), ("other", "web"):
        model = Model()
        path = node(model, workload="web")
        before = saved(model)
        apply(model, pool(workload="inference"), force=True)
        steps = planned_back(model, before)
        model.patch(path, {"metadata": {"labels": {key: "mine"}}}, "somebody")
        outcomes = list(carry.carry_out(client(model), steps, force=False))
        assert [one.remedy for one in outcomes if one.error] == (
            ["it has changed meanwhile: try again"] if found == "mine" else []
        )
        assert labels(model, path)["workload"] == found


def test_restore_is_exact_and_what_others_did_meanwhile_stays_and_is_said() -> None:
    model = Model()
    path = node(model, taints=[taint("x", "1")], workload="theirs", team="b", **gpus())
    model.put(
        QUOTA, {"metadata": {"name": "fairsched-pools", "namespace": "ml"}, "spec": {"hard": {"pods": "1"}}}
    )
    before = saved(model)
    wish = pools(
        pools={"p": {"nodes": {"names": "*"}, "workload": "training", "taints": [taint("x", "2"), taint("y")]}},
        namespaces=SPACE, priority_classes={"gpu": {"value": 5}},
    )  # fmt: skip
    assert errors(apply(model, wish, force=True)) == []
    assert saved(model) != before
    assert errors(back(model, before)) == []
    assert saved(model) == before
    assert back(model, before) == []

    apply(model, wish, force=True)
    model.patch(path, {"metadata": {"labels": {"team": "c", "workload": "mine"}}}, "somebody")
    told = "\n".join(in_words([one.step for one in back(model, before)]))
    flat = " ".join(told.split())
    assert (
        "label team was 'b', is 'c' (somebody)" in flat and "label workload was 'theirs', is 'mine'" in flat
    )
    assert labels(model, path)["team"] == "c" and labels(model, path)["workload"] == "mine"
    assert "accelerator" not in labels(model, path) and taints(model, path) == [taint("x", "1")]
    assert all(len(line) <= 80 for line in told.splitlines())


def test_restore_to_a_state_of_ours_keeps_it_ours() -> None:
    model = Model()
    path = node(model)
    first = pools(
        pools={"p": {"nodes": {"names": "*"}, "workload": "a", "taints": [taint("t", "1")]}},
        namespaces=SPACE, priority_classes={"gpu": {"value": 5}},
    )  # fmt: skip
    apply(model, first)
    before = saved(model)
    apply(model, pool(workload="b", taints=[taint("t", "2")]))
    assert errors(back(model, before)) == []
    assert saved(model) == before
    assert planned(model, first) == []
    assert labels(model, path) == {"workload": "a"}


def test_a_node_that_joined_since_loses_what_was_added() -> None:
    model = Model()
    before = saved(model)
    path = node(model, taints=[taint("x")], team="b")
    apply(model, pool(workload="a", taints=[taint("y")]))
    back(model, before)
    assert labels(model, path) == {"team": "b"} and taints(model, path) == [taint("x")]


def test_what_somebody_else_has_deleted_is_not_made_again_and_said() -> None:
    model = Model()
    model.put(
        QUOTA, {"metadata": {"name": "fairsched-pools", "namespace": "ml"}, "spec": {"hard": {"pods": "1"}}}
    )
    path = node(model, team="b")
    before = saved(model)
    model.delete(QUOTA)
    model.patch(path, {"metadata": {"labels": {"team": None}}}, "somebody")
    outcomes = back(model, before)
    assert [one.step.act for one in outcomes] == [Act.LEAVE] * 2
    assert QUOTA not in model.objects and labels(model, path) == {}
