# SPDX-License-Identifier: Apache-2.0
"""A GPU that was found to take other turns is known again, and nothing that nobody found is believed."""

from __future__ import annotations

from typing import Any

import pytest

from fairsched.accounting.natures import Natures

US = 1000
CONFIGURED = (2000 * US, 100 * US)
LONG = (6000 * US, 100 * US)
ROW = ["GPU-a", *LONG, *CONFIGURED]


def test_what_is_in_force_is_known_again_on_this_gpu_alone() -> None:
    natures = Natures()
    assert natures.of("GPU-a", CONFIGURED) == CONFIGURED
    natures.note("GPU-a", LONG, CONFIGURED)
    assert natures.of("GPU-a", CONFIGURED) == LONG
    assert natures.of("GPU-b", CONFIGURED) == CONFIGURED
    natures.note("GPU-a", CONFIGURED, CONFIGURED)
    assert natures.to_list() == []


def test_a_gpu_without_a_uuid_is_not_remembered() -> None:
    natures = Natures()
    natures.note(None, LONG, CONFIGURED)
    assert natures.of(None, CONFIGURED) == CONFIGURED
    assert natures.to_list() == []


def test_it_is_forgotten_when_something_else_is_configured() -> None:
    natures = Natures()
    natures.note("GPU-a", LONG, CONFIGURED)
    assert natures.of("GPU-a", (1000 * US, 0)) == (1000 * US, 0)


def test_it_is_written_and_read() -> None:
    natures, again = Natures(), Natures()
    natures.note("GPU-b", LONG, CONFIGURED)
    natures.note("GPU-a", LONG, CONFIGURED)
    again.restore(natures.to_list())
    assert natures.to_list() == again.to_list() == [ROW, ["GPU-b", *ROW[1:]]]


@pytest.mark.parametrize(
    "rows",
    [
        7,
        [[]],
        [["GPU-a"]],
        [["GPU-a", *LONG]],
        [[*ROW, 1]],
        [[None, *ROW[1:]]],
        [["GPU-a", 0, 0, *CONFIGURED]],
        [["GPU-a", 6001 * US, 100 * US, *CONFIGURED]],
        [["GPU-a", "six", 100 * US, *CONFIGURED]],
        [["GPU-b", *ROW[1:]], ["GPU-a", 1, 1, *CONFIGURED]],
    ],
)
def test_what_no_tuner_finds_is_refused_and_changes_nothing(rows: Any) -> None:
    natures = Natures()
    natures.note("GPU-a", LONG, CONFIGURED)
    with pytest.raises((ValueError, TypeError)):
        natures.restore(rows)
    assert natures.to_list() == [ROW]
