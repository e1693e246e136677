# SPDX-License-Identifier: Apache-2.0
"""How turns are taken, found out in the closed loop of account and policy; or nobody is sure and nobody held."""

from __future__ import annotations

import pytest

from fairsched.model import Confidence, Snapshot, TenantSpec
from tests.unit.accounting.closed_loop import KINDS, MS, ClosedLoop
from tests.unit.policy import model_gpu
from tests.unit.policy.model_gpu import Tenant

S = 1000 * MS


class Tuned(ClosedLoop):
    """As the daemon does it: five times a second the account may look for another nature."""

    next_ns = 0
    learnt_ns: int | None = None
    unsure_ns: int | None = None

    def snapshot(self) -> Snapshot:
        seen = super().snapshot()
        if self.now >= self.next_ns:
            self.next_ns = self.now + S // 5
            for gpu, one in self.account.trust.items():
                if one.step(self.now):
                    self.account.relearn(gpu)
                    self.learnt_ns = self.now
                if one.is_unsure and self.unsure_ns is None:
                    self.unsure_ns = self.now
        return seen


class Unequal(Tuned):
    """Turns of the tenant ``greedy`` are three times as long."""

    def _next(self, name: str) -> None:
        super()._next(name)
        gpu = self.gpus[name]
        process = gpu.running
        is_new = process is not None and gpu.slice_left_ns == model_gpu.SLICE_NS
        if process is None or not is_new or self.owner[process].name != "greedy":
            return
        gpu.slice_left_ns = 3 * model_gpu.SLICE_NS
        gpu.chunk_ns = min(gpu.slice_left_ns, process.queue[0])
        gpu.serial += 1
        serial = gpu.serial
        self.at(gpu.chunk_start_ns + gpu.chunk_ns, lambda: self._chunk_done(name, serial))


def tenants(**kinds: str) -> list[Tenant]:
    """Of weights n ... 1."""
    weights = range(len(kinds), 0, -1)
    return [
        Tenant(TenantSpec(name, weight=weight), [KINDS[kind]()])
        for weight, (name, kind) in zip(weights, kinds.items(), strict=True)
    ]


def take_turns(monkeypatch: pytest.MonkeyPatch, slice_ns: int, switch_ns: int) -> None:
    monkeypatch.setattr(model_gpu, "SLICE_NS", slice_ns)
    monkeypatch.setattr(model_gpu, "SWITCH_NS", switch_ns)


def test_under_holds_the_account_finds_out_how_turns_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    take_turns(monkeypatch, MS, 100_000)
    sim = Tuned(tenants(a="decode", b="graph", c="trainer"), seed=1)
    errors = sim.errors(20 * S, 30 * S)
    assert sim.learnt_ns is not None
    assert sim.account.trust[0].replay.slice_ns == MS
    assert max(map(abs, errors.values())) < 0.02
    assert sim.unsure_ns is None


@pytest.mark.parametrize("seed", range(1, 9))
def test_under_holds_a_small_difference_is_found_out_too(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Only the cost of switching is another, so anchors hardly miss more often: it shows in what launches cost."""
    take_turns(monkeypatch, 2 * MS, 0)
    sim = Tuned(tenants(a="decode", b="graph", c="trainer"), seed=seed)
    errors = sim.errors(20 * S, 30 * S)
    replay = sim.account.trust[0].replay
    assert (replay.slice_ns, replay.switch_ns) == (2 * MS, 0)
    assert max(map(abs, errors.values())) < 0.05


def test_where_turns_are_unequal_nobody_is_sure_and_nobody_held() -> None:
    sim = Unequal(tenants(chat="decode", greedy="trainer"), seed=1)
    sim.run(20 * S)
    assert sim.unsure_ns is not None
    assert {use.confidence for use in sim.snapshot().uses} == {Confidence.LOW}
    # While another nature is tried, for a moment; at the first objection for as long as it is examined.
    assert sim.unsure_ns < 6 * S
    assert not [record for record in sim.records if record.since_ns > 10 * S]


def test_where_turns_are_as_assumed_everybody_is_sure_all_the_time() -> None:
    sim = Tuned(tenants(chat="decode", greedy="trainer", graph="graph"), seed=1)
    sim.run(20 * S)
    assert (sim.unsure_ns, sim.learnt_ns) == (None, None)
