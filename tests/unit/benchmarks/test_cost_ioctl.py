# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of what the hook on the driver's ioctls adds."""

from __future__ import annotations

import json

import pytest

from benchmarks.cost import ioctl


def measured(control: float = 900.0, memory: float = 3000.0) -> dict[str, dict[str, list[float]]]:
    without = {"control": 200.0, "memory": 400.0, "other": 180.0, "none": 90.0}
    with_hook = {"control": control, "memory": memory, "other": 500.0, "none": 100.0}
    return {
        kind: {
            "without": [without[kind]] * 3,
            "with": [with_hook[kind], with_hook[kind], 10 * with_hook[kind]],
        }
        for kind in ioctl.KINDS
    }


def test_what_is_added_is_per_system_call_and_the_dearer_counts() -> None:
    result = ioctl.summarise("tracepoint", measured())
    assert result["calls"]["control"]["added_per_call_ns"] == 700
    assert result["calls"]["memory"]["added_per_call_ns"] == 1300, "an allocation and a free"
    assert result["calls"]["control"]["least_added_per_call_ns"] == 700
    assert result["calls"]["none"]["added_per_call_ns"] == 10
    assert result["bar"] == {"added_per_call_ns": 1300, "at_most_ns": 1300, "is_met": True}


def test_a_missed_bar_is_said() -> None:
    result = ioctl.summarise("tracepoint", measured(control=2000.0))
    assert not result["bar"]["is_met"]
    assert "MISSED" in ioctl.render(result)


@pytest.mark.skipif(not ioctl.OUTPUT.exists(), reason="no result is kept: sudo make bench-ioctl")
def test_the_kept_result_names_its_machine_and_follows_from_its_figures() -> None:
    kept = json.loads(ioctl.OUTPUT.read_text())
    assert {"machine", "kernel", "commit", "hook", "calls", "bar"} <= kept.keys()
    for kind, calls in ioctl.KINDS.items():
        row = kept["calls"][kind]
        added = (row["with_ns"][1] - row["without_ns"][1]) / calls
        assert row["added_per_call_ns"] == pytest.approx(added, abs=0.2)
