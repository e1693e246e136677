# SPDX-License-Identifier: Apache-2.0
"""delay.h, compiled by gcc: its buckets are those of user space, and a burst has as many waits as turns."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairsched.base import buckets
from fairsched.bpf import abi
from tests.unit.bpf.compile import gcc

TEXT = """
#define FS_AT_MOST(value, most) ((value) > (most) ? (most) : (value)) /* in BPF it is BPF's own code */
#include "delay.h"
fs_u64 bucket(fs_u64 ns) { return delay_bucket(ns); }
fs_u64 turns(fs_u64 service, fs_u64 turn_ns) { return delay_turns(service, turn_ns); }
"""
U64 = ctypes.c_uint64
MS = 1_000_000


@pytest.fixture(scope="module")
def delay(tmp_path_factory: pytest.TempPathFactory) -> Any:
    library = ctypes.CDLL(str(gcc(tmp_path_factory.mktemp("delay"), TEXT, "-shared", "-fPIC", "-O2")))
    library.bucket.argtypes, library.bucket.restype = [U64], U64
    library.turns.argtypes, library.turns.restype = [U64, U64], U64
    return library


@given(st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 2**40)))
@example(2**64 - 1)
def test_bpf_and_user_space_count_in_the_same_bucket(delay: Any, ns: int) -> None:
    assert delay.bucket(ns) == buckets.bucket_of(ns)


def test_bpf_has_as_many_buckets_as_user_space() -> None:
    assert abi.DELAY_BUCKETS == buckets.COUNT


def test_a_burst_has_a_wait_for_each_turn_it_took(delay: Any) -> None:
    assert [delay.turns(ms * MS, 2 * MS) for ms in (0, 1, 2, 3, 20, 21)] == [1, 1, 1, 2, 10, 11]
    assert delay.turns(20 * MS, 0) == 1, "a turn that is not known"
