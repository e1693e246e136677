# SPDX-License-Identifier: Apache-2.0
"""Who is beyond a VRAM limit and what is done: laws as properties, and the cases by hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.model import TenantSpec, VramAction
from fairsched.policy.vram import (
    ProcessVram,
    VramParams,
    VramState,
    combine,
    due_holds,
    held_for_it,
    judge,
    sums,
)

GIB = 1 << 30
S = 1_000_000_000
GPU, OTHER = "GPU-0", "GPU-1"
PARAMS = VramParams(confirm_ns=3 * S // 2, clear_ns=5 * S, min_run_ns=30_000_000)


def spec(name: str, limit: int | None = 8 * GIB, action: VramAction = VramAction.WARN) -> TenantSpec:
    return TenantSpec(name, vram_limit_bytes=limit, on_vram_limit=action)


def run(
    looks: Sequence[Sequence[ProcessVram]],
    specs: Mapping[str, TenantSpec],
    state: VramState | None = None,
    unendable: Collection[tuple[str, int]] = (),
    begin_s: int = 0,
) -> list[VramState]:
    """One look a second."""
    states, last = [], state or VramState()
    for second, processes in enumerate(looks, begin_s):
        last = judge(processes, last, specs, second * S, PARAMS, unendable)
        states.append(last)
    return states


def has(size: float, tenant: str = "a", pid: int = 1, gpu: str = GPU) -> ProcessVram:
    return ProcessVram(tenant, gpu, pid, int(size * GIB))


def test_a_limit_is_of_each_gpu_and_of_all_below() -> None:
    specs = {"team": spec("team"), "team/chat": spec("team/chat", 2 * GIB)}
    found = sums([has(3, "team/chat"), has(6, "team/x", 2), has(7, "team", 3, OTHER), has(9, "b")], specs)
    assert found == {("team", GPU): 9 * GIB, ("team/chat", GPU): 3 * GIB, ("team", OTHER): 7 * GIB}


def test_a_tenant_without_a_limit_of_its_own_does_not_have_its_parents() -> None:
    """The parent's binds it already, together with the others."""
    states = run([[has(9, "team/x")]] * 4, {"team": spec("team")})
    assert list(states[-1].episodes) == [("team", GPU)]


def test_of_two_that_looked_the_larger_is_believed_of_each_process_and_gpu() -> None:
    seen = [has(1), has(2, "b"), has(5, pid=2), has(1, gpu=OTHER)]
    listed = [has(4, "z"), has(4, pid=2), has(3, gpu=OTHER), has(7, pid=3)]
    assert combine(seen, listed) == (has(1), has(3, "b"), has(5, pid=2), has(3, gpu=OTHER), has(7, pid=3))


def test_exactly_the_limit_is_within_it() -> None:
    assert run([[has(8)]] * 9, {"a": spec("a")})[-1].episodes == {}


def test_over_at_one_look_is_not_an_episode() -> None:
    """The kernel's check lets pass together what was asked for at the same moment."""
    states = run([[has(9)], [has(7)], [has(9)], [has(7)], [has(9)]], {"a": spec("a")})
    assert all(state.episodes == {} for state in states)
    assert run([[has(9)]] * 3, {"a": spec("a")})[-1].episodes != {}


def test_back_and_forth_is_one_episode() -> None:
    looks = [[has(9)]] * 3 + [[has(7)], [has(7)], [has(9)]] * 5
    states = run(looks, {"a": spec("a")})
    begun = [state.episodes["a", GPU].since_ns for state in states[2:]]
    assert set(begun) == {0}
    assert [state.episodes["a", GPU].is_over for state in states[2:6]] == [True, False, False, True]
    after = run([[has(7)]] * 7, {"a": spec("a")}, states[-1], begin_s=len(looks))
    assert after[-1].episodes == {}


def test_a_limit_that_is_lifted_ends_the_episode() -> None:
    state = run([[has(9)]] * 3, {"a": spec("a")})[-1]
    assert judge([has(9)], state, {"a": spec("a", None)}, 4 * S, PARAMS) == VramState()


def test_the_process_with_most_is_to_end_and_the_next_one_only_after_it() -> None:
    specs = {"a": spec("a", action=VramAction.TERMINATE)}
    many = [has(3, pid=1), has(7, pid=2), has(5, pid=3)]
    states = run([many] * 4, specs)
    assert [state.episodes["a", GPU].victim for state in states[2:]] == [2, 2]
    shrunk = [has(3, pid=1), has(4, pid=2), has(6, pid=3)]
    kept = judge(shrunk, states[-1], specs, 4 * S, PARAMS)
    assert kept.episodes["a", GPU].victim == 2
    gone = judge([has(3, pid=1), has(6, pid=3)], kept, specs, 5 * S, PARAMS)
    assert gone.episodes["a", GPU].victim == 3
    within = judge([has(3, pid=1), has(1, pid=3)], gone, specs, 6 * S, PARAMS)
    assert not within.episodes["a", GPU].is_over
    assert judge([has(3, pid=1)], gone, specs, 6 * S, PARAMS).episodes["a", GPU].victim is None


def test_who_cannot_be_ended_is_passed_over() -> None:
    specs = {"a": spec("a", action=VramAction.TERMINATE)}
    state = run([[has(3, pid=1), has(7, pid=2)]] * 4, specs, unendable={("a", 2)})[-1]
    assert state.episodes["a", GPU].victim == 1


def test_of_a_parents_tenants_the_one_with_most_is_held() -> None:
    specs = {"team": spec("team", action=VramAction.HOLD)}
    state = run([[has(5, "team/a", 1), has(3, "team/b", 2), has(3, "team/b", 3)]] * 4, specs)[-1]
    assert held_for_it(state, specs) == {"team/b"}


def test_exempt_tenants_are_not_held() -> None:
    specs = {"a": replace(spec("a", action=VramAction.HOLD), is_exempt=True)}
    state = run([[has(9)]] * 4, specs)[-1]
    assert held_for_it(state, specs) == frozenset()
    assert due_holds(state, specs, (), 5 * S, PARAMS)[1] == ()


def test_a_tenant_that_was_held_for_another_reason_first_runs() -> None:
    specs = {"a": spec("a", action=VramAction.HOLD)}
    state = run([[has(9)]] * 4, specs)[-1]
    state, holds = due_holds(state, specs, {"a"}, 4 * S, PARAMS)
    assert holds == ()
    assert due_holds(state, specs, (), 4 * S + PARAMS.min_run_ns - 1, PARAMS)[1] == ()
    assert len(due_holds(state, specs, (), 4 * S + PARAMS.min_run_ns, PARAMS)[1]) == 1


@given(st.lists(st.integers(1, 90), min_size=20, max_size=300), st.data())
def test_holds_are_no_longer_than_allowed_and_it_runs_between_them(
    steps_ms: list[int], data: st.DataObject
) -> None:
    """Whatever the ticks are like, and whether others hold it now and then."""
    specs = {"a": spec("a", action=VramAction.HOLD)}
    state = run([[has(9)]] * 4, specs)[-1]
    now_ns, until_ns, ended_ns = 4 * S, None, -S
    for step_ms in steps_ms:
        now_ns += step_ms * 1_000_000
        if until_ns is not None and now_ns >= until_ns:
            until_ns, ended_ns = None, until_ns
        is_others = until_ns is None and data.draw(st.booleans())
        if is_others:
            ended_ns = now_ns
        held = {"a"} if until_ns is not None or is_others else set()
        state, holds = due_holds(state, specs, held, now_ns, PARAMS)
        for one in holds:
            assert until_ns is None and not is_others
            assert now_ns - ended_ns >= PARAMS.min_run_ns
            assert one.deadline_ns - now_ns == specs["a"].max_freeze_ns
            until_ns = one.deadline_ns


LOOKS = st.lists(
    st.lists(
        st.builds(
            ProcessVram,
            tenant=st.sampled_from(["a", "b", "team/x", "team/y"]),
            gpu=st.sampled_from([GPU, OTHER]),
            pid=st.integers(1, 6),
            bytes=st.integers(0, 6).map(lambda gib: gib * GIB),
        ),
        max_size=8,
        unique_by=lambda one: (one.pid, one.gpu),
    ),
    max_size=14,
)
ACTIONS = st.sampled_from(VramAction)


@settings(max_examples=300)
@given(LOOKS, ACTIONS, ACTIONS)
def test_nothing_is_done_to_whoever_is_within(
    looks: list[list[ProcessVram]], own: VramAction, above: VramAction
) -> None:
    specs = {
        "a": spec("a", 8 * GIB, own),
        "b": spec("b", None, VramAction.TERMINATE),
        "team": spec("team", 10 * GIB, above),
        "team/x": spec("team/x", 6 * GIB, own),
        "team/y": spec("team/y", None),
    }
    state = VramState()
    for second, processes in enumerate(looks):
        before, now_ns = state, second * S
        state = judge(processes, state, specs, now_ns, PARAMS)
        used = sums(processes, specs)
        # over, of a tenant with a limit, for long enough: else nobody is accused
        for key, one in state.episodes.items():
            assert one.used_bytes == used.get(key, 0)
            assert one.limit_bytes == specs[key[0]].vram_limit_bytes
            if key not in before.episodes:
                assert one.is_over and now_ns - one.since_ns >= PARAMS.confirm_ns
            assert now_ns - one.over_ns < PARAMS.clear_ns
            assert (one.victim is None) or one.wish is VramAction.TERMINATE
            mine = {p.pid: p.bytes for p in processes if p.gpu == key[1] and p.tenant.startswith(key[0])}
            was = before.episodes[key].victim if key in before.episodes else None
            if one.victim is not None and one.victim != was:
                assert mine[one.victim] == max(mine.values()) > 0
                assert not mine.get(was or -1)
        state, holds = due_holds(state, specs, (), now_ns, PARAMS)
        held = [one.episode.leaf for one in holds]
        assert len(held) == len(set(held))
        for hold in holds:
            assert hold.episode.is_over and hold.episode.wish is VramAction.HOLD
            assert hold.episode.leaf.startswith(hold.episode.tenant)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_terminating_one_at_a_time_ends_within_the_limit_and_ends_no_more_than_needed(
    sizes: list[int],
) -> None:
    specs = {"a": spec("a", 16 * GIB, VramAction.TERMINATE)}
    alive = {pid: size for pid, size in enumerate(sizes, 1)}
    state, ended, asked = VramState(), [], None
    for second in range(60):
        state = judge([has(size, pid=pid) for pid, size in alive.items()], state, specs, second * S, PARAMS)
        episode = state.episodes.get(("a", GPU))
        victim = episode.victim if episode is not None and episode.is_over else None
        if asked is not None and asked in alive:
            assert victim in (asked, None)
            if second % 3 == 0:  # it takes its time
                del alive[asked]
                ended.append(asked)
                asked = None
        elif victim is not None:
            asked = victim
    assert sum(alive.values()) <= 16
    # without the last of them it would have been too much still
    if ended:
        assert sum(alive.values()) + sizes[ended[-1] - 1] > 16
    assert ended == sorted(ended, key=lambda pid: (-sizes[pid - 1], -pid))
