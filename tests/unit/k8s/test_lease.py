# SPDX-License-Identifier: Apache-2.0
"""One of several holds a Lease: never two, whatever hangs, is cut off, or has a clock that is wrong."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.errors import ConfigError
from fairsched.k8s.client import Refused, Unreachable
from fairsched.k8s.lease import Election, LeaseTimes

TIMES = LeaseTimes()
CALL_S = 5.0


@dataclass
class Server:
    """Keeps one Lease, with versions as the API server does."""

    lease: dict[str, Any] | None = None
    version: int = 0
    writes: list[str] = field(default_factory=list)
    """Holders, as they were written."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        if self.lease is None:
            raise Refused("GET", 404, {}, None)
        return copy.deepcopy(self.lease)

    def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.lease is not None:
            raise Refused("POST", 409, {}, None)
        return self._put(body)

    def replace(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.lease is None:
            raise Refused("PUT", 404, {}, None)
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Refused("PUT", 409, {}, None)
        return self._put(body)

    def _put(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.version += 1
        self.lease = copy.deepcopy(dict(body))
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        self.writes.append(body["spec"]["holderIdentity"])
        return copy.deepcopy(self.lease)


@dataclass
class Link:
    """A candidate's way to the server; it can be cut."""

    server: Server
    is_cut: bool = False

    def __getattr__(self, name: str) -> Any:
        if self.is_cut:
            raise Unreachable("cut")
        return getattr(self.server, name)


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def candidate(server: Any, name: str, clock: Clock, wall: float = 1e9) -> Election:
    return Election(server, "fairsched", "policies", name, clock=clock, wall=lambda: wall, jitter=lambda: 0.0)


def both(*candidates: Election) -> None:
    for one in candidates:
        one.step()


def test_the_first_takes_it_and_the_second_waits(server: Server, clock: Clock) -> None:
    a, b = candidate(server, "a", clock), candidate(server, "b", clock)
    both(a, b)
    assert a.is_leader() and not b.is_leader() and b.holder() == "a"
    assert server.lease is not None and server.lease["spec"]["leaseDurationSeconds"] == 15
    assert server.lease["spec"]["renewTime"] == "2001-09-09T01:46:40.000000Z"


def test_who_renews_keeps_it(server: Server, clock: Clock) -> None:
    a, b = candidate(server, "a", clock), candidate(server, "b", clock)
    for _ in range(30):
        both(a, b)
        clock.now_s += TIMES.retry_s
        assert a.is_leader() and not b.is_leader()
    assert server.lease is not None and server.lease["spec"]["leaseTransitions"] == 0


def test_who_is_cut_off_has_stopped_before_another_begins(server: Server, clock: Clock) -> None:
    """With room for a call that it had begun."""
    link = Link(server)
    a, b = candidate(link, "a", clock), candidate(server, "b", clock)
    both(a, b)
    link.is_cut = True
    stopped_s = began_s = None
    for _ in range(200):
        clock.now_s += 0.1
        both(a, b)
        assert not (a.is_leader() and b.is_leader())
        if not a.is_leader():
            stopped_s = stopped_s or clock.now_s
        if b.is_leader():
            began_s = began_s or clock.now_s
    assert stopped_s is not None and began_s is not None
    assert began_s - stopped_s >= CALL_S - 0.2
    assert (a.trouble() or (0, ""))[1] == "cut" and b.trouble() is None
    assert server.lease is not None and server.lease["spec"]["leaseTransitions"] == 1


def test_no_clock_of_another_is_believed(server: Server, clock: Clock) -> None:
    """A renewal that says a time far in the past, or to come, counts from when it was seen."""
    a, b = candidate(server, "a", clock, wall=0.0), candidate(server, "b", clock, wall=4e9)
    for _ in range(20):
        both(a, b)
        clock.now_s += TIMES.retry_s
    assert a.is_leader() and server.writes == ["a"] * 20


def test_who_ends_in_order_gives_it_back_at_once(server: Server, clock: Clock) -> None:
    a, b = candidate(server, "a", clock), candidate(server, "b", clock)
    a.step()
    a.close()
    a.run()
    assert not a.is_leader()
    b.step()
    assert b.is_leader()


def test_who_never_had_it_gives_nothing_back(server: Server, clock: Clock) -> None:
    a, b = candidate(server, "a", clock), candidate(server, "b", clock)
    both(a, b)
    b.close()
    b.run()
    assert server.writes == ["a"]


def test_of_two_that_see_it_free_one_has_it(server: Server, clock: Clock) -> None:
    """The second names a version that is no more."""
    a = candidate(server, "a", clock)

    class Slow(Link):
        """Between its look and its write somebody else takes it."""

        def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
            a.step()
            return self.server.create(path, body)

    b = candidate(Slow(server), "b", clock)
    b.step()
    assert a.is_leader() and not b.is_leader() and b.trouble() is None


def test_each_change_is_told_once(server: Server, clock: Clock) -> None:
    told: list[bool] = []
    link = Link(server)
    a = Election(link, "n", "l", "a", clock=clock, changed=told.append)
    both(a, a)
    link.is_cut = True
    clock.now_s += TIMES.deadline_s
    both(a, a)
    assert told == [True, False]


def test_a_lease_of_nonsense_is_waited_for_and_taken(server: Server, clock: Clock) -> None:
    server.lease = {
        "metadata": {"resourceVersion": "1"},
        "spec": {"holderIdentity": "x", "leaseDurationSeconds": "soon", "leaseTransitions": None},
    }
    a = candidate(server, "a", clock)
    a.step()
    assert not a.is_leader()
    clock.now_s += TIMES.duration_s
    a.step()
    assert a.is_leader()


def test_a_longer_promise_of_another_program_is_kept(server: Server, clock: Clock) -> None:
    spec = {"holderIdentity": "x", "leaseDurationSeconds": 60}
    server.lease = {"metadata": {"resourceVersion": "1"}, "spec": spec}
    a = candidate(server, "a", clock)
    a.step()
    clock.now_s += 59
    a.step()
    assert not a.is_leader()
    clock.now_s += 1
    a.step()
    assert a.is_leader()


@pytest.mark.parametrize(
    ("times", "is_safe"),
    [
        (LeaseTimes(), True),
        (LeaseTimes(duration_s=14), False),
        (LeaseTimes(deadline_s=2.0), False),
        (LeaseTimes(retry_s=0.0), False),
    ],
)
def test_times_at_which_two_could_hold_it_are_refused(times: LeaseTimes, is_safe: bool) -> None:
    if is_safe:
        times.check(CALL_S)
        return
    with pytest.raises(ConfigError, match="two could hold it"):
        times.check(CALL_S)


@dataclass
class SlowLink(Link):
    """Each call takes so long on its way there, and so long on its way back."""

    clock: Clock = field(default_factory=Clock)
    there_s: float = 0.0
    back_s: float = 0.0

    def __getattr__(self, name: str) -> Any:
        call = super().__getattr__(name)

        def slow(*arguments: Any) -> Any:
            self.clock.now_s += self.there_s
            answer = call(*arguments)
            self.clock.now_s += self.back_s
            return answer

        return slow


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["step", "step", "wait", "cut", "slow"]),
        st.integers(0, 2),
        st.floats(0.0, CALL_S / 2),
    ),
    max_size=80,
)


@settings(deadline=None)
@given(STEPS)
def test_never_two_at_once(steps: list[tuple[str, int, float]]) -> None:
    """Whoever is cut off or slow for how long, in which order they ask."""
    server, clock = Server(), Clock()
    links = [SlowLink(server, clock=clock) for _ in range(3)]
    all_of_them = [candidate(link, str(number), clock) for number, link in enumerate(links)]
    for what, which, seconds in steps:
        link = links[which]
        if what == "wait":
            clock.now_s += 2 * seconds
        elif what == "step":
            all_of_them[which].step()
        elif what == "cut":
            link.is_cut = not link.is_cut
        else:
            link.there_s, link.back_s = seconds, CALL_S / 2 - seconds
        assert sum(one.is_leader() for one in all_of_them) <= 1


def test_a_renewal_on_its_way_counts_from_when_it_was_seen(server: Server, clock: Clock) -> None:
    """Not from when it was asked for: its holder may have renewed it after that."""
    a = candidate(server, "a", clock)
    a.step()
    link = SlowLink(server, clock=clock, there_s=CALL_S)
    b = candidate(link, "b", clock)
    b.step()
    link.there_s = 0.0
    clock.now_s += TIMES.duration_s - 0.1
    b.step()
    assert not b.is_leader()


def test_of_two_that_see_it_over_one_has_it(server: Server, clock: Clock) -> None:
    """The second names a version that is no more."""
    a = candidate(server, "a", clock)
    candidate(server, "gone", clock).step()
    a.step()

    class Late(Link):
        """Hears of the Lease as it was before the other took it."""

        def get(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
            found = self.server.get(path)
            if self.server.writes == ["gone"]:
                a.step()
            return found

    b = candidate(Late(server), "b", clock)
    b.step()
    assert server.writes == ["gone"], "its promise holds"
    clock.now_s += TIMES.duration_s
    b.step()
    assert a.is_leader() and not b.is_leader() and server.writes == ["gone", "a"]


def test_a_renewal_is_trusted_from_when_it_was_sent(server: Server, clock: Clock) -> None:
    """Its answer may have been long on its way, and the others count from when it was there."""
    a = candidate(SlowLink(server, clock=clock, back_s=CALL_S / 2), "a", clock)
    sent_s = clock.now_s
    a.step()
    clock.now_s = sent_s + TIMES.deadline_s - 0.1
    assert a.is_leader()
    clock.now_s = sent_s + TIMES.deadline_s
    assert not a.is_leader()
