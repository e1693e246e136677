# SPDX-License-Identifier: Apache-2.0
"""A pod weighs what it was given, unless somebody says something else; its namespace too, whatever its pods say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.companion.pods.policy import Given, make_layer
from fairsched.companion.pods.shares import SharesFile, parse
from fairsched.config.podlayer import with_layer
from fairsched.k8s.objects import name_of, space_of
from fairsched.k8s.plugin.placed import VERSION, placed_in
from fairsched.k8s.plugin.shares import RESOURCE
from fairsched.k8s.proto import podresources_pb2 as wire
from fairsched.model import TenantSpec
from tests.unit.companion.pods.test_policy import FILE, pod, space


def sharing(name: str, count: object, namespace: str = "ml", **said: str) -> dict[str, Any]:
    """A pod that asks for so many shares."""
    found = pod(name, namespace, gpu=False, **said)
    found["spec"] = {"containers": [{"resources": {"limits": {RESOURCE: str(count)}}}]}
    found["status"] = {"phase": "Running", "startTime": "2026-11-27T00:00:00Z"}
    return found


def given_to(*pods: dict[str, Any]) -> dict[str, dict[str, int]]:
    """All that they ask for, of one GPU: as the device plugin writes it down."""
    return {
        f"{space_of(one)}/{name_of(one)}": {
            "GPU-a": int(one["spec"]["containers"][0]["resources"]["limits"].get(RESOURCE, 0))
        }
        for one in pods
    }


def specs(
    *pods: dict[str, Any], spaces: tuple[dict[str, Any], ...] = (), placed: Any = None
) -> dict[str, TenantSpec]:
    """``placed``: what the kubelet gave them; without it, what they ask for."""
    made = make_layer(pods, spaces, given=Given(placed=given_to(*pods) if placed is None else placed))
    return dict(with_layer(FILE, made.layer).tenant_specs())


@pytest.mark.parametrize(("placed", "weight"), [({}, 1), ({"ml/a": {"GPU-a": 25}}, 25)])
def test_what_no_kubelet_has_given_is_nothing(placed: Any, weight: float) -> None:
    """Who names a node itself goes round the scheduler; a kubelet without a plugin does not know the resource, and
    runs it, whatever number it says."""
    found = specs(sharing("a", 1_000_000), placed=placed)
    assert found["ml"].weight == weight


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
    text = json.dumps({"version": VERSION, "pods": placed_in(answer, RESOURCE)})
    assert parse(text) == {"ml/a": {"GPU-a": 2, "GPU-b": 1}}
