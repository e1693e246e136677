# SPDX-License-Identifier: Apache-2.0
"""What an allocation comes to, and what parameters are refused for, with key and remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.companion.pods.said import taken
from fairsched.k8s.dra.claims import ClaimError, Prepared, from_plain, mark_of, read_claim
from tests.unit.k8s.dra.made import NODE, UID, A, B, claim, gpu, offers, result, said

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=9) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def read(found: dict[str, Any], **more: Any) -> Prepared:
    return read_claim(found, UID, NODE, more.get("offers") or offers(), taken)


def test_a_share_is_what_was_consumed() -> None:
    (given,) = read(claim()).given
    assert (given.device, given.uuid, given.share, given.memory_bytes) == (A.lower(), A, 75.0, None)


def test_memory_that_was_asked_for_is_a_limit() -> None:
    found = claim(result(consumedCapacity={"fairsched.io/share": "10", "memory": "8Gi"}))
    assert read(found).given[0].memory_bytes == 8 << 30


def test_a_device_that_is_not_divided_is_had_whole() -> None:
    parts = offers(sharing="devices", parts=4)
    (given,) = read(claim(result(None, device=f"{A.lower()}-2")), offers=parts).given
    assert (given.share, given.memory_bytes) == (25.0, 20 << 30)


def test_an_administrator_looks_on_without_a_share() -> None:
    found = read(claim(result(adminAccess=True), result("25")))
    assert [one.share for one in found.given] == [None, 25.0] and found.shares() == {A: 25.0}


def test_shares_of_one_gpu_add_up() -> None:
    found = claim(result("25"), result("50"), result("10", uuid=B))
    assert read(found, offers=offers(gpu(A), gpu(B))).shares() == {A: 75.0, B: 10.0}


def test_devices_of_other_drivers_are_theirs() -> None:
    assert len(read(claim(result(driver="net.example"), result())).given) == 1


def test_a_request_of_several_choices_goes_by_its_first_name() -> None:
    assert read(claim(result(request="gpu/large"))).given[0].request == "gpu"


@pytest.mark.parametrize(
    ("found", "said_of_it"),
    [
        ({**claim(), "metadata": {"uid": "other"}}, "another one by now"),
        ({**claim(), "status": {}}, "no allocation"),
        (claim(result(driver="net.example")), "nothing of its allocation"),
        (claim(result(pool="node2")), "of the pool node2, not of this node, node1"),
        (claim(result(uuid=B)), "is not there"),
        (claim(result("much")), "consumedCapacity of fairsched.io/share: 'much' is not a quantity"),
    ],
)
def test_what_cannot_be_prepared_says_why(found: dict[str, Any], said_of_it: str) -> None:
    with pytest.raises(ClaimError, match=said_of_it):
        read(found)


# ---- parameters ----


def test_parameters_are_keys_of_the_configuration() -> None:
    found = read(claim(config=(said(weight="3", **{"class": "batch"}, vram_limit="8GiB"),)))
    assert found.values == {"weight": 3.0, "class": "batch", "vram_limit": 8 << 30}


def test_the_claim_goes_before_the_class_whatever_their_order() -> None:
    config = (said(weight=2), said("FromClass", weight=1, **{"class": "batch"}))
    assert read(claim(config=config)).values == {"weight": 2.0, "class": "batch"}


def test_parameters_of_other_drivers_are_theirs_and_those_of_other_requests_too() -> None:
    other = said(weight="x")
    other["opaque"] = {**other["opaque"], "driver": "net.example"}
    assert read(claim(config=(other, said(requests=("nic",), weight="x")))).values == {}


def test_requests_that_say_different_things_are_refused() -> None:
    config = (said(requests=("a",), weight=1), said(requests=("b",), weight=2))
    with pytest.raises(ClaimError, match="different things"):
        read(claim(result(request="a"), result(request="b/small"), config=config))
    assert read(claim(result(request="a"), config=config)).values == {"weight": 1.0}


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (said(weight="heavy"), "parameters: weight: 'heavy': it is not a number"),
        (said(weight=0), "parameters: weight: 0: "),
        (said(weight=float("nan")), "parameters: weight: nan: "),
        (said(**{"class": "gold"}), "parameters: class: 'gold': "),
        (said(vram_limit="lots"), "parameters: vram-limit: 'lots': "),
        (said(vram_limit=None), "parameters: vram-limit: None: it is empty"),
        (said(wieght=3), r"there is no key 'wieght'; known: weight, class, vram-limit"),
        (said(apiVersion="v1"), "apiVersion and kind are 'v1' and 'GpuShare'"),
    ],
)
def test_a_bad_parameter_is_named(parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(ClaimError, match=text):
        read(claim(config=(parameters,)))


def test_what_a_tenant_writes_is_shown_short_and_printable() -> None:
    with pytest.raises(ClaimError) as caught:
        read(claim(config=(said(weight="\x1b[2J" + "x" * 9000),)))
    assert len(str(caught.value)) < 200 and "\x1b" not in str(caught.value)


@given(st.dictionaries(st.sampled_from(["weight", "class", "vram_limit", "kind", "x"]), JSON))
def test_whatever_parameters_are_they_are_taken_or_refused_in_words(keys: dict[str, Any]) -> None:
    try:
        found = read(claim(config=(said(**keys),)))
    except ClaimError as error:
        assert str(error)
    else:
        json.dumps(found.values, allow_nan=False)


# ---- records ----


def test_a_record_is_read_back_also_one_of_another_version() -> None:
    found = read(claim(config=(said(weight=3),)))
    plain = json.loads(json.dumps(found.to_plain()))
    assert from_plain(plain) == found
    plain["given"][0]["later"] = 1
    assert from_plain({**plain, "more": 2}) == found


@pytest.mark.parametrize("data", [None, [], {}, {**read(claim()).to_plain(), "uid": "../x"}])
def test_what_is_no_record_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="not a record"):
        from_plain(data)


def test_another_allocation_has_another_mark() -> None:
    assert mark_of(claim()) == mark_of(claim()) != mark_of(claim(result("25")))
