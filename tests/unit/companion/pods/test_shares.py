# SPDX-License-Identifier: Apache-2.0
"""A pod weighs what it asked for, unless somebody says something else; its namespace too, whatever its pods say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.companion.pods.policy import Given, make_layer
from fairsched.companion.pods.shares import RESOURCE, SharesFile, asked, parse
from fairsched.config.podlayer import with_layer
from fairsched.k8s.plugin.placed import VERSION, placed_in
from fairsched.k8s.plugin.shares import RESOURCE as ITS_RESOURCE
from fairsched.k8s.proto import podresources_pb2 as wire
from fairsched.model import TenantSpec
from tests.unit.companion.pods.test_policy import FILE, pod, space


def limits(count: object) -> dict[str, Any]:
    return {"resources": {"limits": {RESOURCE: str(count)}}}


def sharing(name: str, count: object, namespace: str = "ml", **said: str) -> dict[str, Any]:
    """A pod with so many shares, taken by a kubelet."""
    found = pod(name, namespace, gpu=False, **said)
    found["spec"] = {"containers": [limits(count)]}
    found["status"] = {"phase": "Running", "startTime": "2026-11-27T00:00:00Z"}
    return found


def specs(
    *pods: dict[str, Any], spaces: tuple[dict[str, Any], ...] = (), placed: Any = None
) -> dict[str, TenantSpec]:
    made = make_layer(pods, spaces, given=Given(placed=placed or {}))
    return dict(with_layer(FILE, made.layer).tenant_specs())


# ---- what was asked for ----


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("25", 25),
        ("1k", 1000),
        ("2Ki", 2048),
        ("0", 0),
        ("", 0),
        ("-5", 0),
        ("1e3", 1000),
        ("25m", 0),
        ("25000m", 25),
        ("many", 0),
        ("9999999999G", 1_000_000),
    ],
)
def test_a_quantity_is_read_as_the_api_server_writes_it(text: str, count: int) -> None:
    assert asked(sharing("a", text)) == count


def test_a_pod_asks_for_what_the_scheduler_adds_up() -> None:
    """Its containers and sidecars together, or an init container with the sidecars before it."""
    found = sharing("a", 10)
    found["spec"]["containers"].append(limits(5))
    assert asked(found) == 15
    sidecar = {**limits(3), "restartPolicy": "Always"}
    found["spec"]["initContainers"] = [sidecar, limits(40)]
    assert asked(found) == 43
    found["spec"]["initContainers"] = [limits(2), sidecar]
    assert asked(found) == 18


def test_what_no_kubelet_has_taken_is_nothing() -> None:
    """Who names a node itself goes round the scheduler, and says any number until the kubelet refuses it."""
    found = sharing("a", 1_000_000)
    del found["status"]["startTime"]
    assert asked(found) == 0
    assert specs(found)["ml"].weight == 1


# ---- who says what a pod weighs ----


def test_a_pod_weighs_what_it_asked_for_and_its_namespace_what_its_pods_did() -> None:
    found = specs(sharing("a", 25), sharing("b", 50), sharing("c", 75, "web"), pod("d", "web"))
    assert {name: found[name].weight for name in ("ml", "ml/a", "ml/b", "web", "web/c")} == {
        "ml": 75, "ml/a": 25, "ml/b": 50, "web": 75, "web/c": 75
    }  # fmt: skip


def test_an_annotation_goes_before_a_label_before_what_was_asked_for() -> None:
    labelled, both = sharing("a", 25), sharing("a", 25, weight="7")
    for one in (labelled, both):
        one["metadata"]["labels"] = {"fairsched.io/weight": "5"}
    assert specs(labelled)["ml/a"].weight == 5
    assert specs(both)["ml/a"].weight == 7
    assert specs(sharing("a", 25, weight="nonsense"))["ml/a"].weight == 25


def test_what_a_namespace_says_goes_before_what_its_pods_asked_for() -> None:
    found = specs(sharing("a", 25), spaces=(space(weight="3"),))
    assert (found["ml"].weight, found["ml/a"].weight) == (3, 25)


@given(st.lists(st.tuples(st.integers(0, 200), st.sampled_from(["", "0.001", "1000000", "x"])), max_size=5))
def test_whatever_pods_say_of_themselves_their_namespace_weighs_what_they_asked_for(
    pods: list[tuple[int, str]],
) -> None:
    """An annotation divides the namespace's part, and no other."""
    made = [
        sharing(f"p{index}", count, **({"weight": said} if said else {}))
        for index, (count, said) in enumerate(pods)
    ]
    found = specs(*made, sharing("other", 10, "web"))
    assert found["web"].weight == 10
    if any(count or said for count, said in pods):
        assert found["ml"].weight == (sum(count for count, _ in pods) or 1)


def test_pods_of_one_tenant_weigh_together_what_they_asked_for() -> None:
    found = specs(sharing("a-0", 10, tenant="a"), sharing("a-1", 15, tenant="a"), sharing("b", 5))
    assert (found["ml/a"].weight, found["ml"].weight) == (25, 30)


def test_a_pod_that_is_over_or_refused_weighs_nothing() -> None:
    refused = sharing("a", 90)
    refused["status"]["phase"] = "Failed"
    assert specs(refused, sharing("b", 10))["ml"].weight == 10


# ---- on which GPU ----


def test_on_each_gpu_a_pod_weighs_its_shares_of_that_gpu() -> None:
    placed = {"ml/a": {"GPU-a": 100, "GPU-b": 50}, "ml/b": {"GPU-b": 25}, "web/c": {"GPU-b": 50}}
    found = specs(sharing("a", 150), sharing("b", 25), sharing("c", 50, "web"), placed=placed)
    weights = {
        name: (found[name].weight_on("GPU-a"), found[name].weight_on("GPU-b"))
        for name in ("ml", "ml/a", "web")
    }
    assert weights["ml"] == pytest.approx((100, 75))
    assert weights["ml/a"] == pytest.approx((100, 50))
    assert found["ml/b"].gpu_parts == () and found["web"].gpu_parts == (), "all of it is on one"


@pytest.mark.parametrize("placed", [{}, {"ml/a": {"GPU-a": 100}}, {"ml/a": {"GPU-a": 1, "GPU-b": 1}}])
def test_what_is_not_known_or_does_not_fit_leaves_the_whole_weight_everywhere(placed: Any) -> None:
    assert specs(sharing("a", 150), placed=placed)["ml"].gpu_parts == ()


def test_who_says_a_weight_says_it_for_every_gpu() -> None:
    placed = {"ml/a": {"GPU-a": 100, "GPU-b": 50}}
    found = specs(sharing("a", 150, weight="4"), spaces=(space(weight="3"),), placed=placed)
    assert (found["ml"].gpu_parts, found["ml/a"].gpu_parts) == ((), ())


# ---- the file ----


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", "{}", '{"version": 2, "pods": {}}', '{"version": 1}', '{"version": 1, "pods": []}',
        '{"version": 1, "pods": {"a": 3}}', '{"version": 1, "pods": {"a": {"G": "x"}}}', "\xff",
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_none_and_says_why(tmp_path: Path, text: str) -> None:
    file = SharesFile(tmp_path / "shares.json")
    assert file.read() == {} and file.trouble is None
    (tmp_path / "shares.json").write_text(text, encoding="latin-1")
    assert file.read() == {} and str(file.path) in str(file.trouble)
    (tmp_path / "shares.json").unlink()
    assert file.read() == {} and file.trouble is None


def test_the_plugin_and_the_agent_understand_each_other() -> None:
    devices = [wire.ContainerDevices(resource_name=RESOURCE, device_ids=["GPU-a::0", "GPU-a::1", "GPU-b::0"])]
    container = wire.ContainerResources(name="main", devices=devices)
    answer = wire.ListPodResourcesResponse(
        pod_resources=[wire.PodResources(name="a", namespace="ml", containers=[container])]
    )
    text = json.dumps({"version": VERSION, "pods": placed_in(answer, ITS_RESOURCE)})
    assert parse(text) == {"ml/a": {"GPU-a": 2, "GPU-b": 1}}
