# SPDX-License-Identifier: Apache-2.0
"""What pods and namespaces say becomes tenants; what nobody can understand becomes a complaint, and the default."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.companion.pods.policy import MOST_BYTES, MOST_CHILDREN, make_layer
from fairsched.config import from_bytes
from fairsched.config.podlayer import fitting, with_layer

FILE = from_bytes(b"tenants: {}\nkubernetes: {watch_pods: true}\n", "f")


def pod(
    name: str, namespace: str = "ml", *, gpu: bool = True, labels: Any = None, **said: str
) -> dict[str, Any]:
    """``said``: annotations, without the prefix; _ for -."""
    annotations = {f"fairsched.io/{key.replace('_', '-')}": value for key, value in said.items()}
    limits = {"nvidia.com/gpu": "1"} if gpu else {}
    return {
        "metadata": {
            "name": name, "namespace": namespace, "uid": f"u-{name}",
            "annotations": annotations, "labels": labels or {},
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }  # fmt: skip


def space(name: str = "ml", **said: str) -> dict[str, Any]:
    annotations = {f"fairsched.io/{key.replace('_', '-')}": value for key, value in said.items()}
    return {"metadata": {"name": name, "uid": f"u-{name}", "annotations": annotations}}


def specs(*objects: dict[str, Any], namespaces: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    made = make_layer(objects, namespaces)
    assert made.complaints == []
    return dict(with_layer(FILE, made.layer).tenant_specs())


def complaints(*objects: dict[str, Any], namespaces: tuple[dict[str, Any], ...] = ()) -> list[str]:
    made = make_layer(objects, namespaces)
    taken, refused = fitting(FILE, made.layer)
    assert refused == {} and set(taken) == set(made.layer), "the rest is taken all the same"
    return [str(one) for one in made.complaints]


def test_a_pod_is_a_child_of_its_namespace_with_what_it_says() -> None:
    found = specs(
        pod("llama-0", weight="3", quota="50%", vram_limit="8GiB"),
        namespaces=(space(weight="2", **{"class": "batch"}),),
    )
    assert found["ml"].weight == 2
    child = found["ml/llama-0"]
    assert (child.weight, child.quota_ratio, child.vram_limit_bytes) == (3, 0.5, 8 << 30)
    assert child.tenant_class.value == "batch", "its namespace's"


def test_whatever_a_pod_says_its_namespace_weighs_as_much() -> None:
    """It divides its namespace's part, and nobody else's."""
    modest, greedy = (
        specs(pod("a", weight="1"), pod("b", "web")),
        specs(pod("a", weight="1000000"), pod("b", "web")),
    )
    assert modest["ml"] == greedy["ml"] and modest["web"] == greedy["web"]


def test_a_guarantee_comes_out_of_the_namespaces() -> None:
    found = specs(pod("a", min="10%"), pod("b", min="20%"), namespaces=(space(min="30%"),))
    assert found["ml/b"].min_ratio == pytest.approx(0.2)
    assert complaints(pod("a", min="10%")) == ["ml/a: min: 0.1 is more than the 0 left of its namespace's"]
    assert complaints(pod("a", min="20%"), pod("b", min="20%"), namespaces=(space(min="30%"),)) == [
        "ml/b: min: 0.2 is more than the 0.1 left of its namespace's"
    ]


def test_who_says_nothing_and_asks_for_no_gpu_makes_no_tenant() -> None:
    assert make_layer([pod("a", gpu=False)], [space()]).layer == {}
    assert set(make_layer([pod("a", gpu=False, weight="2")], []).layer) == {"ml"}
    assert set(make_layer([pod("a")], []).layer) == {"ml"}
    assert make_layer([], [space(weight="2")]).layer == {}, "none of its pods is here"


def test_a_pod_that_is_over_is_none() -> None:
    gone = {**pod("a", weight="x"), "status": {"phase": "Succeeded"}}
    assert make_layer([gone], []).layer == {} and make_layer([gone], []).complaints == []


def test_an_annotation_goes_before_a_label() -> None:
    labels = {"fairsched.io/weight": "2"}
    assert specs(pod("a", labels=labels))["ml/a"].weight == 2
    assert specs(pod("a", labels=labels, weight="5"))["ml/a"].weight == 5


def test_pods_of_one_tenant_share_a_child() -> None:
    layer = make_layer([pod("a-0", tenant="a", weight="2"), pod("a-1", tenant="a", weight="2")], []).layer
    assert layer["ml"]["children"] == {"a": {"pods": ["a-0", "a-1"], "weight": 2.0}}
    assert complaints(pod("a-0", tenant="a", weight="2"), pod("a-1", tenant="a", weight="3")) == [
        "ml/a-1: weight: others of its tenant 'a' say 2.0"
    ]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("weight", "much", "it is not a number"),
        ("weight", "-1", "greater than 0"),
        ("weight", "nan", "finite"),
        ("quota", "150%", "150%"),
        ("class", "express", "'latency' or 'batch'"),
        ("vram-limit", "8 bananas", "8 bananas"),
        ("vram-limit", "9" * 400, "is not a size"),
        ("tenant", "Not/A name", "1 to 64 of a-z"),
        ("wieght", "3", "there is no such key; known: weight,"),
    ],
)
def test_what_cannot_be_understood_keeps_the_default_and_is_said(key: str, value: str, why: str) -> None:
    bad = pod("a", weight="2") if key not in ("weight",) else pod("a")
    bad["metadata"]["annotations"][f"fairsched.io/{key}"] = value
    (said,) = complaints(bad)
    assert said.startswith(f"ml/a: fairsched.io/{key}: ") and why in said
    good = with_layer(FILE, make_layer([bad], []).layer).tenant_specs()
    assert good["ml"].weight == 1 and (key == "weight" or good["ml/a"].weight == 2)


def test_a_name_that_is_longer_than_a_tenants_is_one_all_the_same() -> None:
    long = "llama-" * 20 + "0"
    (name,) = [name for name in specs(pod(long, weight="4")) if "/" in name]
    assert len(name) <= 3 + 64 and specs(pod(long, weight="4"))[name].weight == 4


def test_a_namespace_has_room_for_so_many_and_the_rest_have_the_default() -> None:
    made = make_layer([pod(f"p-{i:04}", weight="2") for i in range(MOST_CHILDREN + 1)], [])
    assert len(made.layer["ml"]["children"]) == MOST_CHILDREN
    assert [one.name for one in made.complaints] == [f"p-{MOST_CHILDREN:04}"]


def test_who_says_too_much_loses_of_its_own_and_of_nobody_elses() -> None:
    """A request that is too long would be refused whole, with what others say."""
    greedy = [pod(f"{'x' * 240}-{i:04}", "greedy", weight="2") for i in range(400)]
    made = make_layer([*greedy, *(pod(f"p-{i}", weight="2") for i in range(20))], [])
    assert len(json.dumps(made.layer)) <= MOST_BYTES
    assert len(made.layer["ml"]["children"]) == 20
    assert len(made.layer["greedy"]["children"]) > 100
    (said,) = made.complaints
    kept = len(made.layer["greedy"]["children"])
    assert str(said).startswith(f"greedy: {400 - kept} of its pods have the default")


TEXTS = st.one_of(
    st.sampled_from(["3", "50%", "1e309", "batch", "8GiB", "9" * 400, "0", "*", "..", ""]),
    st.text(max_size=20),
)


@given(
    st.dictionaries(st.sampled_from(["weight", "quota", "min", "class", "vram-limit", "tenant", "x"]), TEXTS)
)
def test_nothing_that_a_pod_says_spoils_the_tenants_of_others(said: dict[str, str]) -> None:
    one = pod("evil")
    one["metadata"]["annotations"] = {f"fairsched.io/{key}": value for key, value in said.items()}
    layer = make_layer([one, pod("good", "web", weight="2")], [space("web", weight="7")]).layer
    found = with_layer(FILE, layer).tenant_specs()
    assert found["web"].weight == 7 and found["web/good"].weight == 2
    assert found["ml"].weight == 1 and found["ml"].min_ratio == 0 and found["ml"].quota_ratio is None
