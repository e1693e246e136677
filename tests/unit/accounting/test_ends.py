# SPDX-License-Identifier: Apache-2.0
"""What is learnt of a context that ends: its tenant's next one begins with it."""

from __future__ import annotations

from fairsched.model import Confidence
from tests.unit.accounting.fake_probe import MS, FakeProbe, account_of

CGROUP = 100


def test_who_never_asks_and_ends_leaves_what_its_launches_took() -> None:
    probe = FakeProbe()
    account = account_of(probe)
    for number in range(3):
        begin_ns = 100 * MS * number
        probe.create(0, 11 + number, CGROUP, t_ns=begin_ns)
        probe.launch(0, begin_ns, 10)
        (row,) = account.read(begin_ns + 5 * MS)
        is_first = number == 0
        assert row.confidence is (Confidence.LOW if is_first else Confidence.HIGH)
        assert is_first or abs(row.outstanding_ns - 15 * MS) < 4 * MS
        probe.end(0, begin_ns + 20 * MS)
        account.read(begin_ns + 50 * MS)


def test_who_has_proven_something_is_not_judged_by_what_it_left() -> None:
    probe = FakeProbe()
    account = account_of(probe)
    probe.create(0, 11, CGROUP)
    for number in range(3):
        probe.launch(0, 100 * MS * number, 10)
        probe.sync(0, 100 * MS * number + 20 * MS)
    probe.launch(0, 300 * MS, 1000)
    probe.end(0, 301 * MS)
    account.read(350 * MS)
    probe.create(0, 12, CGROUP, t_ns=400 * MS)
    probe.launch(0, 400 * MS, 10)
    (row,) = account.read(401 * MS)
    assert row.outstanding_ns > 15 * MS


def test_what_was_launched_before_our_probes_says_nothing_when_it_is_cut_off() -> None:
    """It had done most of its step when the probes came: ten launches seemed to take 2 ms, and what their tenant does
    next was taken to be over in a tenth of its time."""
    probe = FakeProbe()
    account = account_of(probe)
    probe.create(0, 11, CGROUP, is_seen=False)
    probe.launch(0, 0, 10)
    account.read(MS)
    probe.end(0, 2 * MS)
    account.read(50 * MS)
    probe.create(0, 12, CGROUP, t_ns=400 * MS)
    probe.launch(0, 400 * MS, 1000)
    (row,) = account.read(401 * MS)
    assert row.confidence is Confidence.LOW
    assert row.outstanding_ns == 0
