# SPDX-License-Identifier: Apache-2.0
"""The processor-sharing clock of clock.h, compiled by gcc, against the integral it stands for and its twin."""

from __future__ import annotations

import ctypes
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.bpf import abi
from tests.unit.bpf.compile import gcc

TEXT = """
#include "clock.h"
int step(fs_u64 *word, int delta, fs_u64 now, fs_u64 *v, fs_u64 *n) { return clock_step(word, delta, now, v, n); }
fs_u64 v_at(fs_u64 word, fs_u64 now) { return clock_v(word, now); }
fs_u64 since(fs_u64 a, fs_u64 b) { return clock_since(a, b); }
"""
MAX_N = (1 << 64 - abi.CLOCK_SHIFT) - 1
U64 = ctypes.c_uint64


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = gcc(tmp_path_factory.mktemp("clock"), TEXT, "-shared", "-fPIC", "-O2")
    library = ctypes.CDLL(str(path))
    library.step.argtypes = [ctypes.POINTER(U64), ctypes.c_int, U64, ctypes.POINTER(U64), ctypes.POINTER(U64)]
    for function, count in ((library.v_at, 2), (library.since, 2)):
        function.argtypes, function.restype = [U64] * count, U64
    return library


def step(clock: Any, word: Any, delta: int, now: int) -> tuple[int, int, int]:
    """(error, V at that moment, n before)."""
    v, n = U64(), U64()
    return clock.step(ctypes.byref(word), delta, now, ctypes.byref(v), ctypes.byref(n)), v.value, n.value


Changes = st.lists(
    st.tuples(st.sampled_from([1, 1, 1, -1, -1]), st.integers(0, 3_000_000_000)), min_size=1, max_size=60
)
Start = st.one_of(st.integers(0, 1 << 40), st.integers((1 << 56) - (1 << 33), (1 << 56) + (1 << 34)))
"""Beginnings near the wrap of B, too."""


@settings(max_examples=300, deadline=None)
@given(changes=Changes, start=Start)
def test_v_is_the_integral_of_dt_over_n(clock: Any, changes: list[tuple[int, int]], start: int) -> None:
    word, now, n = U64(), start, 0
    before, true_v = None, Fraction(0)
    for steps, (delta, later) in enumerate(changes, 1):
        now += later
        if n:
            true_v += Fraction(later, n)
        delta = 1 if n + delta < 0 else delta
        error, v, old_n = step(clock, word, delta, now)
        assert (error, old_n) == (0, n)
        assert v == abi.clock_v(word.value, now)  # V does not jump at a change of n
        before = v if before is None else before
        assert abs(abi.clock_since(v, before) - true_v) <= 2 * steps
        n += delta
        assert abi.clock_n(word.value) == n


@settings(max_examples=300, deadline=None)
@given(
    word=st.integers(0, (1 << 64) - 1), now=st.integers(0, (1 << 64) - 1), other=st.integers(0, (1 << 64) - 1)
)
def test_the_twins_in_python_say_the_same(clock: Any, word: int, now: int, other: int) -> None:
    assert clock.v_at(word, now) == abi.clock_v(word, now)
    assert clock.since(word, other) == abi.clock_since(word, other)


def test_v_stands_still_while_nobody_works(clock: Any) -> None:
    word = U64()
    step(clock, word, 1, 1000)
    _, v, _ = step(clock, word, -1, 5000)
    assert abi.clock_v(word.value, 5000) == abi.clock_v(word.value, 10**15) == v
    _, again, n = step(clock, word, 1, 10**15)
    assert (again, n) == (v, 0)


def test_one_more_than_fits_is_refused_and_counted(clock: Any) -> None:
    word = U64()
    for n in range(MAX_N):
        assert step(clock, word, 1, 10**9 + n)[0] == 0
    full = word.value
    assert step(clock, word, 1, 2 * 10**9)[0] == abi.Count.CLOCK_RANGE
    assert word.value == full


def test_less_than_nobody_is_refused_and_counted(clock: Any) -> None:
    word = U64()
    assert step(clock, word, -1, 10**9)[0] == abi.Count.CLOCK_RANGE
    assert word.value == 0


@given(a=st.integers(0, abi.CLOCK_MASK), d=st.integers(0, (1 << abi.CLOCK_SHIFT - 1) - 1))
def test_since_is_right_across_the_wrap(a: int, d: int) -> None:
    assert abi.clock_since((a + d) & abi.CLOCK_MASK, a) == d
    assert abi.clock_since(a, (a + d) & abi.CLOCK_MASK) == 0
