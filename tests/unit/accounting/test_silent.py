# SPDX-License-Identifier: Apache-2.0
"""When the account of a context that never asks is more than a bound, when it is not, and both in the closed loop."""

from __future__ import annotations

import pytest

from fairsched.accounting.context import Context
from fairsched.accounting.replay import Replay
from fairsched.accounting.silent import UNSYNCED_NS, Silence
from fairsched.bpf import abi
from fairsched.model import QUEUE_LAUNCHES, Confidence, Snapshot, TenantSpec
from tests.unit.accounting.closed_loop import MS, ClosedLoop, Flood, Process, Steps
from tests.unit.accounting.fake_probe import FakeProbe, account_of
from tests.unit.policy.model_gpu import Tenant

S = 1000 * MS
KERNEL_NS = MS // 2
OWN, OTHER = 100, 200
WINDOWS = 8
ANCHORS = 20
"""Enough of both."""


class Bench:
    """A silent context with 256 launches in each 128 ms and 768 queued, and a witness, both always with work."""

    def __init__(self, queued: int = 768) -> None:
        self.replay = Replay()
        self.silence = Silence(self.replay)
        self.live = abi.Ctx(submitted=0, synced=0, last_call_ns=0)
        self.context = Context((0, 1), 11, OWN, 0)
        self.witness = Context((1, 1), 12, OTHER, 0)
        for rank, one in enumerate((self.context, self.witness)):
            self.replay.add(one.key, (rank,))
            self.replay.open(one.key, 0)
        self.now = 0
        self.look(UNSYNCED_NS + MS)
        self.live.submitted = queued + round(self.replay.exec_ns(self.context.key) / KERNEL_NS)
        self.look()
        self.look(10 * MS)

    def look(self, after_ns: int = 0, *, is_sampled: bool = False) -> bool | None:
        """It has launched all the while."""
        self.now += after_ns
        self.live.last_call_ns = self.now
        self.replay.advance(self.now)
        return self.silence.poll(self.context, self.live, self.now, is_sampled=is_sampled)

    def windows(self, count: int = WINDOWS, launches: int = 256) -> Bench:
        """It returns from a pause, so many times, having launched what was done meanwhile."""
        for _ in range(count):
            before_ns = self.replay.exec_ns(self.context.key)
            while self.replay.exec_ns(self.context.key) - before_ns < launches * KERNEL_NS:
                self.look(MS)
            self.silence.measure(self.context, self.live.submitted, self.now)
            self.live.submitted += launches
        return self

    def anchors(self, count: int = ANCHORS, is_hit: bool | None = True) -> Bench:
        """Bursts of the witness that began just now ended."""
        for _ in range(count):
            self.witness.seq_ns = self.now
            self.silence.hear(self.witness, is_hit)
        return self

    @property
    def is_borne_out(self) -> bool | None:
        return self.look()


def borne_out() -> Bench:
    bench = Bench().windows().anchors()
    assert bench.is_borne_out
    return bench


def test_until_it_has_launched_for_a_second_it_is_not_silent() -> None:
    bench = Bench()
    fresh = Context((2, 1), 13, OWN, 0)
    live = abi.Ctx(submitted=5, last_call_ns=UNSYNCED_NS)
    bench.replay.add(fresh.key, (2,))
    bench.replay.open(fresh.key, bench.now)
    assert bench.silence.poll(fresh, live, UNSYNCED_NS) is None
    live.last_call_ns += 1
    assert bench.silence.poll(fresh, live, UNSYNCED_NS + 1) is False


def test_a_burst_whose_edge_was_not_read_yet_is_no_silence() -> None:
    bench = Bench()
    back = Context((2, 1), 13, OWN, 0, seq=5)
    bench.replay.add(back.key, (2,))
    live = abi.Ctx(submitted=25, last_call_ns=5 * UNSYNCED_NS)
    assert bench.silence.poll(back, live, 5 * UNSYNCED_NS) is None
    back.seq_ns = 5 * UNSYNCED_NS
    bench.replay.open(back.key, bench.now)
    assert bench.silence.poll(back, live, 5 * UNSYNCED_NS) is None


def test_its_account_is_a_bound_until_neighbours_bear_it_out() -> None:
    bench = Bench().windows()
    assert bench.is_borne_out is False
    assert bench.anchors(13).is_borne_out is False
    assert bench.anchors(1).is_borne_out is True


def test_what_a_launch_takes_is_known_then_and_what_is_queued() -> None:
    bench = borne_out()
    launch = bench.silence.launch_of(bench.context)
    assert launch is not None
    assert launch.tau_ns == pytest.approx(KERNEL_NS, rel=0.02)
    spent_ns = bench.replay.exec_ns(bench.context.key) - bench.context.seq_exec_ns
    left_ns, _ = launch.remaining(bench.live.submitted - bench.context.seq, spent_ns)
    assert left_ns == pytest.approx(768 * KERNEL_NS, rel=0.1)


def test_samples_bear_it_out_where_no_neighbour_can() -> None:
    """Beside one that is always held no anchor is judged."""
    bench = Bench().windows(1)
    assert bench.look(is_sampled=True) is False, "what a launch takes is not known yet"
    bench.windows(1)
    assert bench.silence.launch_of(bench.context) is None
    assert bench.look(is_sampled=True) is True, "later it may be held, and then nothing is measured"
    assert bench.silence.launch_of(bench.context) is not None


def test_how_much_is_queued_can_be_told_before_anybody_bears_it_out() -> None:
    bench = Bench().windows()
    guess = bench.silence.guess_of(bench.context)
    assert guess is not None
    bench.look(is_sampled=True)
    assert bench.silence.launch_of(bench.context) is guess


def test_one_whose_queue_runs_empty_is_not_borne_out_whatever_the_anchors_say() -> None:
    assert Bench(queued=0).windows().anchors(100).is_borne_out is False


def test_one_that_was_hardly_measured_is_not() -> None:
    assert Bench().windows(3).anchors(100).is_borne_out is False


def test_nor_one_beside_which_anchors_miss_as_often_as_by_chance() -> None:
    bench = Bench().windows()
    for _ in range(200):
        bench.anchors(4).anchors(1, is_hit=False)
        assert bench.is_borne_out is False


def test_as_much_against_it_as_for_it_ends_it_and_one_miss_does_not() -> None:
    bench = borne_out().anchors(2, is_hit=False)
    assert bench.is_borne_out
    assert bench.anchors(1, is_hit=False).is_borne_out is False
    assert bench.silence.launch_of(bench.context) is None
    assert bench.anchors(3).is_borne_out is False, "it takes as much as at first"


def test_an_anchor_that_judged_nobody_says_nothing() -> None:
    assert Bench().windows().anchors(100, is_hit=None).is_borne_out is False


def test_nobody_is_a_witness_of_its_own_cgroup() -> None:
    bench = Bench().windows()
    bench.witness.cgroup_id = OWN
    assert bench.anchors().is_borne_out is False
    bench = borne_out()
    bench.witness.cgroup_id = OWN
    assert bench.anchors(is_hit=False).is_borne_out, "nor against it"


def test_a_burst_that_began_before_its_company_says_nothing() -> None:
    bench = Bench().windows()
    for _ in range(ANCHORS):
        bench.witness.seq_ns = MS  # it was not silent then
        bench.silence.hear(bench.witness, True)
    assert bench.is_borne_out is False


def test_while_it_is_held_nothing_is_measured_and_nobody_heard() -> None:
    bench = Bench().windows()
    bench.context.is_held = True
    before = (bench.context.seq, bench.context.seq_exec_ns)
    bench.now += 9 * MS
    bench.replay.advance(bench.now)
    bench.silence.measure(bench.context, bench.live.submitted + 9, bench.now)
    bench.look(MS)
    assert (bench.context.seq, bench.context.seq_exec_ns) == before
    assert bench.anchors().is_borne_out is False
    bench.context.is_held = False
    bench.look(MS)
    assert bench.anchors().is_borne_out is True


def test_a_proof_ends_its_silence() -> None:
    bench = borne_out()
    bench.live.synced += 1
    bench.context.proven_ns = bench.now
    assert bench.is_borne_out is None
    assert bench.silence.launch_of(bench.context) is None


def test_of_one_that_is_gone_nothing_is_kept() -> None:
    bench = borne_out()
    bench.silence.forget(bench.context.key)
    assert bench.silence.launch_of(bench.context) is None
    bench.silence.forget(bench.context.key)


def test_nor_in_the_account() -> None:
    probe = FakeProbe()
    account = account_of(probe)
    probe.create(0, 11, OWN)
    for t_ns in (0, UNSYNCED_NS + MS):
        probe.launch(0, t_ns)
    account.read(UNSYNCED_NS + MS)
    assert account._engines[0].silence._silent
    probe.end(0, UNSYNCED_NS + 2 * MS)
    account.read(UNSYNCED_NS + 2 * MS)
    assert not account._engines[0].silence._silent


def test_what_is_measured_of_one_is_what_launches_of_the_others_take_that_are_not_measured_yet() -> None:
    """They are held with it, and then nobody is."""
    probe = FakeProbe()
    account = account_of(probe)
    for slot in (0, 1):
        probe.create(slot, 11 + slot, OWN)
    account.borne_out = {(11, 0)}
    for t_ns in range(0, 12 * S, 100 * MS):
        for slot in (0, 1):
            probe.launch(slot, t_ns, 100)
        account.read(t_ns)
    _, other = account._contexts.of([OWN])
    assert other.launch.samples == 1, "it is another's"
    assert other.launch.tau_ns == pytest.approx(KERNEL_NS, rel=0.05)


def test_where_no_pause_is_seen_it_is_measured_every_two_seconds() -> None:
    bench = Bench()
    for _ in range(120):
        before_ns = bench.replay.exec_ns(bench.context.key)
        bench.look(100 * MS)
        done_ns = bench.replay.exec_ns(bench.context.key) - before_ns
        bench.live.submitted += round(done_ns / KERNEL_NS)
    bench.anchors()
    assert bench.is_borne_out
    launch = bench.silence.launch_of(bench.context)
    assert launch is not None
    assert launch.tau_ns == pytest.approx(KERNEL_NS, rel=0.05)


def test_pauses_further_apart_than_that_are_measured_all_the_same() -> None:
    """Kernels of 5 ms among three: a quarter of the queue is free after four seconds."""
    bench = Bench().windows(3, launches=2040)
    assert bench.silence.launch_of(bench.context) is None
    assert bench.look(is_sampled=True) is True
    launch = bench.silence.launch_of(bench.context)
    assert launch is not None and launch.tau_ns == pytest.approx(KERNEL_NS, rel=0.01)


def test_who_launched_twice_what_a_queue_holds_does_not_pause_any_more() -> None:
    bench = Bench().windows(1)
    for _ in range(2):
        bench.live.submitted += QUEUE_LAUNCHES
        bench.look(2100 * MS)
    assert not bench.look(is_sampled=True)
    bench.live.submitted += 1000
    bench.look(2100 * MS)
    assert bench.look(2100 * MS, is_sampled=True)


def test_the_pause_in_which_it_was_held_is_none() -> None:
    """What it had queued is done by then: its queue is filled anew before it pauses again."""
    bench = Bench().windows()
    bench.look(is_sampled=True)
    bench.context.is_held = True
    bench.look(MS)
    bench.context.is_held = False
    bench.silence.measure(bench.context, bench.live.submitted, bench.now)
    bench.live.submitted += 1024
    bench.windows(2)
    launch = bench.silence.launch_of(bench.context)
    assert launch is not None and launch.tau_ns == pytest.approx(KERNEL_NS, rel=0.02)


# ---- the closed loop ----


class Watched(ClosedLoop):
    """Remembers what was said of each tenant's account."""

    def snapshot(self) -> Snapshot:
        seen = super().snapshot()
        for use in seen.uses:
            self.said.setdefault(use.tenant, []).append((self.now, use.confidence))
        return seen

    said: dict[str, list[tuple[int, Confidence]]]
    early_ns: dict[tuple[str, str], int]
    """Delivered until 20 s."""

    def late_share(self, name: str) -> float:
        """Since then: what it had queued before it was first held has run."""
        late = {key: ns - self.early_ns[key] for key, ns in self.delivered.items()}
        return late[name, "gpu0"] / sum(late.values())

    def high_ratio(self, name: str, since_ns: int) -> float:
        late = [confidence for t_ns, confidence in self.said[name] if t_ns >= since_ns]
        return late.count(Confidence.HIGH) / len(late)


def beside_two(*silent: Process, is_enforced: bool = True) -> Watched:
    decoders = [Tenant(TenantSpec(name), [Steps(20, KERNEL_NS, 0.1, MS // 2)]) for name in ("chat", "search")]
    sim = Watched([*decoders, Tenant(TenantSpec("silent"), [*silent])], is_enforced=is_enforced, seed=1)
    sim.said = {}
    sim.at(20 * S, lambda: setattr(sim, "early_ns", dict(sim.delivered)))
    return sim


def share(sim: ClosedLoop, name: str) -> float:
    return sim.delivered[name, "gpu0"] / sum(sim.delivered.values())


def test_four_that_flood_the_gpu_are_held_and_charged_what_they_take() -> None:
    free = beside_two(*(Flood(KERNEL_NS) for _ in range(4)), is_enforced=False)
    free.run(20 * S)
    assert share(free, "silent") > 0.65
    sim = beside_two(*(Flood(KERNEL_NS) for _ in range(4)))
    errors = sim.errors(20 * S, 40 * S)
    assert max(map(abs, errors.values())) < 0.02
    assert sim.late_share("silent") < 0.35
    assert sim.high_ratio("silent", 10 * S) > 0.95


def test_one_that_floods_it_gets_what_it_is_due() -> None:
    sim = beside_two(Flood(KERNEL_NS))
    errors = sim.errors(10 * S, 40 * S)
    assert share(sim, "silent") < 0.345
    assert max(map(abs, errors.values())) < 0.02


@pytest.mark.parametrize(
    "innocent",
    [
        Steps(8, KERNEL_NS, 0.1, 8 * MS, is_seen=False),
        Steps(20, KERNEL_NS, 0.1, MS // 2, is_seen=False),
        Flood(KERNEL_NS, on_ns=600 * MS, off_ns=1200 * MS),
    ],
    ids=["frames", "polls", "rests"],
)
def test_one_that_is_idle_at_times_is_never_held(innocent: Process) -> None:
    sim = beside_two(innocent)
    sim.run(30 * S)
    assert not [record for record in sim.records if record.tenant == "silent"]
    assert sim.high_ratio("silent", 0) == 0
