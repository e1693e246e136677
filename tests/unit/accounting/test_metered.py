# SPDX-License-Identifier: Apache-2.0
"""What launches take, where the GPU tells whose turn it is, through the account."""

from __future__ import annotations

import pytest

from tests.unit.accounting.fake_probe import MS, FakeProbe, FakeTrace, account_of

OTHER, DEEP = 500, 700
ITS = 6


def test_who_is_held_whenever_its_work_ends_is_metered_by_what_it_launches_next() -> None:
    """Its drains are seen to end, so its own returns close nothing and prove nothing. It had a fifth of a GPU, due a
    fortieth: nobody knew that it queued a hundred milliseconds at a time."""
    probe, trace = FakeProbe(), FakeTrace()
    account = account_of(probe)
    account.following.begin(0, trace)
    probe.create(0, OTHER, 5)
    probe.create(1, DEEP, ITS)
    probe.launch(0, 0, 1000)
    for begin_ms in (0, 100, 200):
        probe.launch(1, begin_ms * MS, 10)
        account.read((begin_ms + 1) * MS)
        account.hold([ITS], (begin_ms + 1) * MS)
        trace.rounds(OTHER, DEEP, begin_ms=begin_ms + 2, count=10)
        trace.rounds(OTHER, begin_ms=begin_ms + 42, count=5)
        account.read((begin_ms + 60) * MS)
        account.thaw([ITS], (begin_ms + 60) * MS)
    probe.launch(1, 300 * MS, 10)
    queued_ns = {row.tgid: row.outstanding_ns for row in account.read(301 * MS)}[DEEP]
    assert queued_ns / MS == pytest.approx(20, abs=1)
