# SPDX-License-Identifier: Apache-2.0
"""Drains: what bursts of the neighbours say about them, and the account of whole mixes under the control law."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.accounting.context import Context
from fairsched.accounting.costs import Cost
from fairsched.accounting.drains import SURE, Drains, evidence
from fairsched.accounting.ebpf import EbpfAccount
from fairsched.accounting.launch_time import LaunchTime
from fairsched.accounting.replay import Replay
from fairsched.bpf import abi
from fairsched.model import ReasonCode, TenantSpec
from tests.unit.accounting.closed_loop import ClosedLoop, Steps, decode, mix, with_greedy
from tests.unit.accounting.fake_probe import MS, SLICE_NS, FakeProbe, account_of, used
from tests.unit.policy.model_gpu import Simulation, Tenant
from tests.unit.policy.model_processes import Process


def steady(tau_ms: float = 5.0, spread: float = 0.04) -> LaunchTime:
    launch, rnd = LaunchTime(), random.Random(1)
    for _ in range(60):
        launch.learn(round(tau_ms * MS * rnd.lognormvariate(0, spread)), 1)
    launch.tau_ns = tau_ms * MS
    return launch


# ---- evidence ----


@pytest.mark.parametrize("contexts", [1, 2, 3])
def test_a_burst_that_took_longer_than_it_can_says_that_the_drain_runs(contexts: int) -> None:
    """Of a witness of 5 ms: with m contexts believed and one more running it is charged (m + 1) / m of that."""
    charged = 5 * MS * (contexts + 1) // contexts
    runs, missing = evidence(steady(), 5 * MS, charged, charged * contexts, False, SLICE_NS)
    over, _ = evidence(steady(), 5 * MS, 5 * MS, 5 * MS * contexts, False, SLICE_NS)
    assert runs > 0 > over
    assert missing == pytest.approx(charged / (contexts + 1))


@pytest.mark.parametrize("contexts", [2, 3, 4])
def test_a_burst_that_was_charged_too_little_says_that_the_drain_is_over(contexts: int) -> None:
    """The replay shared its time among m contexts, one of which was done: (m - 1) / m of it are charged."""
    charged = 5 * MS * (contexts - 1) // contexts
    over, missing = evidence(steady(), 5 * MS, charged, charged * contexts, True, SLICE_NS)
    runs, _ = evidence(steady(), 5 * MS, 5 * MS, 5 * MS * contexts, True, SLICE_NS)
    assert runs > 0 > over
    assert missing == pytest.approx(charged / (contexts - 1))


@given(
    spent_ms=st.floats(0.1, 50), wall=st.floats(1, 20), spreads=st.tuples(st.floats(0, 1), st.floats(0, 1))
)
def test_a_jittery_witness_says_less(spent_ms: float, wall: float, spreads: tuple[float, float]) -> None:
    spent = round(spent_ms * MS)
    calm, jittery = (
        evidence(steady(spread=spread), 5 * MS, spent, round(spent * wall), True, SLICE_NS)[0]
        for spread in sorted(spreads)
    )
    assert abs(jittery) <= abs(calm) * 1.5 + 1e-6  # the spread is itself an estimate


def test_one_burst_of_a_steady_witness_beside_one_other_decides() -> None:
    told, _ = evidence(steady(), 5 * MS, 10 * MS, 10 * MS, False, SLICE_NS)
    assert told > SURE


# ---- turns that others had ----


def test_a_drain_is_over_when_others_had_its_turn_three_times() -> None:
    """Once may be somebody who was woken late."""
    replay, context, live = Replay(), Context((1, 1), 10, 5, 0), abi.Ctx(submitted=10)
    ended: list[tuple[int, ...]] = []
    drains = Drains(replay, lambda *_: (900 * MS, 90 * MS), lambda *told: not ended.append(told))
    replay.add(context.key, (1,))
    replay.open(context.key, 0)
    drains.begin(context, MS)
    drains.estimate(context, live, MS)
    for number in range(3):
        assert replay.is_runnable(context.key), number
        drains.passed(context, (number + 2) * MS)
    assert not replay.is_runnable(context.key)
    assert not context.is_open and ended == [(1, 1, 0)]
    drains.passed(context, 9 * MS)
    assert len(ended) == 1


# ---- one hold ----


class Kernels(Steps):
    """One kernel after the other, of these lengths; the last for ever."""

    def __init__(self, *lengths_ms: int) -> None:
        super().__init__(1, 0, 0.0, MS)
        self.lengths_ns = [length * MS for length in lengths_ms]

    def on_start(self, sim: Simulation) -> None:
        self.kernel_ns = self.lengths_ns.pop(0) if len(self.lengths_ns) > 1 else self.lengths_ns[0]
        super().on_start(sim)


TAUGHT = (100,) * 6
"""Kernels of 100 ms, after which that is what is expected."""


def _held(last_ms: int, hold_ms: int, *, beside: Process | None = None) -> tuple[ClosedLoop, int]:
    """A tenant is held 20 ms after it launched a kernel of ``last_ms``; how wrong that makes its account, in ns."""
    loop: Kernels = Kernels(*TAUGHT, last_ms, 1)
    loop.start_ns = (
        1500 * MS
    )  # until then whoever is beside it is alone, and the replay is right about that one
    tenants = [Tenant(TenantSpec("long"), [loop])]
    if beside is not None:
        tenants.append(Tenant(TenantSpec("chat"), [beside]))
    sim = ClosedLoop(tenants, is_enforced=False)
    errors_ns: list[int] = []

    def mark() -> None:
        sim.snapshot_now()
        errors_ns.append(sim.billed["long"] - sim.delivered["long", "gpu0"])

    def look_for_it() -> None:
        if len(loop.lengths_ns) > 1:
            sim.at(sim.now + MS, look_for_it)
            return
        thaw_ns = sim.now + (20 + hold_ms) * MS
        sim.at(sim.now + 20 * MS, mark)
        sim.at(sim.now + 20 * MS, lambda: sim._hold("long", 0, ReasonCode.OVER_ENTITLEMENT))
        sim.at(thaw_ns, lambda: sim._thaw("long", ReasonCode.CAUGHT_UP))
        sim.at(thaw_ns + max(60, 2 * last_ms - hold_ms) * MS, mark)

    sim.at(MS, look_for_it)
    sim.run(6000 * MS)
    before_ns, after_ns = errors_ns
    return sim, after_ns - before_ns


@pytest.mark.parametrize("last_ms", [30, 60, 100, 200, 300])
def test_neighbours_tell_how_long_a_drain_really_was(last_ms: int) -> None:
    """The estimate alone would be wrong by up to 200 ms."""
    _, error_ns = _held(last_ms, 800, beside=decode())
    assert abs(error_ns) <= 12 * MS


@pytest.mark.parametrize("hold_ms", [150, 300])
def test_who_says_nothing_after_a_thaw_is_still_waiting(hold_ms: int) -> None:
    """Alone on the GPU nobody else can tell that it ran on while it was held."""
    _, error_ns = _held(500, hold_ms)
    assert abs(error_ns) <= 20 * MS


# ---- whole mixes under the control law ----


@pytest.mark.parametrize("is_enforced", [False, True], ids=["observed", "enforced"])
@pytest.mark.parametrize(
    ("kinds", "bound"),
    [
        ("decode+longkernel", 0.02),
        ("decode+trainer*3", 0.02),
        ("decode+prefill+trainer", 0.015),
        ("burst+graph+trainer", 0.02),
        ("decode+trainer+poll", 0.02),
    ],
)
def test_the_account_of_a_mix(kinds: str, bound: float, is_enforced: bool) -> None:
    for seed in (1, 2):
        errors = mix(*kinds.split("+"), is_enforced=is_enforced, seed=seed).errors(3000 * MS, 13_000 * MS)
        assert max(map(abs, errors.values())) <= bound, (seed, errors)


def test_an_estimate_that_nobody_contradicted_is_no_measurement() -> None:
    """Taken for one, it makes itself ever surer: tenants that are nearly always held were charged 5 % too little."""
    for seed in (1, 2):
        errors = with_greedy(seed).errors(3000 * MS, 18_000 * MS)
        assert max(map(abs, errors.values())) <= 0.015, (seed, errors)


def test_a_crowd_does_not_spoil_the_account_of_those_that_are_not_held() -> None:
    """Eight contexts, most of them held most of the time, some for kernels of 100 ms that vary by 40 %."""
    sim = mix("decode", "graph", "prefill", "burst", "trainer*3", "longkernel")
    errors = sim.errors(3000 * MS, 23_000 * MS)
    assert max(abs(errors["decode"]), abs(errors["graph"])) <= 0.04, errors
    assert max(map(abs, errors.values())) <= 0.2, errors


# ---- programs that poll ----


@pytest.mark.parametrize("pause_us", [300, 500, 700])
def test_a_polling_neighbour_costs_little_where_its_pause_is_like_that_of_others(pause_us: int) -> None:
    chat = Steps(20, 250_000, 0.2, pause_us * 1000)
    polls = Steps(20, 250_000, 0.2, pause_us * 1000, is_seen=False)
    tenants = [Tenant(TenantSpec("chat"), [chat]), Tenant(TenantSpec("polls"), [polls])]
    errors = ClosedLoop(tenants, is_enforced=False).errors(2000 * MS, 7000 * MS)
    assert abs(errors["chat"]) <= 0.02


def test_a_wrong_guess_of_the_pause_is_bounded_by_the_pause() -> None:
    chat = Steps(20, 250_000, 0.2, 500_000)
    polls = Steps(20, 250_000, 0.2, 1000_000, is_seen=False)
    tenants = [Tenant(TenantSpec("chat"), [chat]), Tenant(TenantSpec("polls"), [polls])]
    errors = ClosedLoop(tenants, is_enforced=False).errors(2000 * MS, 7000 * MS)
    assert -0.13 <= errors["chat"] <= 0.0


def test_a_neighbour_whom_the_replay_charges_wrongly_is_no_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(Drains, "witnessed", lambda *_: asked.append(1) or (0, True))
    mix("decode", "trainer", seed=1).run(3000 * MS)
    assert asked
    asked.clear()
    monkeypatch.setattr(Cost, "is_confirmed", lambda *_: False)
    mix("decode", "trainer", seed=1).run(3000 * MS)
    assert not asked


# ---- edge by edge ----

LONG, CHAT = 100, 101


@pytest.fixture
def probe() -> FakeProbe:
    return FakeProbe()


def two(probe: FakeProbe) -> tuple[EbpfAccount, int]:
    """Two contexts that take 20 ms for ten launches, and were seen to."""
    account = account_of(probe)
    now = 0
    for slot, cgroup_id in ((0, LONG), (1, CHAT)):
        probe.create(slot, 11 + slot, cgroup_id)
        for _ in range(6):
            probe.launch(slot, now, 10)
            probe.sync(slot, now + 20 * MS)
            now += 21 * MS
    account.read(now)
    return account, now


def context_of(account: EbpfAccount, slot: int) -> Context:
    return next(context for context in account._contexts.all() if context.key[0] == slot)


def test_when_a_drain_is_taken_to_end_does_not_depend_on_when_it_is_read(probe: FakeProbe) -> None:
    account, now = two(probe)
    probe.launch(0, now, 10)
    account.read(now)
    account.hold([LONG], now)
    probe.launch(1, now + 50 * MS, 10)
    probe.sync(1, now + 70 * MS)
    account.read(now + 100 * MS)
    assert context_of(account, 0).believed_ns == pytest.approx(now + 20 * MS, abs=MS)


def test_what_is_seen_after_a_drain_counts_after_its_end(
    probe: FakeProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the estimate and a burst that says that it runs on, in one read."""
    monkeypatch.setattr(Cost, "is_confirmed", lambda *_: True)
    account, now = two(probe)
    probe.launch(0, now, 10)
    account.read(now)
    account.hold([LONG], now)
    probe.launch(1, now + 50 * MS, 10)
    probe.sync(1, now + 90 * MS)
    account.read(now + 90 * MS)
    held = context_of(account, 0)
    assert held.is_open
    assert held.drain_odds == SURE
    assert account.idle_gpus() == set()


@pytest.mark.parametrize("is_judged", [False, True])
def test_a_drain_may_run_until_an_even_share_of_the_time_was_enough_whatever_neighbours_say(
    probe: FakeProbe, is_judged: bool
) -> None:
    """20 ms are expected; beside one that works all the time as much as 40 may go by, and then some for the doubt."""
    account, now = two(probe)
    drains = account._engines[0].drains
    probe.launch(0, now, 10)
    account.read(now)
    account.hold([LONG], now)
    probe.launch(1, now, 1000)
    account.read(now)
    held = context_of(account, 0)
    if is_judged:
        drains._finish(held, True, now + 5 * MS)
    for after_ms, may_run in ((10, True), (39, True), (150, False)):
        account.read(now + after_ms * MS)
        assert drains.may_run(held, now + after_ms * MS) is may_run, after_ms
    account.thaw([LONG], now + 150 * MS)
    assert not drains.may_run(held, now + 151 * MS), "what it has it will say itself"


def test_of_whom_nothing_is_known_what_it_had_queued_may_run_while_it_is_held(probe: FakeProbe) -> None:
    """Taken to be gone, it made what its neighbours cost beside it what they cost alone."""
    account = account_of(probe)
    probe.create(0, 11, LONG)
    probe.launch(0, 0, 10)
    account.read(5 * MS)
    account.hold([LONG], 5 * MS)
    drains, held = account._engines[0].drains, context_of(account, 0)
    for at_ms in (10, 2000):
        account.read(at_ms * MS)
        assert drains.may_run(held, at_ms * MS), at_ms
    account.thaw([LONG], 2001 * MS)
    assert not drains.may_run(held, 2002 * MS)


def test_a_drain_that_outlived_its_estimate_ends_with_the_call_that_waited(probe: FakeProbe) -> None:
    """BPF was told that it was over, so its edge says progress, not close."""
    account, now = two(probe)
    probe.launch(0, now, 10)
    account.read(now)
    account.hold([LONG], now)
    total = used(account.read(now + 30 * MS))[LONG]
    account.thaw([LONG], now + 31 * MS)
    total += used(account.read(now + 60 * MS))[LONG]  # it does not say anything: it waits
    probe.sync(0, now + 80 * MS)
    total += sum(used(account.read(now + t * MS))[LONG] for t in (80, 500))
    assert total == pytest.approx(80 * MS, abs=MS)
    assert account.idle_gpus() == {0}


def test_progress_of_a_deep_queue_after_the_thaw_ends_the_doubt(probe: FakeProbe) -> None:
    account, now = two(probe)
    probe.launch(0, now, 20)
    account.read(now)
    account.hold([LONG], now)
    assert context_of(account, 0).is_open
    account.thaw([LONG], now + 10 * MS)
    probe.progress(0, now + 20 * MS, 70)
    account.read(now + 21 * MS)
    assert not context_of(account, 0).is_open


def test_a_held_context_that_ends_is_forgotten(probe: FakeProbe) -> None:
    account, now = two(probe)
    probe.launch(0, now, 10)
    account.read(now)
    account.hold([LONG], now)
    probe.end(0, now + MS)
    account.read(now + MS)
    probe.launch(1, now + MS, 10)
    probe.sync(1, now + 21 * MS)
    assert used(account.read(now + 22 * MS))[CHAT] == pytest.approx(20 * MS, rel=0.05)
    account.thaw([LONG], now + 30 * MS)
