# SPDX-License-Identifier: Apache-2.0
"""When nobody's account on a GPU is to be relied on, and what cannot bring that about."""

from __future__ import annotations

import logging

import pytest

from fairsched.accounting import turns as turns_module
from fairsched.accounting.context import Context
from fairsched.accounting.ebpf import EbpfAccount
from fairsched.accounting.replay import TRUSTED_HIT_RATIO, Replay
from fairsched.accounting.tuner import POOR_HIT_RATIO, Tape
from fairsched.accounting.turns import ReplayTrust
from fairsched.accounting.witnesses import EXAMINED_NS
from fairsched.bpf import abi
from fairsched.model import Confidence
from tests.unit.accounting.closed_loop import MS
from tests.unit.accounting.fake_probe import FakeProbe, account_of

S = 1000 * MS
QUIET_NS = turns_module._QUIET_NS
LOST, FINE = TRUSTED_HIT_RATIO - 0.1, TRUSTED_HIT_RATIO


def turns(*, is_settled: bool = True, hit_ratio: float = LOST) -> ReplayTrust:
    found = ReplayTrust(Replay())
    found.tuner.is_settled, found.replay.hit_ratio = is_settled, hit_ratio
    return found


def make_uneven(one: ReplayTrust, now_ns: int) -> None:
    for part in (1.0, 0.5):
        for _ in range(8):
            one.evenness.note("a", "tenant", round(MS * part), 1, MS, now_ns)


# ---- anchors ----


def test_a_gpu_whose_nature_was_not_found_is_unsure() -> None:
    one = turns()
    assert not one.is_unsure
    one.step(QUIET_NS + 1)
    assert one.is_unsure


@pytest.mark.parametrize(("is_settled", "hit_ratio"), [(False, LOST), (True, FINE)])
def test_while_it_is_looked_for_or_when_it_fits_the_gpu_is_not(is_settled: bool, hit_ratio: float) -> None:
    one = turns(is_settled=is_settled, hit_ratio=hit_ratio)
    one.step(QUIET_NS + 1)
    assert not one.is_unsure


@pytest.mark.parametrize(("hit_ratio", "is_unsure"), [(POOR_HIT_RATIO - 0.01, True), (POOR_HIT_RATIO, False)])
def test_a_nature_that_another_one_beats_must_be_hit_as_often_as_no_search_would_begin(
    hit_ratio: float, is_unsure: bool
) -> None:
    one = turns(hit_ratio=hit_ratio)
    one.tuner.is_disputed = True
    one.step(QUIET_NS + 1)
    assert one.is_unsure is is_unsure
    one.tuner.is_disputed = False
    one.step(QUIET_NS + 2)
    assert not one.is_unsure


def test_who_forks_on_and_on_cannot_bring_it_about() -> None:
    one = turns()
    for now_ns in range(0, 10 * QUIET_NS, S // 5):
        if now_ns % QUIET_NS == 0:
            one.note_change(now_ns)
        one.step(now_ns)
        assert not one.is_unsure
    one.step(now_ns + QUIET_NS)
    assert one.is_unsure, "when it is quiet, it is the hardware"


def test_who_forks_once_it_is_so_does_not_end_it() -> None:
    one = turns()
    one.step(QUIET_NS + 1)
    for now_ns in range(QUIET_NS + 2, 3 * QUIET_NS, S):
        one.note_change(now_ns)
        one.step(now_ns)
        assert one.is_unsure


def hear(one: ReplayTrust, cgroup_id: int, hits: int, misses: int) -> None:
    """Anchors of a context there."""
    context = Context((cgroup_id, 1), cgroup_id, cgroup_id, 0)
    one.replay.add(context.key, (cgroup_id,))
    one.begin(context, 0)
    for number in range(hits + misses):
        one.hear(context, number % (hits + misses) < hits)


def test_who_alone_misses_cannot_bring_it_about() -> None:
    one = turns()
    hear(one, 100, 40, 2)
    hear(one, 101, 2, 40)
    one.step(QUIET_NS + 1)
    assert not one.is_unsure
    assert one.hit_ratio > FINE
    hear(one, 100, 2, 60)
    one.step(QUIET_NS + 2)
    assert one.is_unsure, "two do"


def test_nor_two_cgroups_of_one_tenant() -> None:
    one = ReplayTrust(Replay(), lambda cgroup_id: cgroup_id // 10)
    one.tuner.is_settled, one.replay.hit_ratio = True, LOST
    hear(one, 100, 40, 2)
    for cgroup_id in (110, 111):
        hear(one, cgroup_id, 2, 40)
    one.step(QUIET_NS + 1)
    assert not one.is_unsure


def test_with_another_nature_anchors_are_judged_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    one = turns()
    hear(one, 100, 40, 2)
    hear(one, 101, 2, 40)
    monkeypatch.setattr(one.tuner, "step", lambda _now_ns: True)
    one.step(QUIET_NS + 1)
    assert one.hit_ratio == one.replay.hit_ratio
    assert one.anchors.without_one({100, 101}) is None


def test_the_clock_does_not_take_over_for_one_who_alone_misses(probe: FakeProbe) -> None:
    account = two_gpus(probe)
    one = account.trust[0]
    one.replay.hit_ratio = LOST
    assert not account.trust[0].is_replay_trusted
    hear(one, 200, 40, 2)
    hear(one, 201, 2, 40)
    one.step(S)
    assert account.trust[0].is_replay_trusted


def test_it_ends_when_anchors_are_hit_again() -> None:
    one = turns()
    one.step(QUIET_NS + 1)
    one.replay.hit_ratio = FINE
    one.step(QUIET_NS + 2)
    assert not one.is_unsure


# ---- evenness ----


def test_a_gpu_on_which_work_costs_another_time_in_company_is_unsure_whatever_the_anchors_say() -> None:
    one = turns(is_settled=False, hit_ratio=1.0)
    make_uneven(one, S)
    one.note_change(S)
    one.step(S)
    assert one.is_unsure
    one.step(S + 61 * S)
    assert not one.is_unsure


def test_with_another_nature_evenness_is_judged_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    one = turns(is_settled=False, hit_ratio=1.0)
    make_uneven(one, S)
    monkeypatch.setattr(one.tuner, "step", lambda _now_ns: True)
    assert one.step(S)
    assert not one.is_unsure
    monkeypatch.setattr(one.tuner, "step", lambda _now_ns: False)
    assert not one.step(2 * S)
    assert not one.is_unsure


def test_a_search_leaves_one_line_for_whoever_debugs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = turns()
    caplog.set_level(logging.DEBUG, turns_module.__name__)
    one.step(S)
    assert caplog.messages == []

    def ends(_now_ns: int) -> bool:
        one.tuner.last = one.tuner.last or "what was found"  # type: ignore[assignment]
        return False

    monkeypatch.setattr(one.tuner, "step", ends)
    one.step(2 * S)
    one.step(3 * S)
    assert caplog.messages == ["turns=searched what was found"]


# ---- in the account ----


@pytest.fixture
def probe() -> FakeProbe:
    return FakeProbe()


def two_gpus(probe: FakeProbe) -> EbpfAccount:
    """A tenant on each, both taught."""
    account = account_of(probe, gpus=2)
    for gpu in (0, 1):
        probe.create(gpu, 11 + gpu, 100 + gpu, gpu=gpu)
        teach(probe, gpu, 0)
    assert sure(account, 2 * S) == {0: Confidence.HIGH, 1: Confidence.HIGH}
    return account


def teach(probe: FakeProbe, slot: int, start_ns: int) -> int:
    """Thirty bursts of ten launches; when they are done."""
    for _ in range(30):
        probe.launch(slot, start_ns, 10)
        start_ns += 20 * MS
        probe.sync(slot, start_ns)
    return start_ns


def sure(account: EbpfAccount, now_ns: int) -> dict[int, Confidence]:
    return {row.gpu: row.confidence for row in account.read(now_ns)}


def test_on_an_unsure_gpu_all_rows_are_low_and_on_the_others_they_are_not(probe: FakeProbe) -> None:
    account = two_gpus(probe)
    probe.create(2, 13, 102, gpu=1)
    teach(probe, 2, 2 * S)
    make_uneven(account.trust[1], 3 * S)
    account.trust[1].step(3 * S)
    assert set(sure(account, 3 * S).values()) == {Confidence.HIGH}, "its neighbours may have something to say"
    account.trust[1].step(3 * S + EXAMINED_NS + 1)
    rows = account.read(3 * S + EXAMINED_NS + 1)
    assert {(row.cgroup_id, row.confidence) for row in rows} == {
        (100, Confidence.HIGH),
        (101, Confidence.LOW),
        (102, Confidence.LOW),
    }
    account.trust[1].step(3 * S + 61 * S)
    assert set(sure(account, 64 * S).values()) == {Confidence.HIGH}


def test_a_settled_gpu_is_accounted_by_the_replay_however_few_anchors_hit(probe: FakeProbe) -> None:
    account = two_gpus(probe)
    account.trust[0].replay.hit_ratio = LOST
    assert [account.trust[gpu].is_replay_trusted for gpu in (0, 1)] == [False, True]
    account.trust[0].tuner.is_settled = True
    assert account.trust[0].is_replay_trusted


def test_contexts_that_come_or_go_are_no_reason_to_be_unsure(probe: FakeProbe) -> None:
    account = two_gpus(probe)
    one = account.trust[0]
    one.tuner.is_settled, one.replay.hit_ratio = True, LOST
    came_ns, went_ns = 20 * S, 25 * S
    probe.create(2, 13, 100, t_ns=came_ns)
    account.read(came_ns)
    one.step(came_ns)
    assert not one.is_unsure
    probe.end(2, went_ns)
    account.read(went_ns)
    one.step(came_ns + QUIET_NS + 1)
    assert not one.is_unsure
    one.step(went_ns + QUIET_NS + 1)
    assert one.is_unsure


def test_bursts_begin_and_end_on_the_tape(probe: FakeProbe) -> None:
    account = two_gpus(probe)
    tape = account.trust[0].replay.tape = Tape([])
    probe.launch(0, 3 * S, 10)
    probe.sync(0, 3 * S + 20 * MS)
    account.read(4 * S)
    assert [(name, rest[1:]) for name, rest in tape.calls if name in ("begin", "burst")] == [
        ("begin", ()),
        ("burst", (10, True)),
    ]


def unequal_bursts(probe: FakeProbe) -> EbpfAccount:
    """On GPU 1, alone and in company; each would have half of it then, has a quarter, and is charged twice its cost."""
    account = two_gpus(probe)
    probe.create(2, 13, 102, gpu=1)
    for number in range(16):
        start = 3 * S + number * 200 * MS
        probe.launch(1, start, 10)
        if number % 2:
            probe.launch(2, start)
        probe.sync(1, start + (80 if number % 2 else 20) * MS)
        probe.sync(2, start + 90 * MS)
    return account


def test_what_bursts_are_charged_is_compared_on_their_gpu(probe: FakeProbe) -> None:
    account = unequal_bursts(probe)
    account.read(7 * S)
    assert account.trust[1].evenness.claims(7 * S)
    assert not account.trust[0].evenness.claims(7 * S)
    probe.end(1, 7 * S)
    account.read(7 * S)
    assert not account.trust[1].evenness._alone


def test_who_seemed_alone_may_not_have_been_when_a_late_context_turns_up(probe: FakeProbe) -> None:
    account = unequal_bursts(probe)
    account.read(7 * S)
    probe.create(3, 14, 100, gpu=1)
    account.read(7 * S)
    assert account.trust[1].evenness.claims(7 * S), "one that is new was not there before"
    account.trust[1].note_change(7 * S, is_late=True)
    assert not account.trust[1].evenness.claims(7 * S)
    assert not account.trust[1].evenness._alone
    one = account.trust[1]
    make_uneven(one, 7 * S + turns_module._SETTLE_NS - 1)
    assert not one.evenness.claims(7 * S + turns_module._SETTLE_NS), "beside drains nobody has seen yet"
    make_uneven(one, 7 * S + turns_module._SETTLE_NS)
    assert one.evenness.claims(7 * S + turns_module._SETTLE_NS)


def test_with_another_nature_what_was_learnt_of_the_work_there_is_learnt_anew(probe: FakeProbe) -> None:
    account = two_gpus(probe)
    for gpu in (0, 1):
        probe.launch(gpu, 3 * S, 10)
    account.read(3 * S)
    account.relearn(0)
    assert sure(account, 3 * S + MS) == {0: Confidence.LOW, 1: Confidence.HIGH}
    probe.sync(0, 3 * S + 20 * MS)  # this burst began under the nature before
    assert sure(account, 3 * S + 30 * MS)[0] is Confidence.LOW
    teach(probe, 0, 4 * S)
    assert sure(account, 5 * S) == {0: Confidence.HIGH, 1: Confidence.HIGH}


def test_nor_is_it_borrowed_from_a_process_that_has_ended(probe: FakeProbe) -> None:
    account = two_gpus(probe)
    account.relearn(0)
    probe.end(0, 3 * S)
    probe.create(2, 13, 100, t_ns=4 * S)
    probe.launch(2, 4 * S)
    assert sure(account, 5 * S)[0] is Confidence.LOW


COMEBACK_NS = abi.COMEBACK_NS


@pytest.mark.parametrize(("pause_ns", "says"), [(COMEBACK_NS, False), (COMEBACK_NS + 1, True)])
def test_who_opens_after_a_long_pause_has_come_back(probe: FakeProbe, pause_ns: int, says: bool) -> None:
    account = account_of(probe)
    probe.create(0, 11, 100)
    probe.launch(0, 0)
    probe.sync(0, 10 * MS)
    account.read(10 * MS)
    probe.launch(0, 10 * MS + pause_ns)
    assert [account.is_comeback(edge) for edge in probe.edges] == [says]


def test_nothing_but_an_open_of_a_known_context_is_a_comeback(probe: FakeProbe) -> None:
    account = account_of(probe)
    probe.create(0, 11, 100)
    probe.launch(0, S)
    probe.sync(0, 2 * S)
    assert not any(account.is_comeback(edge) for edge in probe.edges), "nobody it knows"
    account.read(2 * S)
    probe.launch(0, 10 * S)
    (opened,) = probe.edges
    for kind in abi.EdgeKind:
        assert account.is_comeback(opened._replace(kind=int(kind))) is (kind is abi.EdgeKind.OPEN)
    assert not account.is_comeback(opened._replace(generation=opened.generation + 1))
