# SPDX-License-Identifier: Apache-2.0
"""Quantities; what a GPU is as a device; and which slices there have to be."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.k8s.dra.devices import GpuFacts, Terms, device_name, offers_of, semantic
from fairsched.k8s.dra.slices import MOST_DEVICES, Plan, Pool, make_plan
from tests.unit.k8s.dra.made import MIG, A, B, gpu, offers

POOL = Pool("gpu.fairsched.io", "node1", "u1")


# ---- devices ----


def test_a_gpu_is_one_device_of_which_claims_consume_hundredths() -> None:
    (offer,) = offers_of(
        [gpu(driver_version="535.104.05", numa_node=1)], Terms("capacity", default_share=50)
    ).values()
    assert offer.device["name"] == A.lower() and offer.device["allowMultipleAllocations"]
    capacity, attributes = offer.device["capacity"], offer.device["attributes"]
    assert capacity["fairsched.io/share"]["value"] == "100"
    assert capacity["fairsched.io/share"]["requestPolicy"]["default"] == "50"
    assert capacity["memory"]["requestPolicy"]["default"] == "0", "else the first claim has it all"
    assert attributes["uuid"] == {"string": A} and attributes["type"] == {"string": "gpu"}
    assert attributes["driverVersion"] == {"version": "535.104.5"} and attributes["numaNode"] == {"int": 1}
    assert "profile" not in attributes and "pcieRoot" not in str(attributes), "what is not known is left out"


def test_without_consumable_capacity_it_is_so_many_equal_devices() -> None:
    found = offers(sharing="devices", parts=3)
    assert list(found) == [f"{A.lower()}-{number}" for number in range(3)]
    assert {one.device["capacity"]["fairsched.io/share"]["value"] for one in found.values()} == {"33333m"}
    assert all("allowMultipleAllocations" not in one.device for one in found.values())
    assert {one.memory_bytes for one in found.values()} == {(80 << 30) // 3}
    (whole,) = offers(sharing="devices").values()
    assert whole.device["name"] == A.lower() and whole.share == 100 and whole.memory_bytes is None


def test_an_instance_says_what_it_is_a_part_of() -> None:
    (offer,) = offers(gpu(MIG, parent_uuid=A, gpu_instance=1, compute_instance=0, profile="3g.20gb")).values()
    found = offer.device["attributes"]
    assert (found["type"], found["profile"], found["parentUUID"]) == (
        {"string": "mig"}, {"string": "3g.20gb"}, {"string": A}
    )  # fmt: skip


def test_a_gpu_that_is_lost_is_not_offered_and_one_of_which_nothing_is_known_is() -> None:
    assert set(offers(gpu(A, is_up=False), GpuFacts(B))) == {B.lower()}


@given(st.text(max_size=100), st.none() | st.integers(0, 63))
def test_a_name_is_a_label_whatever_the_driver_says(uuid: str, number: int | None) -> None:
    name = device_name(f"g{uuid}g", number)
    assert len(name) <= 63 and name[0].isalnum() and name[-1].isalnum()
    assert all(one in "abcdefghijklmnopqrstuvwxyz0123456789-" for one in name)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("550.163.01", "550.163.1"),
        ("535.54", "535.54.0"),
        ("12", "12.0.0"),
        ("", None),
        (None, None),
        ("x", None),
    ],
)
def test_a_drivers_version_is_one_that_the_api_takes(text: str | None, version: str | None) -> None:
    assert semantic(text) == version


# ---- slices ----


def devices(*gpus: GpuFacts, **more: Any) -> list[Any]:
    return [one.device for one in offers(*gpus, **more).values()]


def done(plan: Plan, there: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the server has then; versions and uids are its own."""
    found = {one["metadata"]["name"]: one for one in there}
    for name, _ in plan.removed:
        del found[name]
    for body in (*plan.made, *plan.changed):
        kept = copy.deepcopy(dict(body))
        kept["metadata"] |= {"uid": f"u-{kept['metadata']['name']}", "resourceVersion": str(plan.generation)}
        found[kept["metadata"]["name"]] = kept
    return list(found.values())


def test_the_first_slice_is_owned_by_the_node_and_nothing_is_written_twice() -> None:
    plan = make_plan(POOL, devices(), [])
    (made,) = plan.made
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u1"
    assert made["spec"]["pool"] == {"name": "node1", "generation": 1, "resourceSliceCount": 1}
    assert not make_plan(POOL, devices(), done(plan, []))


def test_a_node_without_gpus_has_a_slice_that_is_empty() -> None:
    (made,) = make_plan(POOL, [], []).made
    assert made["spec"]["devices"] == [], "the driver is there, and has none"


def test_the_server_may_write_quantities_in_its_own_way() -> None:
    there = done(make_plan(POOL, devices(), []), [])
    there[0]["spec"]["devices"][0]["capacity"]["memory"]["value"] = "80Gi"
    assert not make_plan(POOL, devices(), there)
    there[0]["spec"]["devices"][0]["capacity"]["memory"]["value"] = "81Gi"
    assert make_plan(POOL, devices(), there)


def test_a_gpu_that_comes_is_a_new_generation_of_the_whole_pool() -> None:
    there = done(make_plan(POOL, devices(), []), [])
    plan = make_plan(POOL, devices(gpu(A), gpu(B)), there)
    (changed,) = plan.changed
    assert changed["spec"]["pool"]["generation"] == 2 and changed["metadata"]["resourceVersion"] == "1"
    assert len(changed["spec"]["devices"]) == 2 and not plan.made and not plan.removed


def test_more_devices_than_a_slice_takes_are_several_and_all_say_how_many() -> None:
    many = devices(*[gpu(f"GPU-{number:08d}") for number in range(3)], sharing="devices", parts=64)
    plan = make_plan(POOL, many, [])
    assert [len(one["spec"]["devices"]) for one in plan.made] == [MOST_DEVICES, 64]
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in plan.made} == {2}
    there = done(plan, [])
    fewer = make_plan(POOL, many[:10], there)
    assert [name for name, _ in fewer.removed] == ["node1-gpu.fairsched.io-1"]
    assert fewer.changed[0]["spec"]["pool"] == {"name": "node1", "generation": 2, "resourceSliceCount": 1}
    assert not make_plan(POOL, many[:10], done(fewer, there))


def test_slices_of_another_hand_and_of_a_node_of_before_are_replaced() -> None:
    there = done(make_plan(POOL, devices(), []), [])
    stranger = copy.deepcopy(there[0])
    stranger["metadata"]["name"] = "by-hand"
    plan = make_plan(POOL, devices(), [*there, stranger])
    assert plan.removed == [("by-hand", f"u-{there[0]['metadata']['name']}")] and plan.generation == 2
    again = make_plan(Pool(POOL.driver, POOL.node, "u2"), devices(), there)
    assert again.changed[0]["metadata"]["ownerReferences"][0]["uid"] == "u2"


def test_a_slice_of_ours_with_another_pool_is_made_anew_for_the_field_cannot_be_changed() -> None:
    there = done(make_plan(POOL, devices(), []), [])
    there[0]["spec"]["pool"]["name"] = "other"
    plan = make_plan(POOL, devices(), there)
    assert [name for name, _ in plan.removed] == [one["metadata"]["name"] for one in plan.made]


@given(st.text("abc-.", min_size=1, max_size=253))
def test_a_slices_name_is_one_that_the_api_takes(node: str) -> None:
    name = Pool(POOL.driver, f"n{node}"[:253], "u").slice_name(3)
    assert len(name) <= 253 and name.endswith("-gpu.fairsched.io-3")


@settings(deadline=None)
@given(st.lists(st.sampled_from(range(5)), max_size=8))
def test_whatever_comes_and_goes_the_plan_ends_there_and_generations_only_grow(steps: list[int]) -> None:
    there: list[dict[str, Any]] = []
    newest = 0
    for count in steps:
        wanted = devices(
            *[gpu(f"GPU-{number:08d}") for number in range(count + 1)], sharing="devices", parts=40
        )
        plan = make_plan(POOL, wanted, there)
        there = done(plan, there)
        assert plan.generation >= newest
        newest = plan.generation
        assert {one["spec"]["pool"]["generation"] for one in there} == {newest}
        assert not make_plan(POOL, wanted, there)
