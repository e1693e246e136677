# SPDX-License-Identifier: Apache-2.0
"""Quantities of Kubernetes are read exactly, and what is none is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.k8s.quantity import comparable, parse, quantity, thousandths


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("75", 75), ("8.", 8), ("7500m", Fraction(15, 2)), ("80Gi", 80 << 30), ("1024Mi", 1 << 30), ("1.5Gi", 3 << 29),
        ("1e3", 1000), ("1E3", 1000), ("1E-1", Fraction(1, 10)), ("1e-3", Fraction(1, 1000)), (3, 3), ("1k", 1000),
        (".5", Fraction(1, 2)), ("-1", -1), ("+1", 1), ("100n", Fraction(1, 10**7)), ("1u", Fraction(1, 10**6)),
        ("1E", 10**18), ("1Ei", 1 << 60),
    ],
)  # fmt: skip
def test_it_is_read_exactly(text: object, value: Fraction) -> None:
    assert parse(text) == quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "heavy", "Gi", "1 Gi", " 1", "1\n", "1gi", "1ki", "1K", "1KB", "1e", "1e999", "0x10", ".", "1..2", "NaN",
        "9" * 100, "\u0663", None, True,
    ],
)  # fmt: skip
def test_what_is_none_is_refused(text: object) -> None:
    assert quantity(text) is None
    with pytest.raises(ValueError, match="not a quantity"):
        parse(text)


@given(st.integers(0, 10**9))
def test_thousandths_are_read_back(cut: int) -> None:
    assert parse(thousandths(Fraction(cut, 1000))) == Fraction(cut, 1000)


def test_equal_amounts_are_the_same_however_they_are_written() -> None:
    assert comparable([{"max": {"memory": "1024Mi"}}]) == comparable([{"max": {"memory": "1Gi"}}])
    assert comparable({"a": "b"}) != comparable({"a": "c"})
