# SPDX-License-Identifier: Apache-2.0
"""What unmodified clients ask of the stand-in libcuda besides launches: modules, bytes in memory, and answers."""

from __future__ import annotations

import pytest

INVALID_VALUE, NOT_FOUND, ALREADY_REGISTERED, NOT_REGISTERED, NOT_SUPPORTED = 1, 500, 712, 713, 801


# ---- modules ----


def test_a_real_kernel_takes_what_the_list_says_and_not_what_its_first_argument_holds(host, call):
    seen = call(host, "real_kernels", FAIRSCHED_SIM_KERNEL_US="half=473,one=967.5,20")
    assert host.truth()[0].exec_ns == 473_000 + 967_500
    assert seen["took_us"]["half_k"] >= 473 and seen["took_us"]["one_k"] >= 967.5
    assert (seen["missing"], seen["count"]) == (NOT_FOUND, 2)


@pytest.mark.parametrize(("listed", "each_us"), [("", 100), ("other=1", 100), ("30", 30), ("k=50,30", 50)])
def test_what_is_not_listed_by_name_takes_the_entry_without_a_name_or_100_us(host, call, listed, each_us):
    env = {"FAIRSCHED_SIM_KERNEL_US": listed} if listed else {}
    call(host, "real_kernels", **env)
    assert host.truth()[0].exec_ns == 2 * each_us * 1000


@pytest.mark.parametrize("listed", ["half", "half=x", "half=-1", "one=5,half=", "1e12"])
def test_a_list_that_cannot_be_read_is_an_error_and_not_a_guess(host, call, listed):
    assert call(host, "bad_duration", FAIRSCHED_SIM_KERNEL_US=listed) == {"rc": INVALID_VALUE}


def test_a_cubin_names_its_kernels_and_variables(host, call):
    assert call(host, "library") == {
        "name": "_Z4workPf",
        "count": 1,
        "size": 24,
        "text": "x" * 24,
        "no_kernel": NOT_FOUND,
    }
    assert host.truth()[0].kernels == 2


def test_what_is_linked_has_the_kernels_that_were_added(host, call):
    seen = call(host, "linked")
    assert seen["found"] and seen["size"] > 0


def test_a_kernel_s_attributes_and_occupancy_are_those_of_a_small_one_on_an_h100(host, call):
    seen = call(host, "kernels")
    assert seen["seen"] == {"0": 1024, "4": 32, "6": 90, "8": 49152}
    assert (seen["too_much"], seen["set"]) == (INVALID_VALUE, 232448)
    assert seen["active"] == [2, 16, 32, 2]
    assert seen["best"] == [2 * 132, 1024]


def test_a_launch_that_no_gpu_has_room_for_is_refused(host, call):
    assert call(host, "refused") == {"rcs": [INVALID_VALUE] * 6 + [0]}
    assert host.truth()[0].kernels == 1


# ---- memory ----


def test_copies_and_memsets_move_bytes_and_stay_within_the_allocation(host, call):
    assert call(host, "contents") == {
        "zeroes": True,
        "part": True,
        "unified": True,
        "set": True,
        "rows": [True] * 3,
        "beyond": INVALID_VALUE,
    }


def test_copies_of_rectangles_and_cuboids_take_their_part(host, call):
    seen = call(host, "rectangles")
    assert seen["pitch"] == 512
    assert seen["part"] == [12, 13, 14, 22, 23, 24]
    assert seen["corner"] == [13, 14, 16, 17, 22, 23, 25, 26]
    assert seen["array"] == NOT_SUPPORTED


def test_an_address_tells_what_it_is_and_is_unmapped_in_the_end(host, call):
    seen = call(host, "places")
    assert seen["kinds"] == {"device": [2, False], "managed": [2, True], "pinned": [1, False]}
    assert seen["range"] == [True, 5000]
    assert seen["unknown"] == INVALID_VALUE
    assert seen["seen"], "managed memory is one for the host and the device"
    assert seen["mapped"] == [True, True, False, False]
    assert host.gpu_truth().vram_used_bytes == 0


def test_a_pool_counts_what_is_taken_from_it(host, call):
    assert call(host, "pools") == {"full": 1 << 20, "empty": 0, "high": 1 << 20}


def test_host_memory_is_registered_once(host, call):
    assert call(host, "registered") == {"rcs": [0, ALREADY_REGISTERED, 0, NOT_REGISTERED]}


# ---- devices, streams, graphs ----


def test_the_device_answers_as_an_h100(host, call):
    assert call(host, "attributes") == {
        "1": 1024,
        "10": 32,
        "16": 132,
        "38": 50 << 20,
        "39": 2048,
        "75": 9,
        "76": 0,
        "81": 233472,
        "97": 232448,
        "106": 32,
        "115": 1,
        "120": 1,
        "unknown": INVALID_VALUE,
    }


def test_a_stream_calls_back_and_a_graph_keeps_its_objects_until_its_end(host, call):
    assert call(host, "called_back") == {"got": [[0, 7], ["ended", 8]], "alive": 1}
