# SPDX-License-Identifier: Apache-2.0
"""Who is ended, who is not, and why: from made processes."""

from __future__ import annotations

import os
from typing import Any

import pytest

from fairsched.reclaim.facts import Facts
from fairsched.reclaim.holder import Holder
from fairsched.reclaim.pauses import Pause
from fairsched.reclaim.plan import SERVERS, Plan, is_inside, make_plan, newcomers, own_groups, starter_of
from fairsched.reclaim.protect import protected
from tests.unit.reclaim.made import holder, listing, process, table_of


def planned(holders: list[Holder], table: dict[int, Facts], **options: Any) -> Plan:
    chosen = options.pop("chosen", holders)
    return make_plan(chosen, listing(holders, table), options.pop("never", {}), **options)


def pids(plan: Plan) -> list[int]:
    return sorted(one.pid for one in plan.targets)


def why(plan: Plan, pid: int) -> str:
    return next(one.why for one in plan.left if one.pid == pid)


def test_a_process_is_ended_with_its_descendants_in_its_cgroup() -> None:
    table = table_of(
        process(10),
        process(11, 10),
        process(12, 11, cgroup="/a/b"),
        process(13, 10, cgroup="/ab"),
        process(14),
    )
    plan = planned([holder(table[10])], table)
    assert pids(plan) == [10, 11, 12]
    assert "in another cgroup (/ab)" in why(plan, 13) and not plan.is_whole


def test_a_parent_that_is_kept_is_no_failure() -> None:
    table = table_of(process(10), process(11, 10))
    plan = planned([holder(table[10]), holder(table[11])], table, keep_parent=True)
    assert pids(plan) == [11] and plan.is_whole
    assert why(plan, 10) == "kept: --keep-parent"


def test_a_launcher_is_named_for_what_is_below_it_and_nobody_else_is() -> None:
    table = table_of(process(10), process(11, 10), process(20))
    workers = [holder(table[11])]
    plan = planned(workers, table, chosen=[], named=[10, 20, 99])
    assert pids(plan) == [10, 11]
    assert why(plan, 20).startswith("neither it nor a descendant holds a GPU")
    assert why(plan, 99) == "there is no such process" and not plan.is_whole


def test_what_is_never_ended_stays_also_as_a_descendant() -> None:
    table = table_of(process(10), process(11, 10), process(12, 11))
    plan = planned([holder(table[10])], table, never={11: "this command itself"})
    assert pids(plan) == [10, 12]
    assert why(plan, 11) == "never ended: this command itself"
    assert pids(planned([holder(table[10])], table, never={10: "x"})) == []


def test_a_zombie_is_told_to_its_parent_and_a_row_of_nobody_is_left() -> None:
    table = table_of(process(10), process(11, 10, state="Z"))
    zombie = holder(table[11])
    gone = Holder(holder(process(99)).status, None, is_listed=True)
    stale = holder(table[10], is_listed=False)
    plan = planned([zombie, gone, stale], table)
    assert plan.targets == ()
    assert "when its parent 10 (p10) reaps it" in why(plan, 11)
    assert "has ended, or is in no pid namespace below ours" in why(plan, 99)
    assert why(plan, 10).startswith("only the daemon lists it")


def test_an_mps_server_goes_with_all_of_its_clients_and_after_them() -> None:
    table = table_of(process(10), process(11), process(12))
    server = holder(table[10], mps="server")
    clients = [holder(table[pid], mps="client") for pid in (11, 12)]
    plan = planned([server, *clients], table, chosen=[server, clients[0]])
    assert pids(plan) == [11]
    assert "1 client that would end with it stay (12)" in why(plan, 10)
    assert "may fail the others (12)" in plan.targets[0].notes[0]
    whole = planned([server, *clients], table)
    assert [one.pid for one in whole.targets] == [11, 12, 10]
    assert whole.targets[-1].phase == SERVERS


def test_what_keeps_a_signal_away_is_said_in_the_plan() -> None:
    facts = process(10, state="D", tracer=1, is_deaf=True)
    table = table_of(facts)
    (target,) = planned([holder(facts)], table, pauses={10: Pause("frozen by somebody else")}).targets
    notes = " | ".join(target.notes)
    for said in ("frozen by somebody else", "traced by 1 (init)", "(ignored): --force", "(D)"):
        assert said in notes


@pytest.mark.parametrize(
    ("cgroup", "said"),
    [
        ("/system.slice/chat.service", "unit chat.service (systemctl stop chat.service)"),
        (f"/system.slice/docker-{'3f' * 32}.scope", "its container's restart policy (3f3f3f3f3f3f)"),
        ("/gpu.slice/chat", None),
        (None, None),
    ],
)
def test_what_starts_it_again_is_named(cgroup: str | None, said: str | None) -> None:
    assert starter_of(cgroup) == said


def test_inside_of_a_cgroup_is_not_beside_it() -> None:
    assert is_inside("/a/b", "/a") and is_inside("/a", "/a") and is_inside("/a", "/")
    assert not is_inside("/ab", "/a") and not is_inside(None, "/a") and not is_inside("/a", None)


# ---- who is forked meanwhile ----


def test_a_child_is_found_while_its_parent_lives_and_by_its_group_afterwards() -> None:
    known = {10: process(10)}
    child = process(200, 10, group=10)
    assert newcomers(known, table_of(known[10], child), frozenset(), 0) == [child]
    elsewhere = process(201, 10, cgroup="/b")
    assert newcomers(known, table_of(known[10], elsewhere), frozenset(), 0) == []
    orphan = process(200, 1, group=10, start_ticks=500)
    groups = own_groups(list(known.values()), table_of(known[10]))
    assert newcomers(known, table_of(orphan), groups, 400) == [orphan]
    assert newcomers(known, table_of(orphan), groups, 501) == [], "it was there before"
    for other in ({"cgroup": "/b"}, {"uid": 0}, {"group": 11}):
        assert (
            newcomers(
                known, table_of(process(200, 1, **{"group": 10, "start_ticks": 500, **other})), groups, 400
            )
            == []
        )


def test_a_group_with_somebody_else_in_it_tells_nothing() -> None:
    script = process(9, group=10)
    known = {10: process(10, 9)}
    assert own_groups(list(known.values()), table_of(script, known[10])) == frozenset()
    assert own_groups(list(known.values()), table_of(known[10], process(11, 10, group=10))) != frozenset()


def test_a_pid_that_was_given_again_has_no_children_of_ours() -> None:
    known = {10: process(10)}
    again = process(10, start_ticks=999)
    assert newcomers(known, table_of(again, process(200, 10)), frozenset(), 0) == []


# ---- who is never ended ----


def test_the_command_its_ancestors_and_the_kernels_threads_are_protected() -> None:
    table = table_of(
        process(2, 0, is_kernel=True), process(10), process(11, 10), process(12, 11), process(13)
    )
    never = protected(table, [50], has_answer=True, me=12)
    assert set(never) == {0, 1, 2, 10, 11, 12, 50}


def test_without_an_answer_fairsched_is_known_by_its_command_but_not_in_a_container() -> None:
    mine = {"uid": os.geteuid(), "command": "python3 -m fairsched.guardian.process /run"}
    table = table_of(
        process(12),
        process(20, **mine),
        process(21, uid=os.geteuid(), command="/usr/bin/fairsched run"),
        process(22, **{**mine, "namespace_pids": (22, 1)}),
        process(23, **{**mine, "uid": 4242}),
    )
    assert set(protected(table, has_answer=False, me=12)) == {0, 1, 12, 20, 21}
    assert set(protected(table, has_answer=True, me=12)) == {0, 1, 12}
