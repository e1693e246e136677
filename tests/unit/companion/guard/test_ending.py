# SPDX-License-Identifier: Apache-2.0
"""Whom an end reaches: those that the breach names, with descendants that are nobody else's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from fairsched.companion.guard.ending import EndOrder, Reclaimer, spare, wish_of
from fairsched.errors import FairschedError
from fairsched.guard.allow import Allow
from fairsched.guard.breach import Act
from fairsched.guard.sample import Process, Sample
from fairsched.reclaim.audit import AuditRefused
from fairsched.reclaim.end import Ended, Fate
from fairsched.reclaim.facts import Facts
from fairsched.reclaim.holder import Listing
from fairsched.reclaim.plan import make_plan
from fairsched.reclaim.session import Outcome, Prepared
from tests.support import wait_until
from tests.unit.companion.guard.made import GPU, T_S, breach, moment
from tests.unit.reclaim.made import holder, listing, process, table_of

FATHER = process(10, cgroup="/a")
NOBODY = Allow()
OTHER = process(20, uid=1002, cgroup="/a")


def known(facts: Facts, **changes: Any) -> Process:
    return Process(facts.pid, facts.start_ticks, uid=facts.uid, cgroup=facts.cgroup, **changes)


def order(*named: Process, seen: Iterable[Process] = (), **changes: Any) -> EndOrder:
    samples = [Sample(one, GPU) for one in (*named, *seen)]
    return EndOrder(breach(Act.END, processes=named), moment(T_S, *samples), **changes)


def prepared(asked: EndOrder, now: Listing) -> Prepared:
    plan = make_plan(wish_of(asked.breach).choose(now), now, {1: "the init of this host"})
    return Prepared(plan, now, {1: "the init of this host"}, {})


def ended(asked: EndOrder, now: Listing, allow: Allow = NOBODY) -> tuple[set[int], dict[int, str]]:
    """Pids of targets, and of those left with the reason."""
    found = spare(prepared(asked, now), asked, allow)
    assert set(found.protected) >= {one.pid for one in found.plan.left if one.why.startswith("a desc")}
    return {one.pid for one in found.plan.targets}, {one.pid: one.why for one in found.plan.left}


def test_only_those_that_are_named_end_and_never_another_with_their_pid() -> None:
    table = table_of(FATHER, OTHER)
    now = listing([holder(one) for one in (FATHER, OTHER)], table)
    assert ended(order(known(FATHER)), now) == ({10}, {})
    reused = Process(20, 1, uid=1001)
    assert ended(order(reused), now) == (set(), {})


def test_who_holds_no_gpu_any_more_is_not_ended() -> None:
    now = listing([holder(OTHER)], table_of(FATHER, OTHER))
    assert ended(order(known(FATHER)), now) == (set(), {})


def test_a_descendant_of_another_user_or_that_nobody_had_seen_is_left() -> None:
    child, sudo, late, plain = (
        process(11, 10),
        process(12, 10, uid=1002),
        process(13, 10),
        process(14, 10),
    )
    table = table_of(FATHER, child, sudo, late, plain)
    now = listing([holder(one) for one in (FATHER, child, sudo, late)], table)
    targets, left = ended(order(known(FATHER), seen=[known(child), known(sudo)]), now)
    assert targets == {10, 11, 14}
    assert left == {
        12: "a descendant of another user",
        13: "a descendant that came to the GPU after the limit was looked at",
    }


def test_who_is_allowed_is_left_even_if_named() -> None:
    child = process(11, 10)
    now = listing([holder(FATHER), holder(child)], table_of(FATHER, child))
    digest = f"sha256:{'a' * 64}"
    asked = order(known(FATHER), seen=[known(child, program_digest=digest)])
    assert ended(asked, now, Allow(programs=(digest,)))[0] == {10}
    assert ended(asked, now, Allow(cgroups=("/a",)))[0] == set()


@dataclass
class FakeSession:
    """Prepares a plan of what is there, and acts as it is told."""

    now: Listing
    asked: EndOrder
    error: FairschedError | None = None
    acted: list[dict[str, Any]] = field(default_factory=list)

    def prepare(self, wish: Any) -> Prepared:
        del wish
        return prepared(self.asked, self.now)

    def act(self, found: Prepared, wish: Any, audit: Any, **how: Any) -> Outcome:
        del wish, audit
        if self.error is not None:
            raise self.error
        self.acted.append(how)
        return Outcome(tuple(Ended(one, Fate.ENDED) for one in found.plan.targets), ())


def reclaimer(session: FakeSession) -> Reclaimer:
    return Reclaimer(lambda: session, None, Allow(), 7.0)  # type: ignore[arg-type, return-value]


def test_a_dry_run_says_whom_it_would_end_and_ends_nobody() -> None:
    now = listing([holder(FATHER)], table_of(FATHER))
    asked = order(known(FATHER), is_dry=True)
    session = FakeSession(now, asked)
    result = reclaimer(session).carry_out(asked)
    assert (result.text, result.pids, session.acted) == ("would end 10 (p10)", (10,), [])
    assert result.plan["targets"][0]["pid"] == 10


def test_what_was_done_is_told_with_the_reason() -> None:
    now = listing([holder(FATHER)], table_of(FATHER))
    asked = order(known(FATHER), is_forced=True)
    session = FakeSession(now, asked)
    result = reclaimer(session).carry_out(asked)
    assert (result.text, result.pids) == ("1 of 1 ended: 10 (p10) ended", (10,))
    assert session.acted == [{"reason": asked.breach.text, "is_forced": True, "grace_s": 7.0}]


def test_nobody_there_any_more_is_said() -> None:
    asked = order(known(FATHER))
    result = reclaimer(FakeSession(listing([], table_of()), asked)).carry_out(asked)
    assert (result.text, result.pids) == ("nobody is ended: those that are meant hold no GPU any more", ())


@pytest.mark.parametrize("is_bug", [False, True])
def test_in_its_thread_a_full_disk_or_a_bug_is_a_refusal(is_bug: bool) -> None:
    now = listing([holder(FATHER)], table_of(FATHER))
    asked = order(known(FATHER))
    error = AuditRefused("cannot be written", remedy="make room")
    session = FakeSession(now, asked, ZeroDivisionError("bug") if is_bug else error)  # type: ignore[arg-type]
    one = reclaimer(session)
    assert one.collect() is None and not one.is_busy
    one.start(asked)
    found: list[Any] = []

    def is_over() -> bool:
        result = one.collect()
        found.extend([] if result is None else [result])
        return bool(found)

    wait_until(is_over, 10, "it is over")
    assert found[0].is_refused and not one.is_busy
    assert found[0].text == ("ZeroDivisionError: bug" if is_bug else "cannot be written (make room)")
