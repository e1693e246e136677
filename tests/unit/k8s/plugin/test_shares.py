# SPDX-License-Identifier: Apache-2.0
"""Names of shares, and which free ones are chosen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.k8s.plugin.choose import How, choose
from fairsched.k8s.plugin.shares import MOST_DEVICES, BadShare, count, name_of, names, parse
from tests.unit.k8s.plugin.kubelet import A, B, C, offer, shares, some


def test_a_share_names_its_gpu_and_its_number() -> None:
    assert name_of(A, 7) == "GPU-aaaa::7"
    assert parse("GPU-aaaa::7") == (A, 7)
    assert parse("MIG-GPU-1/2/0::0") == ("MIG-GPU-1/2/0", 0), "drivers before 470"


@pytest.mark.parametrize(
    "name",
    [
        "", "GPU-aaaa", "::3", "GPU-aaaa::", "GPU-aaaa::-1", "GPU-aaaa::+1", "GPU-aaaa:: 1", "GPU-aaaa::01",
        "GPU-aaaa::1_0", "GPU-aaaa::٣", "GPU-aaaa::x", f"{'x' * 200}::1",
    ],
)  # fmt: skip
def test_what_is_no_share_is_refused(name: str) -> None:
    """Above all second names of one share: it would be given out twice."""
    with pytest.raises(BadShare):
        parse(name)


def test_shares_are_the_same_ones_after_a_restart_and_fewer_keep_their_names() -> None:
    assert set(names([offer(B), offer(A)], 3)) == set(names([offer(A), offer(B)], 3))
    assert set(names([offer(A)], 2)) < set(names([offer(A)], 3))


def test_a_node_offers_no_more_than_fits_into_a_message() -> None:
    many = [offer(f"GPU-{number}") for number in range(64)]
    found = names(many, 1000)
    assert len(found) == MOST_DEVICES and all(f"{one.uuid}::999" in found for one in many[:16])


def test_shares_are_counted_by_gpu_and_none_twice() -> None:
    assert count([*some(B, 2), *some(A, 1)]) == {B: 2, A: 1}
    with pytest.raises(BadShare, match="named twice"):
        count(shares(A, 1, 1))


# ---- which ones ----


def by_gpu(ids: list[str]) -> dict[str, int]:
    return count(ids)


def test_pack_takes_the_fullest_gpu_that_has_room_and_spread_the_emptiest() -> None:
    free = [*some(A, 30), *some(B, 100), *some(C, 60)]
    assert by_gpu(choose(free, [], 25, "pack")) == {A: 25}
    assert by_gpu(choose(free, [], 40, "pack")) == {C: 40}
    assert by_gpu(choose(free, [], 25, "spread")) == {B: 25}


@pytest.mark.parametrize("how", ["pack", "spread"])
def test_a_container_gets_as_few_gpus_as_can_be(how: How) -> None:
    free = [*some(A, 30), *some(B, 40), *some(C, 60)]
    assert by_gpu(choose(free, [], 90, how)) == ({C: 60, A: 30} if how == "pack" else {C: 60, B: 30})
    assert by_gpu(choose(free, [], 60, how)) == {C: 60}


def test_what_it_has_anyway_comes_first_and_that_gpu_is_filled_up() -> None:
    free = [*some(A, 10), *some(B, 100)]
    assert by_gpu(choose(free, shares(A, 3), 8, "spread")) == {A: 8}
    assert by_gpu(choose(free, shares(A, 3), 20, "spread")) == {A: 10, B: 10}
    assert choose(free, shares(A, 3), 8, "pack")[0] == "GPU-aaaa::3"


def test_the_lowest_numbers_are_taken_and_the_same_question_has_the_same_answer() -> None:
    assert choose(shares(A, 10, 9, 2, 1), [], 2, "pack") == shares(A, 1, 2)
    assert choose(shares(A, 1, 2, 9, 10), [], 3, "pack") == shares(A, 1, 2, 9)


free_shares = st.dictionaries(
    st.sampled_from([A, B, C, "GPU-d"]), st.sets(st.integers(0, 99), min_size=1), min_size=1
)


@given(free=free_shares, size=st.integers(0, 200), how=st.sampled_from(["pack", "spread"]), data=st.data())
def test_whatever_is_free_as_many_are_chosen_of_no_more_gpus_than_are_needed(
    free: dict[str, set[int]], size: int, how: How, data: st.DataObject
) -> None:
    """Compared with a search: the fewest GPUs that have room for all, over all sets of them."""
    available = [name for uuid, numbers in free.items() for name in shares(uuid, *sorted(numbers))]
    must = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=size))
    chosen = choose(available, must, size, how)
    assert len(chosen) == len(set(chosen)) == min(size, len(available))
    assert set(must) <= set(chosen) <= set(available)
    if size <= len(available) and not must:
        room = sorted((len(numbers) for numbers in free.values()), reverse=True)
        fewest = next(n for n in range(len(room) + 1) if sum(room[:n]) >= size)
        assert len(count(chosen)) == fewest
