# SPDX-License-Identifier: Apache-2.0
"""Plans carried out: holds, thaws, and what others do to them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable, KeysView, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from fairsched.act.holds import Applier
from fairsched.cgroup.outcome import GangResult, HoldKind, HoldResult
from fairsched.errors import FairschedError, KernelRefused
from fairsched.model import Action, ActionKind, Hold, Reason, ReasonCode
from fairsched.observe.tree import TenantView

S = 1_000_000_000
OVER = Reason(ReasonCode.OVER_ENTITLEMENT, "GPU-a", lag_ns=-12_000_000, used_ratio=0.6, entitlement_ratio=0.5)
GRANT = Action(ActionKind.THAW, "chat", Reason(ReasonCode.CAUGHT_UP, "GPU-a"), deadline_ns=900, grant_ns=50)


@dataclass
class FakeFreezer:
    """Remembers what was asked; ``refuse`` and ``changes`` are what the kernel and others do."""

    holds: dict[int, SimpleNamespace] = field(default_factory=dict)
    refuse: dict[int, HoldKind] = field(default_factory=dict)
    changes: list[HoldResult] = field(default_factory=list)
    latencies: dict[int, int] = field(default_factory=dict)
    deadlines: list[int] = field(default_factory=list)
    thawed: list[int] = field(default_factory=list)
    pulsed: list[list[int]] = field(default_factory=list)
    limits_ns: list[int] = field(default_factory=list)
    """How long each pulse may take; ``clock`` goes on by that."""
    clock: list[int] = field(default_factory=lambda: [0])
    is_broken: bool = False
    stuck: set[int] = field(default_factory=set)
    """What the kernel refuses to thaw."""
    expired: list[int] = field(default_factory=list)
    """When it was asked to keep its own deadlines."""

    def hold_gang(
        self, refs: Sequence[SimpleNamespace], tenant: str, deadline_ns: int, _why: str
    ) -> GangResult:
        if self.is_broken:
            raise FairschedError("cgroup.freeze: no space left on device")
        members = tuple(
            HoldResult(self.refuse.get(ref.id, HoldKind.HELD), ref.id, ref.path, tenant) for ref in refs
        )
        bad = [member.kind for member in members if member.kind is not HoldKind.HELD]
        if bad:
            return GangResult(bad[0], members)
        self.deadlines.append(deadline_ns)
        for ref in refs:
            self.holds[ref.id] = SimpleNamespace(tenant=tenant)
        return GangResult(HoldKind.HELD, members)

    @property
    def held(self) -> KeysView[int]:
        return self.holds.keys()

    def held_for(self, tenant: str) -> list[int]:
        return [cgroup_id for cgroup_id, entry in self.holds.items() if entry.tenant == tenant]

    def thaw(self, cgroup_id: int) -> HoldResult:
        if cgroup_id in self.stuck:
            raise KernelRefused(f"/{cgroup_id}/cgroup.freeze", errno.EBUSY, "cannot thaw")
        self.holds.pop(cgroup_id)
        self.thawed.append(cgroup_id)
        return HoldResult(HoldKind.THAWED, cgroup_id, "")

    def thaw_expired(self, now_ns: int) -> list[HoldResult]:
        self.expired.append(now_ns)
        return []

    def pulse(
        self,
        cgroup_ids: Sequence[int],
        deadline_ns: int,
        _why: str,
        used: Callable[[], float],
        limit_ns: int,
    ) -> HoldKind:
        if self.is_broken:
            raise FairschedError("cgroup.freeze: no space left on device")
        self.pulsed.append(list(cgroup_ids))
        self.limits_ns.append(limit_ns)
        self.clock[0] += limit_ns
        for _ in range(3):
            if used() >= 1 and not self.refuse:
                self.deadlines.append(deadline_ns)
                return HoldKind.HELD
        for cgroup_id in cgroup_ids:
            del self.holds[cgroup_id]
        return HoldKind.THAWED

    def settle(self) -> list[HoldResult]:
        if self.is_broken:
            raise KernelRefused("/run/holds/1.2", errno.EROFS, "cannot remove")
        changes, self.changes = self.changes, []
        for change in changes:
            if change.kind is not HoldKind.SETTLED:
                self.holds.pop(change.cgroup_id, None)
        return changes

    def latency_ns(self, cgroup_id: int) -> int | None:
        return self.latencies.get(cgroup_id)

    def forget_others(self, cgroup_ids: Collection[int]) -> None:
        self.latencies = {key: ns for key, ns in self.latencies.items() if key in cgroup_ids}


@dataclass
class FakeAccount:
    """Remembers what it was told."""

    told: list[tuple[str, frozenset[int], int]] = field(default_factory=list)
    queued_ns: list[int] = field(default_factory=list)
    """What it finds queued at each look; the last one stays."""

    def queued_since_hold_ns(self, cgroup_ids: Iterable[int]) -> int:
        assert frozenset(cgroup_ids) in [ids for _, ids, _ in self.told]
        return self.queued_ns.pop(0) if len(self.queued_ns) > 1 else self.queued_ns[0]

    def hold(self, cgroup_ids: Iterable[int], now_ns: int) -> None:
        self.told.append(("hold", frozenset(cgroup_ids), now_ns))

    def thaw(self, cgroup_ids: Iterable[int], now_ns: int) -> None:
        self.told.append(("thaw", frozenset(cgroup_ids), now_ns))


@dataclass
class World:
    freezer: FakeFreezer
    tree: SimpleNamespace
    account: FakeAccount
    applier: Applier

    @property
    def tenants(self) -> dict[str, TenantView]:
        found: dict[str, TenantView] = self.tree.tenants
        return found

    def hold(self, tenant: str = "chat", now_ns: int = 0, deadline_ns: int = 500) -> None:
        self.applier.apply([Action(ActionKind.HOLD, tenant, OVER, deadline_ns)], now_ns)

    def thaw(self, tenant: str = "chat", now_ns: int = 0) -> None:
        self.applier.apply([Action(ActionKind.THAW, tenant, Reason(ReasonCode.CAUGHT_UP))], now_ns)

    def change(self, kind: HoldKind, cgroup_id: int, tenant: str, now_ns: int = 9) -> None:
        self.freezer.changes.append(HoldResult(kind, cgroup_id, f"/{cgroup_id}", tenant))
        self.applier.settle(now_ns)


def view(name: str, *ids: int) -> TenantView:
    refs = {number: SimpleNamespace(id=number, path=f"/{number}") for number in ids}
    return TenantView(name, refs=refs, cgroup_ids={*ids, *(number * 10 for number in ids)})  # type: ignore[arg-type]


def make_world(*, is_dry_run: bool = False) -> World:
    tenants = {"chat": view("chat", 1), "train": view("train", 2, 3)}
    freezer, account = FakeFreezer(), FakeAccount()
    tree = SimpleNamespace(tenants=tenants, changes=0)
    applier = Applier(freezer, tree, account, is_dry_run=is_dry_run)  # type: ignore[arg-type]
    return World(freezer, tree, account, applier)


@pytest.fixture
def world() -> World:
    return make_world()


def test_a_hold_is_made_remembered_and_told_to_the_account(world: World) -> None:
    world.hold("chat", 100, 600)
    assert set(world.freezer.holds) == {1}
    assert world.freezer.deadlines == [600]
    assert world.applier.holds == {"chat": Hold("chat", 100, 600, is_ours=True)}
    assert world.account.told == [("hold", frozenset({1, 10}), 100)]


def test_a_thaw_ends_it_and_its_length_is_kept(world: World) -> None:
    world.hold("chat", 100)
    world.thaw("chat", 350)
    assert world.freezer.holds == {}
    assert world.applier.holds == {}
    assert world.account.told[-1] == ("thaw", frozenset({1, 10}), 350)
    assert world.applier.records[-1].held_ns == 250
    assert (world.applier.real.held_ns, world.applier.real.held_count) == ({"chat": 250}, {"chat": 1})


def test_a_gang_is_held_and_thawed_whole(world: World) -> None:
    world.hold("train")
    assert set(world.freezer.holds) == {2, 3}
    world.thaw("train", 1)
    assert world.freezer.thawed == [2, 3]


def test_a_pause_that_is_not_ours_is_left_alone_and_seen(world: World) -> None:
    world.freezer.refuse[3] = HoldKind.FOREIGN
    world.hold("train")
    assert world.applier.holds == {}
    assert world.account.told == []
    assert world.tenants["train"].foreign == {3}
    assert world.applier.records[-1].error == "not held: foreign"


def test_who_pauses_one_of_its_cgroups_is_held_with_the_others(world: World) -> None:
    world.tenants["train"].foreign.add(3)
    assert world.applier.all_holds() == {}
    world.hold("train")
    assert set(world.freezer.holds) == {2}
    assert world.applier.all_holds()["train"].is_ours


def test_who_is_paused_whole_is_not_held(world: World) -> None:
    world.tenants["train"].foreign |= {2, 3}
    assert world.applier.all_holds() == {"train": Hold("train", 0, 0, is_ours=False)}
    assert world.applier.all_held() == {"train"}
    world.hold("train")
    assert (world.freezer.holds, world.applier.records[-1].error) == ({}, "not held: foreign")


def test_the_end_of_our_hold_ends_no_pause_of_somebody_elses(world: World) -> None:
    world.hold("train")
    assert world.applier.holds_cgroup(30) and not world.applier.holds_cgroup(1)
    world.applier.paused = {30}
    world.thaw("train", 1)
    assert world.account.told[-1] == ("thaw", frozenset({2, 3, 20}), 1)
    assert not world.applier.holds_cgroup(30)


def test_a_hold_of_ours_is_not_shown_as_somebody_elses(world: World) -> None:
    world.hold("chat", 5)
    world.tenants["chat"].foreign.add(1)
    assert world.applier.all_holds()["chat"].is_ours
    # held for its memory and let run in turn: not the share policy's business, whether it is frozen just now or not
    for world.applier.reserved in (frozenset({"chat"}), frozenset({"chat", "train"})):
        assert not world.applier.all_holds()["chat"].is_ours
    assert world.applier.all_held() == {"chat"}


@pytest.mark.parametrize("kind", [HoldKind.RELEASED, HoldKind.FOREIGN, HoldKind.GONE])
def test_what_others_do_to_one_member_ends_the_hold_of_the_gang(world: World, kind: HoldKind) -> None:
    world.hold("train", 100)
    world.change(kind, 2, "train", 300)
    assert world.applier.holds == {}
    assert world.freezer.thawed == [3]  # the rest is ours to thaw, the one they touched is not
    assert world.account.told[-1] == ("thaw", frozenset({2, 3, 20, 30}), 300)
    assert world.applier.records[-1].reason.code is ReasonCode.FOREIGN
    assert world.tenants["train"].foreign == ({2} if kind is HoldKind.FOREIGN else set())


def test_coming_to_rest_changes_nothing(world: World) -> None:
    world.hold("chat")
    world.change(HoldKind.SETTLED, 1, "chat")
    assert "chat" in world.applier.holds
    assert len(world.applier.records) == 1


def test_a_hold_that_does_not_come_to_rest_goes_on_and_is_counted(world: World) -> None:
    world.hold("chat")
    world.change(HoldKind.LATE, 1, "chat")
    assert "chat" in world.applier.holds
    assert (len(world.applier.records), world.applier.errors) == (1, 1)


def test_news_of_a_hold_that_is_over_is_no_decision(world: World) -> None:
    world.change(HoldKind.RELEASED, 1, "chat")
    assert not world.applier.records
    assert world.account.told == []


def test_a_tenant_whose_cgroup_is_gone_is_not_held(world: World) -> None:
    del world.tenants["chat"]
    world.hold("chat")
    assert world.applier.records[-1].error == "its cgroup is gone"
    assert world.applier.holds == {}


def test_a_tenant_that_vanished_while_held_can_be_thawed(world: World) -> None:
    world.hold("chat", 100)
    del world.tenants["chat"]
    world.thaw("chat", 200)
    assert world.freezer.thawed == [1]
    assert world.applier.holds == {}


def test_the_deadline_is_kept_without_the_policy(world: World) -> None:
    world.hold("chat", 0, 500)
    world.hold("train", 0, 900)
    world.applier.thaw_expired(499)
    assert set(world.applier.holds) == {"chat", "train"}
    world.applier.thaw_expired(500)
    assert set(world.applier.holds) == {"train"}
    assert world.applier.records[-1].reason.code is ReasonCode.DEADLINE


def test_everybody_is_let_go_at_the_end(world: World) -> None:
    world.hold("chat")
    world.hold("train")
    world.applier.release_all(7)
    assert world.freezer.holds == {}
    assert world.applier.holds == {}
    assert {record.reason.code for record in list(world.applier.records)[-2:]} == {ReasonCode.SHUTDOWN}


def test_what_nobody_expected_of_the_brake_lets_everybody_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised between two ticks, where nothing else would catch it."""
    world.hold()
    world.hold("train")
    monkeypatch.setattr(world.freezer, "settle", lambda: 1 // 0)
    world.applier.settle(9)
    assert world.applier.holds == {}
    assert sorted(world.freezer.thawed) == [1, 2, 3]
    assert world.applier.errors == 1


def test_a_gang_is_as_slow_to_freeze_as_its_slowest_member(world: World) -> None:
    world.freezer.latencies = {2: 1000, 3: 5000}
    assert world.applier.freeze_latency_ns() == {"train": 5000}


def test_a_latency_is_learnt_when_a_hold_has_settled_and_when_it_ends(world: World) -> None:
    assert world.applier.freeze_latency_ns() == {}
    world.hold()
    world.freezer.latencies = {1: 1000}
    world.change(HoldKind.SETTLED, 1, "chat")
    assert world.applier.freeze_latency_ns() == {"chat": 1000}
    world.freezer.latencies = {1: 2000}
    world.thaw()
    assert world.applier.freeze_latency_ns() == {"chat": 2000}
    world.freezer.refuse, world.freezer.latencies = {1: HoldKind.FOREIGN}, {}
    world.hold()
    assert world.applier.freeze_latency_ns() == {}


def test_a_latency_is_that_of_the_cgroups_it_has_now(world: World) -> None:
    world.freezer.latencies = {1: 1000}
    assert world.applier.freeze_latency_ns() == {"chat": 1000}
    world.tree.tenants, world.tree.changes = {"chat": view("chat", 7)}, 1
    assert world.applier.freeze_latency_ns() == {}


def test_of_cgroups_that_come_and_go_nothing_is_kept(world: World) -> None:
    for number in range(10, 20):
        world.freezer.latencies[number] = 1000
        world.tree.tenants, world.tree.changes = {"chat": view("chat", number)}, number
        assert world.applier.freeze_latency_ns() == {"chat": 1000}
        assert world.freezer.latencies == {number: 1000}


def test_thawing_what_is_not_held_is_nothing(world: World) -> None:
    assert world.applier.thaw("chat", 5) is None
    assert world.account.told == []
    assert world.applier.real.held_count == {}


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "decision=" in record.getMessage()]


def test_a_decision_is_one_line_with_its_numbers_and_the_same_as_fields(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fairsched")
    world.hold("chat", 100, 600)
    assert lines_of(caplog) == [
        "decision=hold tenant=chat reason=over_entitlement gpu=GPU-a lag_ms=-12.0 used_ratio=0.6 entitled_ratio=0.5"
    ]
    fields = caplog.records[-1].fields  # type: ignore[attr-defined]
    assert (fields["tenant"], fields["lag_ms"]) == ("chat", -12.0)


def test_the_log_of_one_tenant_is_limited_and_says_what_it_left_out(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fairsched")
    for tick in range(20):
        world.hold("chat", tick * S // 10)
        world.thaw("chat", tick * S // 10 + S // 20)
    world.hold("train", 2 * S)
    world.hold("chat", 60 * S)
    lines = lines_of(caplog)
    assert sum("tenant=chat" in line for line in lines) == 6, "five at once, and one a minute later"
    assert lines[-1].endswith("suppressed=35")
    assert any("tenant=train" in line for line in lines), "another tenant's has its own limit"
    assert len(world.applier.records) == 42, "explain and events have them all"


def test_whoever_debugs_sees_every_decision(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "fairsched")
    for tick in range(20):
        world.hold("chat", tick)
        world.thaw("chat", tick)
    assert len(lines_of(caplog)) == 40
