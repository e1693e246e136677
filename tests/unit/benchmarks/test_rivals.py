# SPDX-License-Identifier: Apache-2.0
"""The laws of the rivals and what they are told; no GPU and no root. How they hold is in test_rivals_hands.py."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.rivals import nvml_feedback
from benchmarks.rivals.base import Action, RivalError, Tenant, next_tick_ns, parse_setup, read_setup
from benchmarks.rivals.exclusive_token import IDLE_NS, QUANTUM_NS, SHORTEST_QUANTUM_NS, TICK_NS, TokenLaw
from benchmarks.rivals.nvml_feedback import PERIOD_NS, FeedbackLaw, UtilisationMeter, next_duty_ratio
from benchmarks.rivals.truth import TruthMeter, Use, Uses
from benchmarks.rivals.window_sigstop import SCAN_NS, WINDOW_NS, WindowLaw
from fairsched.cgroup.path import Mount
from fairsched.gpu.sampler import Sample
from fairsched.simgpu.reader import ContextTruth

MS = 1_000_000
START_NS = 5_000 * MS


def tenant(leaf: str, weight_ratio: float = 0.5, **other: object) -> Tenant:
    given = {"cgroup": f"/sys/fs/cgroup/{leaf}", "owner": 1, "quota_ratio": None, "gpus": (0,), **other}
    return Tenant(leaf=leaf, weight_ratio=weight_ratio, **given)  # type: ignore[arg-type]


def uses(**exec_ms: float) -> Uses:
    """On GPU 0; a tenant runs whenever it is runnable."""
    return {(leaf, 0): Use(round(ms * MS), round(ms * MS)) for leaf, ms in exec_ms.items()}


# ---- the setup ----


def document(**changes: object) -> dict[str, object]:
    one = {
        "leaf": "team/chat",
        "cgroup": "/sys/fs/cgroup/x",
        "owner": 3,
        "weight_ratio": 0.25,
        "quota_ratio": None,
        "gpus": [0],
    }
    return {"sim_dir": "/run/sim", "held_log": "/tmp/held", "tenants": [{**one, **changes}]}


def test_the_setup_is_an_object_or_a_file_with_it(tmp_path: Path):
    text = json.dumps(document(quota_ratio=0.3))
    file = tmp_path / "setup.json"
    file.write_text(text)
    setup = read_setup(text)
    assert setup == read_setup(str(file))
    assert setup.tenants[0].limit_ratio == 0.3
    assert parse_setup(json.dumps(document())).tenants[0].limit_ratio == 0.25


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"weight_ratio": 1.5}, "tenants.0.weight_ratio"),
        ({"weight_ratio": None}, "tenants.0.weight_ratio"),
        ({"quota_ratio": "half"}, "tenants.0.quota_ratio"),
        ({"owner": 0}, "tenants.0.owner"),
        ({"cgroup": "x"}, "tenants.0.cgroup"),
        ({"gpus": []}, "tenants.0.gpus"),
        ({"weigth": 1}, "tenants.0: weigth is not known"),
    ],
)
def test_a_wrong_setup_names_the_key(changes: dict[str, object], named: str):
    with pytest.raises(RivalError, match=named):
        parse_setup(json.dumps(document(**changes)))


def test_two_tenants_with_one_tag_are_refused():
    twice = document()
    twice["tenants"] = [{**one, "leaf": leaf} for one in twice["tenants"] for leaf in "ab"]  # type: ignore
    with pytest.raises(RivalError, match="the same owner"):
        parse_setup(json.dumps(twice))


def test_ticks_that_were_missed_are_not_made_up_for():
    assert [next_tick_ns(100, 10, now_ns) for now_ns in (100, 109, 147)] == [110, 110, 150]


# ---- window-sigstop ----


def test_a_tenant_over_its_limit_is_held_until_the_window_turns():
    law = WindowLaw([tenant("a", 0.3), tenant("b", 0.7)], START_NS)
    assert law.step(START_NS, uses(a=1000, b=0)) == []  # what was before does not count
    assert law.next_ns == START_NS + SCAN_NS
    assert law.step(START_NS + 6 * SCAN_NS, uses(a=1300, b=300)) == []
    assert law.step(START_NS + 7 * SCAN_NS, uses(a=1301, b=399)) == [Action("a", True)]
    # again at each scan: it may have forked, or continued itself
    assert law.step(START_NS + 8 * SCAN_NS, uses(a=1301, b=499)) == [Action("a", True)]
    assert law.step(START_NS + WINDOW_NS, uses(a=1301, b=699)) == [Action("a", False)]
    assert law.step(START_NS + WINDOW_NS + SCAN_NS, uses(a=1401, b=699)) == []


def test_a_quota_goes_before_the_weight_and_each_gpu_counts_by_itself():
    both = tenant("a", 0.9, quota_ratio=0.3, gpus=(0, 1))
    law = WindowLaw([both], START_NS)

    def on(first_ms: int, second_ms: int) -> Uses:
        return {("a", 0): Use(first_ms * MS, 0), ("a", 1): Use(second_ms * MS, 0)}

    law.step(START_NS, on(0, 0))
    assert law.step(START_NS + SCAN_NS, on(290, 290)) == []
    assert law.step(START_NS + 2 * SCAN_NS, on(290, 301)) == [Action("a", True)]


# ---- token ----


class Bench:
    """Plays the token law against tenants that run when they may, and drain a little when held."""

    def __init__(self, *tenants: Tenant, drain_ms: float = 0.0) -> None:
        self.law = TokenLaw(tenants, START_NS)
        self.now_ns = START_NS
        self.tenants = {one.leaf: one for one in tenants}
        self.used_ns = {(one.leaf, gpu): 0 for one in tenants for gpu in one.gpus}
        self.working = set(self.tenants)
        self.held: set[str] = set()
        self.left_ns: dict[str, float] = {}
        self.drain_ns = drain_ms * MS
        self.quanta_ns: list[tuple[str, int]] = []
        """Who was given the token for how long, in order."""
        self.act()

    def act(self) -> None:
        actions = self.law.step(self.now_ns, {key: Use(ns, ns) for key, ns in self.used_ns.items()})
        for action in actions:
            if action.is_hold:
                self.held.add(action.leaf)
                self.left_ns[action.leaf] = self.drain_ns
            else:
                self.held.discard(action.leaf)
        for state in self.law._states:
            if state.until_ns is not None and state.granted_ns == self.now_ns:
                self.quanta_ns.append((state.tenant.leaf, state.until_ns - self.now_ns))

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            for leaf, one in self.tenants.items():
                ran_ns = TICK_NS if leaf in self.working else 0
                if leaf in self.held:
                    ran_ns = round(min(TICK_NS, self.left_ns[leaf]))
                    self.left_ns[leaf] -= ran_ns
                for gpu in one.gpus:
                    self.used_ns[leaf, gpu] += ran_ns
            self.now_ns += TICK_NS
            self.act()
            self.check()

    def check(self) -> None:
        """No GPU has two holders, and no holder is held."""
        gpus = [gpu for leaf in self.law.holders() for gpu in self.tenants[leaf].gpus]
        assert len(gpus) == len(set(gpus))
        assert self.held.isdisjoint(self.law.holders())


def test_one_holder_at_a_time_and_the_others_are_held():
    bench = Bench(tenant("a"), tenant("b"), tenant("c"))
    bench.tick()
    for _ in range(300):
        bench.tick()
        assert len(bench.law.holders()) == 1
        assert bench.held == set(bench.tenants) - set(bench.law.holders())


def test_the_token_goes_to_the_one_furthest_below_its_share():
    bench = Bench(tenant("a", 0.5), tenant("b", 0.3), tenant("c", 0.2))
    bench.tick(3000)
    total = sum(bench.used_ns.values())
    shares = {leaf: ns / total for (leaf, _), ns in bench.used_ns.items()}
    assert shares == pytest.approx({"a": 0.5, "b": 0.3, "c": 0.2}, abs=0.02)


def test_the_account_is_of_the_last_ten_seconds_only():
    bench = Bench(tenant("a"), tenant("b"))
    bench.working = {"a"}
    bench.tick(2000)
    bench.working = {"a", "b"}
    before = dict(bench.used_ns)
    bench.tick(3000)
    # It makes up for what b had missed in the window, not for all of 20 s.
    lead_ns = bench.used_ns["b", 0] - before["b", 0] - (bench.used_ns["a", 0] - before["a", 0])
    assert 0 < lead_ns <= 11_000 * MS


def test_a_quantum_is_250_ms_without_overuse():
    bench = Bench(tenant("a"), tenant("b"))
    bench.tick(200)
    # The first were active for a tick before anybody had a token.
    assert {ns for _, ns in bench.quanta_ns[2:]} == {QUANTUM_NS}
    assert bench.now_ns - START_NS >= sum(ns for _, ns in bench.quanta_ns[:-1])


def test_overuse_is_paid_back_from_the_next_quantum():
    bench = Bench(tenant("a"), tenant("b"), drain_ms=60)
    bench.tick(400)
    seen: list[str] = []
    for before, (leaf, ns) in itertools.pairwise(bench.quanta_ns):
        # It drained once since it last had the token, unless it had it just now.
        if leaf in seen:
            assert ns == (QUANTUM_NS if before[0] == leaf else QUANTUM_NS - 60 * MS)
        seen.append(before[0])
    assert len(seen) > 10


def test_a_quantum_is_never_shorter_than_100_ms_and_the_rest_stays_owed():
    bench = Bench(tenant("a"), tenant("b"), drain_ms=90)
    bench.tick(15)
    waiting = next(state for state in bench.law._states if not state.has_token)
    waiting.owed_ns = 400 * MS
    while not waiting.has_token:
        bench.tick()
    assert bench.quanta_ns[-1] == (waiting.tenant.leaf, SHORTEST_QUANTUM_NS)
    assert waiting.owed_ns == 250 * MS


def test_an_idle_holder_gives_the_token_up_early_and_is_not_held():
    bench = Bench(tenant("a"), tenant("b"))
    bench.tick(2)
    (holder,) = bench.law.holders()
    bench.working.discard(holder)
    bench.tick(IDLE_NS // TICK_NS + 1)
    assert bench.law.holders() == [leaf for leaf in bench.tenants if leaf != holder]
    assert not bench.held


def test_one_that_wants_it_alone_is_never_held():
    bench = Bench(tenant("a"), tenant("b"))
    bench.working = {"a"}
    for _ in range(200):
        bench.tick()
        assert not bench.held
    assert bench.law.holders() == ["a"]


def test_one_that_begins_while_another_has_the_token_is_held_at_the_next_tick():
    bench = Bench(tenant("a"), tenant("b"))
    bench.working = {"a"}
    bench.tick(3)
    bench.working.add("b")
    bench.tick()
    assert bench.held == {"b"}


def test_above_its_quota_nobody_is_given_the_token_even_when_the_gpu_idles():
    bench = Bench(tenant("a", 1.0, quota_ratio=0.3))
    bench.tick(3000)
    assert bench.used_ns["a", 0] / (bench.now_ns - START_NS) == pytest.approx(0.3, abs=0.02)


def test_a_tenant_on_two_gpus_takes_both_tokens_and_gets_its_turn():
    bench = Bench(tenant("a", gpus=(0,)), tenant("b", gpus=(1,)), tenant("both", gpus=(0, 1)))
    bench.tick(5)
    # So that the quanta of a and b never end at the same time again.
    bench.law._states[0].until_ns = bench.now_ns + 100 * MS
    bench.tick(3000)
    assert bench.used_ns["both", 0] / (bench.now_ns - START_NS) == pytest.approx(0.5, abs=0.05)


# ---- nvml-feedback ----


def test_the_duty_falls_when_over_and_rises_when_under_the_limit():
    assert next_duty_ratio(0.5, 30, 60) < 0.5 < next_duty_ratio(0.5, 30, 10)


def test_a_step_grows_with_the_difference_and_is_never_nothing():
    steps = [next_duty_ratio(0.0, 90, 90 - off) for off in (0, 5, 20, 40)]
    assert steps[0] == steps[1] < steps[2] < steps[3]
    # beyond half the limit it grows faster than the difference
    assert next_duty_ratio(0.5, 40, 0) - 0.5 > 2 * (next_duty_ratio(0.5, 40, 20) - 0.5)


def test_the_duty_stays_between_the_least_and_one():
    assert next_duty_ratio(0.03, 10, 100) == nvml_feedback.LEAST_DUTY_RATIO
    assert next_duty_ratio(0.99, 90, 0) == 1.0


def held_ns(law: FeedbackLaw, points: Mapping[tuple[str, int], float], until_ns: int) -> dict[str, int]:
    """How long each is held until then, under a constant reading."""
    since: dict[str, int] = {}
    total: dict[str, int] = {}
    while law.next_ns < until_ns:
        now_ns = law.next_ns
        reading = points if law.needs_reading(now_ns) else None
        for action in law.step(now_ns, reading):
            assert action.is_hold != (action.leaf in since), "an action changes something"
            if action.is_hold:
                since[action.leaf] = now_ns
            else:
                total[action.leaf] = total.get(action.leaf, 0) + now_ns - since.pop(action.leaf)
        assert law.next_ns > now_ns
    for leaf, start_ns in since.items():
        total[leaf] = total.get(leaf, 0) + until_ns - start_ns
    return total


def test_a_tenant_is_held_for_what_its_duty_leaves_of_each_period(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nvml_feedback, "next_duty_ratio", lambda duty_ratio, limit, used: duty_ratio)
    law = FeedbackLaw([tenant("a", 0.25), tenant("b", 0.75)], START_NS)
    held = held_ns(law, {}, START_NS + 100 * PERIOD_NS)
    assert held["a"] / (100 * PERIOD_NS) == pytest.approx(0.75, abs=0.01)
    assert held["b"] / (100 * PERIOD_NS) == pytest.approx(0.25, abs=0.01)


def test_one_that_is_never_seen_ends_up_not_held_and_one_always_over_hardly_runs():
    law = FeedbackLaw([tenant("unseen", 0.2), tenant("over", 0.2)], START_NS)
    settled_ns = START_NS + 500 * PERIOD_NS
    points = {("over", 0): 100.0}
    held = held_ns(law, points, settled_ns)
    assert held["unseen"] < held["over"]
    unseen, over = law._tenants
    assert law.duty_ratio(unseen) == 1.0
    assert law.duty_ratio(over) == nvml_feedback.LEAST_DUTY_RATIO


def test_a_limit_of_one_is_no_limit_and_the_least_duty_of_its_gpus_runs_a_tenant():
    free, both = tenant("free", 1.0), tenant("both", 0.5, gpus=(0, 1))
    law = FeedbackLaw([free, both], START_NS)
    points = {("free", 0): 130.0, ("both", 0): 0.0, ("both", 1): 100.0}
    for _ in range(50):
        actions = law.step(law.next_ns, points)
        assert all(action.leaf == "both" for action in actions)
    assert law.duty_ratio(both) < 0.5


class Samples:
    """Answers like NvmlReader."""

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples

    def read(self, after_us: int) -> list[Sample]:
        assert after_us > 0
        return self._samples


def test_utilisation_is_the_part_of_the_last_second_the_samples_stand_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mount = Mount(str(tmp_path))
    paths = {77: "/top/a/below", 4_000_000: None}
    monkeypatch.setattr(nvml_feedback.tree, "cgroup_path_of", lambda pid, mount: paths[pid])
    inside = tenant("a", cgroup=f"{tmp_path}/top/a")
    # 7 samples 140 ms apart, but the one in the middle is missing: the GPU idled
    times = [140_000 * n for n in (1, 2, 3, 5, 6, 7)]
    pids = [77, 77, 4_000_000, 77, 0, 4_000_000]
    samples = [Sample(time_us, pid, 1.0) for time_us, pid in zip(times, pids, strict=True)]
    meter = UtilisationMeter({0: Samples(samples)}, [inside], mount)  # type: ignore[dict-item]
    assert meter.read() == {("a", 0): pytest.approx(3 * 14.0)}
    # As nvml.h has it: a mean of that second for each process.
    samples[:] = [Sample(840_000, 77, 0.43), Sample(980_000, 4_000_000, 0.29)]
    means = UtilisationMeter({0: Samples(samples)}, [inside], mount)  # type: ignore[dict-item]
    assert means.read() == {("a", 0): pytest.approx(43.0)}


# ---- the truth ----


class Reader:
    """Answers like SimReader."""

    def __init__(self) -> None:
        self.contexts: list[ContextTruth] = []

    def uuids(self) -> list[str]:
        return ["GPU-0"]

    def snapshot(self, gpu: int, sync: bool) -> tuple[None, list[ContextTruth]]:
        assert not sync, "a rival must not make the engine work"
        return None, [truth for truth in self.contexts if truth.gpu == gpu]


def test_use_is_by_owner_and_survives_the_context():
    fields = dict.fromkeys(ContextTruth.__dataclass_fields__, 0)
    blank = ContextTruth(**{**fields, "gpu_uuid": "", "ended_ns": None})  # type: ignore[arg-type]
    reader = Reader()
    meter = TruthMeter(reader, [tenant("a", owner=7), tenant("b", owner=8)])  # type: ignore[arg-type]
    reader.contexts = [
        replace(blank, id=1, owner=7, exec_ns=100, wait_ns=20, switch_ns=3),
        replace(blank, id=2, owner=7, exec_ns=50),
        replace(blank, id=3, owner=0, exec_ns=1000),
    ]
    assert meter.read() == {("a", 0): Use(150, 173), ("b", 0): Use()}
    del reader.contexts[0]  # it has left the engine's tables
    assert meter.read()["a", 0] == Use(150, 173)


def test_a_gpu_that_is_not_there_is_an_error():
    with pytest.raises(RivalError, match="no GPU 1"):
        TruthMeter(Reader(), [tenant("a", gpus=(1,))])  # type: ignore[arg-type]
