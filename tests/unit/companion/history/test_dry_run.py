# SPDX-License-Identifier: Apache-2.0
"""What a dry run would have held, in the past that is kept: apart from what was held, and never more than the time."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.companion.history.collect import Collector
from fairsched.companion.history.read import Past, read_past
from fairsched.companion.history.store import open_store
from fairsched.model import ActionKind, ReasonCode
from tests.unit.companion.history.days import T0, decision, report, rows_at, tenant

MIB = 1 << 20


def test_it_is_in_no_number_of_what_was_held(tmp_path: Path) -> None:
    store = open_store(tmp_path / "h", keep_s=10**9, max_bytes=16 * MIB)
    for number in range(1, 4):
        rows = rows_at(T0 + 10 * number)
        dry = (replace(row, is_dry_run=True, count=7 * row.count) for row in rows.decisions)
        store.write(replace(rows, decisions=(*rows.decisions, *dry)))
    store.close()
    past = read_past(tmp_path / "h", T0, T0 + 30)
    batch = next(total for total in past.totals if total.name == "batch")
    assert (batch.holds, batch.held_s) == (6, pytest.approx(3.0))
    assert (batch.dry_holds, batch.dry_held_s) == (60, pytest.approx(0.3))
    assert sum(value or 0 for _, value in past.holds["over_entitlement"]) == 9
    assert sum(value or 0 for _, value in past.dry_holds["over_entitlement"]) == 63
    chat = next(total for total in past.totals if total.name == "chat")
    assert (chat.dry_holds, chat.dry_held_s) == (0, None)


def past_of(path: Path, holds: list[tuple[int, bool]], last_s: float) -> Past:
    """One hold after the other (how long in ms, and whether a dry run's), each looked at twice; its last seconds."""
    store, collector = open_store(path, keep_s=10**9, max_bytes=16 * MIB), Collector(10)
    now_s = real_s = 0.0
    for held_ms, is_dry in holds:
        ended = replace(decision(ActionKind.THAW, ReasonCode.CAUGHT_UP, held_ms), is_dry_run=is_dry)
        for decisions in ([], [ended]):
            now_s += held_ms / 2000
            real_s += 0.0 if is_dry else held_ms / 2000
            moment = report(now_s, tenant("batch", now_s, 0.4, 0.5, held_s=real_s))
            rows = collector.add(moment, decisions)
            if rows is not None:
                store.write(rows)
    store.close()
    return read_past(path, T0 + now_s - last_s, T0 + now_s + 1)


@settings(deadline=None)  # it waits for a disk
@given(
    st.lists(st.tuples(st.integers(0, 25_000), st.booleans()), max_size=30), st.booleans(), st.floats(1, 400)
)
def test_no_total_exceeds_the_time_on_record(
    holds: list[tuple[int, bool]], is_dry: bool, last_s: float
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        past = past_of(Path(directory) / "h", [*holds, (24_000, is_dry)], last_s)
    (total,) = past.totals
    assert (total.held_s or 0.0) <= past.on_record_s + 1e-6
    assert (total.dry_held_s or 0.0) <= past.on_record_s + 1e-6
