# SPDX-License-Identifier: Apache-2.0
"""What the launch gate's experiment makes of its thaws."""

from __future__ import annotations

from benchmarks.launch_gate import GRANT_MS, Thaw, figures, table


def test_overshoot_is_what_was_queued_beyond_the_grant() -> None:
    thaws = [Thaw(GRANT_MS + ms, 100, 10.0 * ms, stops=3, told=2, leaked=ms == 20) for ms in range(1, 21)]
    found = figures(thaws)
    assert found["overshoot_p50_ms"] == 10.5
    assert (found["overshoot_min_ms"], found["overshoot_p95_ms"], found["overshoot_max_ms"]) == (1, 19, 20)
    assert (found["thaws"], found["stops"], found["told"], found["leaked"]) == (20, 60, 40, 1)
    assert found["took_p50_us"] == 105


def test_the_table_fits_a_terminal() -> None:
    worst = figures([Thaw(9999.0, 99_999, 999_999.0, stops=9999, told=9999)])
    lines = table(
        {"ordinary": worst}, {"none": 9.0, "empty": 746.0, "gate_other": 738.0, "gate_counted": 726.0}
    )
    assert len(lines) == 4
    assert max(map(len, lines)) <= 80
