# SPDX-License-Identifier: Apache-2.0
"""Makes the holds and thaws that take long in a thread beside the loop, behind the protocol of all brakes.

Problem. The kernel goes through every cgroup and thread below the cgroup that is frozen or thawed before the write is
over: 7 ms of processor time for 12,000 of them, and a tenant may make as many as it likes. And it does so under one
lock of the whole node, which who makes, removes or changes cgroups all the time holds for as long. The loop has all
the others to look after meanwhile.

Approach. What is cheap is done at once by whoever asks, as before. What is known to be dear, because the last hold or
thaw of the same cgroups was, goes to a thread and is taken to succeed; so does all that is asked in the ten seconds
after one that had to wait long for others; and so does everything that is asked while that thread has something to do:
one thread at a time uses the brake, and the order stays. ``settle`` tells what came out otherwise. Record, deadline
and the pauses of others are the brake's own business, in whichever thread it runs.
"""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set

from fairsched.base.wait import wait_readable
from fairsched.cgroup.brake import Brake
from fairsched.cgroup.journal import Entry
from fairsched.cgroup.outcome import GangResult, HoldKind, HoldResult
from fairsched.cgroup.path import CgroupRef

DEAR_NS = 2_000_000
"""Of processor time, for all that is done at once: a tick has 5 ms, and needs two or three for the rest."""

_CONTENDED_NS = 10_000_000_000
"""For so long after a wait the next ones are expected."""

MOST = 1024
"""Jobs that may wait, each with descriptors of its own: the kernel may keep the thread for as long as it likes."""

_Job = Callable[[list[HoldResult]], object]
"""Adds what did not come out as was told."""


def _waits() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class _Held(Set[int]):
    """What is held, or about to be: a pause that is found on one of these is ours."""

    def __init__(self, made: Set[int], asked: Set[int]) -> None:
        self._made, self._asked = made, asked

    def __contains__(self, cgroup_id: object) -> bool:
        return cgroup_id in self._asked or cgroup_id in self._made

    def __iter__(self) -> Iterator[int]:
        return iter(self._asked | self._made)

    def __len__(self) -> int:
        return len(self._asked | self._made)


class BesideLoop:
    """A brake whose dear work is done by a thread. Whoever uses it is one thread itself."""

    def __init__(
        self,
        brake: Brake,
        *,
        cost_clock_ns: Callable[[], int] = time.thread_time_ns,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        waits: Callable[[], int] = _waits,
    ) -> None:
        """``cost_clock_ns``: processor time of the calling thread, in ns. ``waits``: how often it has slept so far."""
        self._brake = brake
        self._cost_clock_ns, self._clock_ns, self._waits = cost_clock_ns, clock_ns, waits
        self._contended_ns = 0
        """Until then what is asked is expected to wait for others."""
        self._hold_ns: dict[int, int] = {}
        self._thaw_ns: dict[int, int] = {}
        """What the last one cost, by cgroup."""
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: deque[tuple[list[HoldResult], Exception | None]] = deque()
        self._pending = 0
        """Jobs that were given to the thread and not taken back."""
        self._meant: dict[int, HoldResult] = {}
        """While there are any: what will be held when they are done, as a HELD of each."""
        self._asked: set[int] = set()
        """While there are any: what they hold, if only until one of them thaws it."""
        self._news: list[HoldResult] = []
        self._failures: list[Exception] = []
        self._is_closing = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._bell, select.EPOLLIN)
        self._epoll.register(brake.fileno(), select.EPOLLIN)
        self._held = _Held(brake.held, self._asked)
        # Now, at this priority: a pulse asks at that of real time, which a thread would inherit for good.
        self._thread: threading.Thread | None = threading.Thread(target=self._work, name="brake", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether the thread has something to do."""
        return not self._is_free()

    # ---- as any brake ----

    def fileno(self) -> int:
        """See :class:`Brake`."""
        return self._epoll.fileno()

    @property
    def holds(self) -> dict[int, Entry]:
        """See :class:`Brake`; waits for the thread."""
        self._finish()
        return self._brake.holds

    @property
    def held(self) -> Set[int]:
        """What is held now, or about to be."""
        return self._held

    def held_for(self, tenant: str) -> list[int]:
        """What is meant to be held for a tenant."""
        if self._is_free():
            return self._brake.held_for(tenant)
        return [cgroup_id for cgroup_id, one in self._meant.items() if one.tenant == tenant]

    def latency_ns(self, cgroup_id: int) -> int | None:
        """See :class:`Brake`."""
        return self._brake.latency_ns(cgroup_id)

    def forget_others(self, cgroup_ids: Collection[int]) -> None:
        """See :class:`Brake`."""
        for costs in (self._hold_ns, self._thaw_ns):
            for key in costs.keys() - cgroup_ids:
                del costs[key]
        if self._is_free():
            self._brake.forget_others(cgroup_ids)
        elif self._pending < MOST:
            self._give(lambda _news: self._brake.forget_others(cgroup_ids))

    def hold(self, ref: CgroupRef, tenant: str, deadline_ns: int, reason: str) -> HoldResult:
        """See :class:`Brake`. HELD, too, where that is still to be done."""
        if self._is_cheap([ref.id]):
            with self._measured(self._hold_ns, [ref.id]):
                return self._brake.hold(ref, tenant, deadline_ns, reason)
        return self.hold_gang([ref], tenant, deadline_ns, reason).members[0]

    def hold_gang(self, refs: Sequence[CgroupRef], tenant: str, deadline_ns: int, reason: str) -> GangResult:
        """See :class:`Brake`. HELD, too, where that is still to be done; ``settle`` tells if it could not be.

        EXPIRED, too, where so much is still to be done that nobody knows when it would be.
        """
        ids = [ref.id for ref in refs]
        if self._is_cheap(ids):
            with self._measured(self._hold_ns, ids):
                return self._brake.hold_gang(refs, tenant, deadline_ns, reason)

        if self._pending >= MOST:
            late = tuple(HoldResult(HoldKind.EXPIRED, ref.id, ref.path, tenant) for ref in refs)
            return GangResult(HoldKind.EXPIRED, late)
        own = [ref.copy() for ref in refs]  # the caller's may be closed before the thread comes to it

        def job(news: list[HoldResult]) -> None:
            try:
                with self._measured(self._hold_ns, ids):
                    result = self._brake.hold_gang(own, tenant, deadline_ns, reason)
            except Exception:
                news.append(HoldResult(HoldKind.NOT_HELD, own[0].id, own[0].path, tenant))
                raise
            finally:
                for ref in own:
                    ref.close()
            if result.kind is not HoldKind.HELD:
                kept = (HoldKind.HELD, HoldKind.ALREADY_HELD)
                news += [one for one in result.members if one.kind not in kept]

        self._give(job)
        members = []
        for ref in refs:
            is_new = ref.id not in self._meant
            kind = HoldKind.HELD if is_new else HoldKind.ALREADY_HELD
            members.append(HoldResult(kind, ref.id, ref.path, tenant))
            if is_new:
                self._meant[ref.id] = members[-1]
                self._asked.add(ref.id)
        return GangResult(HoldKind.HELD, tuple(members))

    def thaw(self, cgroup_id: int) -> HoldResult:
        """See :class:`Brake`. THAWED, too, where that is still to be done."""
        if self._is_cheap([cgroup_id]):
            with self._measured(self._thaw_ns, [cgroup_id]):
                return self._brake.thaw(cgroup_id)

        def job(_news: list[HoldResult]) -> None:
            with self._measured(self._thaw_ns, [cgroup_id]):
                self._brake.thaw(cgroup_id)

        self._give(job)
        meant = self._meant.pop(cgroup_id, None)
        if meant is None:
            return HoldResult(HoldKind.NOT_HELD, cgroup_id, "")
        return HoldResult(HoldKind.THAWED, cgroup_id, meant.path, meant.tenant)

    def pulse(
        self,
        cgroup_ids: Sequence[int],
        deadline_ns: int,
        reason: str,
        used: Callable[[], float],
        limit_ns: int,
    ) -> HoldKind:
        """See :class:`Brake`. What is dear is let go and no more: nobody can wait for it to begin.

        So is what is not held after all: who asks may not have been told yet that the hold was refused.
        """
        if self._is_cheap(cgroup_ids) and cgroup_ids and all(one in self._brake.held for one in cgroup_ids):
            return self._brake.pulse(cgroup_ids, deadline_ns, reason, used, limit_ns)
        for cgroup_id in cgroup_ids:
            self.thaw(cgroup_id)
        return HoldKind.THAWED

    def thaw_expired(self, now_ns: int) -> list[HoldResult]:
        """See :class:`Brake`. Nothing is told of what is still to be done."""
        if self._is_free():
            return self._brake.thaw_expired(now_ns)
        if self._pending < MOST:
            self._give(lambda _news: self._brake.thaw_expired(now_ns))
        return []

    def settle(self) -> list[HoldResult]:
        """See :class:`Brake`; and what did not come out as was told. NOT_HELD: the hold was refused.

        Raises what the thread met, one a call, once there is nothing else to tell.
        """
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        changes = self._brake.settle() if self._is_free() else []
        changes, self._news = [*self._news, *changes], []
        if self._failures and not changes:
            raise self._failures.pop(0)
        if self._failures:
            os.eventfd_write(self._bell, 1)
        return changes

    def close(self) -> list[HoldResult]:
        """See :class:`Brake`. What the thread has not begun is not done; what it does now is waited for."""
        if self._thread is not None:
            self._is_closing = True
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        results = self._brake.close()
        if self._bell >= 0:
            self._meant.clear()
            self._asked.clear()
            self._epoll.close()
            os.close(self._bell)
            self._bell = -1
        return results

    # ---- the thread ----

    def _is_cheap(self, cgroup_ids: Iterable[int]) -> bool:
        """Of a gang, all together: a hold of many is dear though none of them is."""
        known = (max(self._hold_ns.get(one, 0), self._thaw_ns.get(one, 0)) for one in cgroup_ids)
        return self._is_free() and sum(known) < DEAR_NS and self._clock_ns() >= self._contended_ns

    @contextlib.contextmanager
    def _measured(self, costs_ns: dict[int, int], cgroup_ids: Collection[int]) -> Iterator[None]:
        begun_ns, now_ns, waits = self._cost_clock_ns(), self._clock_ns(), self._waits()
        try:
            yield
        finally:
            cost_ns, end_ns = self._cost_clock_ns() - begun_ns, self._clock_ns()
            # Who only stood in line for a processor has not slept; and the thread sleeps also while the loop runs.
            is_loop = threading.current_thread() is not self._thread
            if is_loop and end_ns - now_ns >= DEAR_NS and self._waits() != waits:
                self._contended_ns = end_ns + _CONTENDED_NS
            costs_ns.update((one, cost_ns // len(cgroup_ids)) for one in cgroup_ids)

    def _is_free(self) -> bool:
        """Whether the thread has nothing to do; what it has done is taken."""
        while self._done:
            news, failure = self._done.popleft()
            self._pending -= 1
            self._news += news
            if failure is not None:
                self._failures.append(failure)
            if not self._pending:
                self._meant = {}
                self._asked.clear()
                self._epoll.register(self._brake.fileno(), select.EPOLLIN)
        return not self._pending

    def _give(self, job: _Job) -> None:
        if not self._pending:
            self._meant = {
                cgroup_id: HoldResult(HoldKind.HELD, cgroup_id, entry.path, entry.tenant)
                for cgroup_id, entry in self._brake.holds.items()
            }
            # It would stay readable until the thread has read it.
            self._epoll.unregister(self._brake.fileno())
        self._pending += 1
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._is_closing:
            news: list[HoldResult] = []
            failure: Exception | None = None
            try:
                job(news)
                news += self._brake.settle()
            except Exception as error:
                failure = error
            self._done.append((news, failure))
            os.eventfd_write(self._bell, 1)

    def _finish(self) -> None:
        """Wait until the thread has nothing to do."""
        while not self._is_free():
            wait_readable([self._bell], None)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._bell)
        os.eventfd_write(self._bell, 1)  # settle() is still to tell
